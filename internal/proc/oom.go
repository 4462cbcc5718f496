package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OOMKiller is the Sender of the signal by which the kernel ended a process for want of memory.
const OOMKiller = "oom-killer"

// oomCount is how often the kernel had killed for want of memory when a process began.
type oomCount struct {
	machine uint64            // in /proc/vmstat, field oom_kill
	groups  map[string]uint64 // by file of our own cgroups that counts them
}

// countOOM counts in the files that oomFiles has found.
func countOOM(files []string) oomCount {
	c := oomCount{machine: oomKills("/proc/vmstat"), groups: map[string]uint64{}}
	for _, path := range files {
		c.groups[path] = oomKills(path)
	}
	return c
}

// rose says whether the kernel killed pid for want of memory: one of our own cgroups counted one since,
// or the machine did and its log names the pid. Where none can be read it is not known, and false.
func (c oomCount) rose(pid int) bool {
	for path, before := range c.groups {
		if oomKills(path) > before {
			return true
		}
	}
	return oomKills("/proc/vmstat") > c.machine && kernelLogNames(pid)
}

// oomFiles returns the files in which the kernel counts what it killed for want of memory in our own
// cgroups: memory.events of version 2, which counts those below too (Linux,
// admin-guide/cgroup-v2.rst), and memory.oom_control of version 1 (cgroup-v1/memory.rst). Both may be
// there without a right to make leaves. root is the folder that has proc and the mounts: "/".
func oomFiles(root string) []string {
	own, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil
	}
	var v2, v1 string // our paths
	for line := range strings.Lines(string(own)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(part) < 3:
		case part[0] == "0" && part[1] == "":
			v2 = part[2]
		case slices.Contains(strings.Split(part[1], ","), "memory"):
			v1 = part[2]
		}
	}
	var files []string
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		at, kind := strings.Fields(before), strings.Fields(after)
		if len(at) < 5 || len(kind) < 3 {
			continue
		}
		path, name := v2, "memory.events"
		if kind[0] == "cgroup" && slices.Contains(strings.Split(kind[2], ","), "memory") {
			path, name = v1, "memory.oom_control"
		} else if kind[0] != "cgroup2" {
			continue
		}
		below, err := filepath.Rel(at[3], path)
		if path == "" || err != nil || !filepath.IsLocal(below) {
			continue
		}
		file := filepath.Join(root, at[4], below, name)
		if _, err := os.ReadFile(file); err == nil && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files
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
