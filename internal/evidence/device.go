package evidence

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernelLog is where the kernel's log is read, one record a read
// (Linux, Documentation/ABI/testing/dev-kmsg).
const kernelLog = "/dev/kmsg"

// Xid is a line of the NVIDIA driver in the kernel's log: a device has failed, or a program on it.
type Xid struct {
	Number int
	PID    int           // of the process that it names; 0: none
	At     time.Duration // since boot
	Line   string
}

// xidLine is what the driver writes: "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, ...".
// Older ones write no pid.
var xidLine = regexp.MustCompile(`NVRM: Xid \([^)]*\): (\d+)(?:, pid='?(\d+))?`)

// ofPrograms are the Xids that NVIDIA's guide ascribes to the program on the device first, and one that
// follows when a program is killed ("XID Errors", the table of the common ones). They are no sign of an
// ill device.
var ofPrograms = []int{13, 31, 43, 45}

// Hardware reports whether the device is ill, rather than the program on it.
func (x Xid) Hardware() bool { return !slices.Contains(ofPrograms, x.Number) }

// Xids returns what the driver has said since a time after boot, oldest first. Where the kernel's log
// cannot be read there is nothing.
func (t Taker) Xids(since time.Duration) []Xid {
	path := t.KernelLog
	if path == "" {
		path = kernelLog
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out []Xid
	for record := range records(int(f.Fd())) {
		for line := range strings.Lines(record) {
			if x, ok := parseXid(line); ok && x.At >= since {
				out = append(out, x)
			}
		}
	}
	return out
}

// records reads a log to its end. A read of /dev/kmsg gives one record and fails where none is left; one
// of a plain file gives many.
func records(fd int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		buf := make([]byte, 8192)
		rest := ""
		for {
			n, err := unix.Read(fd, buf)
			if err == unix.EPIPE || err == unix.EINTR { // records were overwritten before we read them
				continue
			}
			if err != nil || n <= 0 {
				break
			}
			whole := rest + string(buf[:n])
			end := strings.LastIndexByte(whole, '\n') + 1
			rest = whole[end:]
			if !yield(whole[:end]) {
				return
			}
		}
		if rest != "" {
			yield(rest)
		}
	}
}

// parseXid reads "PRIORITY,SEQUENCE,MICROSECONDS,...;TEXT".
func parseXid(line string) (Xid, bool) {
	head, text, _ := strings.Cut(line, ";")
	m := xidLine.FindStringSubmatch(text)
	if m == nil {
		return Xid{}, false
	}
	x := Xid{Line: strings.TrimSpace(text)}
	x.Number, _ = strconv.Atoi(m[1])
	x.PID, _ = strconv.Atoi(m[2])
	if field := strings.Split(head, ","); len(field) > 2 {
		micros, _ := strconv.ParseInt(field[2], 10, 64)
		x.At = time.Duration(micros) * time.Microsecond
	}
	return x, true
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
