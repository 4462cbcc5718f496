package evidence

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Xid is a line of the NVIDIA driver in the kernel's log: a device has failed, or a program on it.
type Xid struct {
	Number int
	Device string        // PCI address without the function, 0000:3b:00
	PID    int           // of the process that it names; 0: none
	Name   string        // of that process, or of a thread of it; may be empty
	At     time.Duration // since boot
	Line   string
}

// xidLine is what the driver writes: "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, ...".
// Older ones write no pid, and those about a part of a device (MIG) name it behind the address.
var xidLine = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:]*)[^)]*\): (\d+)(?:, pid='?(\d+)'?(?:, name='?([^,']+))?)?`)

// blame says whose fault an Xid is.
type blame int

const (
	unlisted  blame = iota // at a worker's end it counts as the device's
	ofProgram              // the program on the device, or its kill
	ofNobody               // corrected, or word about another Xid
	ofDevice               // the device must be reset, or its memory has failed
	ofOneOnly              // the same, and only the process that it names is hit
)

// blames follows the column "Immediate Action" of NVIDIA's catalogue for Ampere and newer ("Analyzing
// Xid Errors with the Xid Catalog"): RESET_GPU, RESTART_BM and the workflows of ECC and NVLink are the
// device's; 94 is memory that failed under one process, which must be restarted; RESTART_APP with
// CHECK_APP is the program's; IGNORE with a cause that was mended is nobody's. The Xids of NVLink 5 (144
// to 150), whose weight depends on a code behind the number, and 155, which can be wanted, are unlisted.
var blames = map[int]blame{
	11: ofProgram, 13: ofProgram, 25: ofProgram, 31: ofProgram, 43: ofProgram, 45: ofProgram, 69: ofProgram, 80: ofProgram, 137: ofProgram,

	14: ofNobody, 63: ofNobody, 66: ofNobody, 67: ofNobody, 92: ofNobody, 93: ofNobody, 106: ofNobody, 107: ofNobody, 108: ofNobody, 121: ofNobody, 141: ofNobody, 154: ofNobody, 157: ofNobody, 160: ofNobody, 161: ofNobody,

	46: ofDevice, 48: ofDevice, 62: ofDevice, 64: ofDevice, 74: ofDevice, 79: ofDevice, 95: ofDevice, 109: ofDevice, 110: ofDevice, 119: ofDevice, 120: ofDevice, 136: ofDevice, 140: ofDevice, 143: ofDevice, 158: ofDevice,

	94: ofOneOnly,
}

// Hardware reports whether a worker's end may be ascribed to the device, rather than to the program on
// it.
func (x Xid) Hardware() bool {
	b := blames[x.Number]
	return b != ofProgram && b != ofNobody
}

// Ill reports whether the device is ill for certain: whoever uses it need not be waited for.
func (x Xid) Ill() bool {
	b := blames[x.Number]
	return b == ofDevice || b == ofOneOnly
}

// Contained reports whether it hits nobody but the process that it names.
func (x Xid) Contained() bool { return blames[x.Number] == ofOneOnly }

// Names reports whether it is about the process pid: a number alone may be another's, since the driver
// does not count as a container does.
func (x Xid) Names(pid int) bool {
	if x.PID == 0 || x.PID != pid {
		return false
	}
	if x.Name == "" {
		return true
	}
	threads, _ := filepath.Glob(fmt.Sprintf("%s/%d/task/*/comm", procRoot, pid)) // the pattern is right
	for _, path := range threads[:min(len(threads), mostThreads)] {
		if strings.TrimSpace(readSome(path, 64)) == x.Name {
			return true
		}
	}
	return false
}

// parseXid reads "PRIORITY,SEQUENCE,MICROSECONDS,...;TEXT".
func parseXid(line string) (Xid, bool) {
	head, text, _ := strings.Cut(line, ";")
	m := xidLine.FindStringSubmatch(text)
	if m == nil {
		return Xid{}, false
	}
	x := Xid{Line: strings.TrimSpace(text), Device: strings.ToLower(m[1]), Name: strings.TrimSpace(m[4])}
	x.Number, _ = strconv.Atoi(m[2])
	x.PID, _ = strconv.Atoi(m[3])
	if field := strings.Split(head, ","); len(field) > 2 {
		micros, _ := strconv.ParseInt(field[2], 10, 64)
		x.At = time.Duration(micros) * time.Microsecond
	}
	return x, true
}

// mostRecords is how many reads of the kernel's log one look makes.
const mostRecords = 4096

// Follower reads the kernel's log as it grows.
type Follower struct {
	fd  int
	log logReader
}

// Follow opens the kernel's log. The error says why it cannot be read.
func (t Taker) Follow() (*Follower, error) {
	fd, err := unix.Open(t.kernelLog(), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("follow the kernel's log: %w", &os.PathError{Op: "open", Path: t.kernelLog(), Err: err})
	}
	return &Follower{fd: fd}, nil
}

// Next returns what the driver has said since the last call, at first since boot as far as that is kept.
// It never waits, and leaves for the next call what is more than one look takes.
func (f *Follower) Next() []Xid {
	var out []Xid
	for range mostRecords {
		lines, more := f.log.read(f.fd)
		out = append(out, xidsIn(lines)...)
		if !more {
			break
		}
	}
	return out
}

// Close ends the following.
func (f *Follower) Close() { _ = unix.Close(f.fd) }

// Addresses returns the PCI addresses, as Xid.Device has them, of devices that are named by index or
// UUID, as the driver lists them in dir ("/proc/driver/nvidia/gpus" where that is empty). Those that are
// not listed are left out.
func Addresses(dir string, devices []string) []string {
	if dir == "" {
		dir = "/proc/driver/nvidia/gpus"
	}
	entries, _ := os.ReadDir(dir) // in the order of the addresses, which is that of nvidia-smi
	var out []string
	for i, e := range entries {
		uuid := ""
		for line := range strings.Lines(readSome(filepath.Join(dir, e.Name(), "information"), 4096)) {
			if value, ok := strings.CutPrefix(line, "GPU UUID:"); ok {
				uuid = strings.TrimSpace(value)
			}
		}
		address, _, _ := strings.Cut(strings.ToLower(e.Name()), ".")
		for _, d := range devices {
			if d == strconv.Itoa(i) || strings.HasPrefix(d, "GPU-") && strings.HasPrefix(uuid, d) {
				out = append(out, address)
			}
		}
	}
	return out
}
