package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// oomCount is how often the kernel had killed for want of memory when a process began.
type oomCount struct {
	machine uint64 // in /proc/vmstat, field oom_kill
	group   uint64 // in memory.events of our own cgroup
	folder  string // of our own cgroup; empty where it is not known
}

func countOOM(folder string) oomCount {
	c := oomCount{machine: oomKills("/proc/vmstat"), folder: folder}
	if folder != "" {
		c.group = oomKills(filepath.Join(folder, "memory.events"))
	}
	return c
}

// rose says whether the kernel killed pid for want of memory: our own cgroup counted one since, or the
// machine did and its log names the pid. Where neither can be read it is not known, and false.
func (c oomCount) rose(pid int) bool {
	if c.folder != "" && oomKills(filepath.Join(c.folder, "memory.events")) > c.group {
		return true
	}
	return oomKills("/proc/vmstat") > c.machine && kernelLogNames(pid)
}

// oomKills reads the number after oom_kill in a file of "NAME NUMBER" lines; 0 when there is none.
func oomKills(path string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// kernelLogNames looks for "Killed process PID (" in the kernel's log, one record a read (Linux
// Documentation/ABI/testing/dev-kmsg).
func kernelLogNames(pid int) bool {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	want := []byte(fmt.Sprintf("Killed process %d (", pid))
	record := make([]byte, 8192)
	for {
		n, err := unix.Read(fd, record)
		switch {
		case err == unix.EPIPE: // records were overwritten before we read them
		case err != nil || n == 0:
			return false
		case bytes.Contains(record[:n], want):
			return true
		}
	}
}
