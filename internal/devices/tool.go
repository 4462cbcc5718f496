package devices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// tool is a vendor's program that knows the devices of this machine. It is asked in a child process, and what it
// says is never trusted to be whole: what cannot be read is left out, and a tool that fails or hangs is an error.
type tool interface {
	// name of the program, as PATH has it.
	name() string
	// variable by which a worker is shown some of the devices, as the environment has it or by default.
	variable(environ []string) string
	// list returns all devices of the machine, in the order of their indices.
	list(ctx context.Context, ask asker) ([]Device, error)
	// inherited narrows the devices to those that the environment shows, named as the variable names them.
	inherited(all []Device, environ []string) ([]Device, error)
	// users returns the processes that have a device open.
	users(ctx context.Context, ask asker) ([]User, error)
}

// tools are those that are known. The first that lists a device speaks for the machine.
var tools = []tool{nvidia{}, ascend{}, amd{}}

// asker runs a tool with arguments and returns what it printed.
type asker func(ctx context.Context, args ...string) ([]byte, error)

// patience is how long a tool may take. nvidia-smi is slow without persistence mode and hangs on a
// device that fell off its bus.
const patience = 15 * time.Second

// most is more than any tool prints about one machine, in bytes.
const most = 4 << 20

// beside are places outside PATH where a vendor's installer puts its tool.
var beside = map[string]string{"rocm-smi": "/opt/rocm/bin/rocm-smi", "npu-smi": "/usr/local/sbin/npu-smi"}

// findTool returns the program's path; empty where it is not installed.
func findTool(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if path, err := exec.LookPath(beside[name]); err == nil && filepath.IsAbs(path) {
		return path
	}
	return ""
}

// askerOf returns how a tool at a path is asked, bounded in time and in what it may print.
func askerOf(path string) asker {
	return func(ctx context.Context, args ...string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		said := strings.TrimSpace(filepath.Base(path) + " " + strings.Join(args, " "))
		out, complaint := &bounded{most: most}, &bounded{most: 4096}
		cmd := exec.Command(path, args...)
		cmd.Stdout, cmd.Stderr = out, complaint
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what a wrapper has started ends with it
		cmd.WaitDelay = time.Second
		if err := cmd.Start(); err != nil {
			return nil, fmt.Errorf("ask %s: %w", said, err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }() // a program that the driver holds in the kernel never ends: it is left behind
		select {
		case err := <-ended:
			switch {
			case out.full:
				return nil, fmt.Errorf("ask %s: it printed more than %d MiB", said, most>>20)
			case err != nil:
				return out.text.Bytes(), fmt.Errorf("ask %s: %w: %s", said, err, firstLine(out.text.String()+complaint.text.String()))
			}
			return out.text.Bytes(), nil
		case <-ctx.Done():
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			return nil, fmt.Errorf("ask %s: no answer: %w", said, ctx.Err())
		}
	}
}

// bounded keeps the first bytes that are written, and refuses more: the writer's program gets a broken pipe.
type bounded struct {
	text bytes.Buffer // not embedded: its ReadFrom knows no bound
	most int
	full bool
}

var errFull = errors.New("more than is read")

func (b *bounded) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > b.most {
		b.full = true
		return 0, errFull
	}
	return b.text.Write(p)
}

// firstLine returns the first line that says something, cut to a length that fits a message, printable.
func firstLine(said string) string {
	for line := range strings.Lines(said) {
		if line = printable(line, 200); line != "" {
			return line
		}
	}
	return "it printed nothing"
}

// printable returns the text without control characters, trimmed and cut to limit bytes.
func printable(s string, limit int) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
