package evidence

import (
	"bufio"
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog is where the kernel's log is read, one record a read
// (Linux, Documentation/ABI/testing/dev-kmsg).
const kernelLog = "/dev/kmsg"

func (t Taker) kernelLog() string {
	if t.KernelLog != "" {
		return t.KernelLog
	}
	return kernelLog
}

// Xids returns what the driver has said since a time after boot, oldest first. Where the kernel's log
// cannot be read there is nothing.
func (t Taker) Xids(since time.Duration) []Xid {
	f, err := t.Follow()
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []Xid
	for more := true; more; {
		var lines string
		lines, more = f.log.read(f.fd)
		if !more {
			lines += f.log.rest
		}
		for _, x := range xidsIn(lines) {
			if x.At >= since {
				out = append(out, x)
			}
		}
	}
	return out
}

// logReader is the state of reading a log. A read of /dev/kmsg gives one record and fails where none is left;
// one of a plain file gives many.
type logReader struct{ rest string }

// read returns the next whole lines; more is false at the end.
func (l *logReader) read(fd int) (lines string, more bool) {
	buf := make([]byte, 8192)
	n, err := unix.Read(fd, buf)
	if err == unix.EPIPE || err == unix.EINTR { // records were overwritten before we read them
		return "", true
	}
	if err != nil || n <= 0 {
		return "", false
	}
	whole := l.rest + string(buf[:n])
	end := strings.LastIndexByte(whole, '\n') + 1
	lines, l.rest = whole[:end], whole[end:]
	if len(l.rest) > len(buf) { // no record is that long
		l.rest = ""
	}
	return lines, true
}

func xidsIn(lines string) []Xid {
	var out []Xid
	for line := range strings.Lines(lines) {
		if x, ok := parseXid(line); ok {
			out = append(out, x)
		}
	}
	return out
}

// sinceXid is how far back lines of the kernel's log belong to an incident.
const sinceXid = time.Hour

// machine keeps what the devices say of themselves, and what the kernel says of them.
func (t Taker) machine(ctx context.Context, home string, form Form, account *Account) {
	for _, x := range t.Xids(SinceBoot() - sinceXid) {
		account.Xids = append(account.Xids, x.Line)
	}
	if form != Full {
		return
	}
	var out, why bytes.Buffer
	err := t.Run(helper(ctx, &out, &why, "nvidia-smi", "-q"))
	missing := &lacks{}
	if out.Len() > 0 {
		missing.write(filepath.Join(home, "nvidia-smi.txt"), out.Bytes())
	}
	if err != nil {
		line, _, _ := bufio.NewReader(&why).ReadLine()
		missing.say("nvidia-smi -q: %v %s", err, line)
	}
	account.Missing = append(account.Missing, missing.said...)
}

// SinceBoot is the time since boot by the clock of the kernel's log.
func SinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
