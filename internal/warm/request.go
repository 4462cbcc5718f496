package warm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// instruct tells a forked worker what to be and passes its streams.
func instruct(control *net.UnixConn, spec proc.Spec, c command) error {
	dir := spec.Dir
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return fmt.Errorf("find working directory: %w", err)
		}
	}
	dies := "0"
	if spec.DieWithParent {
		dies = "1"
	}
	fields := []string{strconv.Itoa(os.Getpid()), dies, dir, c.kind, c.target, strconv.Itoa(len(c.words)), strconv.Itoa(c.args)}
	fields = append(append(fields, c.words...), spec.Env...)
	text := strings.Join(fields, "\x00")
	if strings.Count(text, "\x00") != len(fields)-1 {
		return errors.New("tell the worker what to be: a zero byte in command or environment")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("tell the worker what to be: %w", err)
	}
	defer null.Close()
	var fds []int
	for _, f := range []*os.File{spec.Stdin, spec.Stdout, spec.Stderr} {
		if f == nil {
			f = null
		}
		fds = append(fds, int(f.Fd()))
	}
	message := append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	n, _, err := control.WriteMsgUnix(message[:4], unix.UnixRights(fds...), nil)
	if err == nil {
		_, err = control.Write(message[n:])
	}
	if err != nil {
		return fmt.Errorf("tell the worker what to be: %w", err)
	}
	return nil
}

// release waits until the worker is what it was told to be, and lets it run its program.
func release(control *net.UnixConn) error {
	answer := make([]byte, 4096)
	n, err := control.Read(answer) // it is written at once
	if err == nil && string(answer[:n]) == "ready" {
		_, err = control.Write([]byte{1})
	} else if kind, why, _ := strings.Cut(string(answer[:n]), "\x00"); err == nil && kind == "changed" {
		return &refusal{kind: kind, why: why}
	} else if err == nil {
		err = fmt.Errorf("make the program of it: %s", answer[:n])
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it has ended")
	}
	if err != nil {
		return fmt.Errorf("wait for the forked worker: %w", err)
	}
	return nil
}
