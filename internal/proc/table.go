package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// entry is one line of /proc/PID/stat, as far as we read it (proc_pid_stat(5)).
type entry struct {
	Ident
	Name    string
	State   byte
	Parent  int
	Session int
	Threads int
}

// alive is false for a zombie, unless threads of it run on after its main thread has ended.
func (e entry) alive() bool {
	switch e.State {
	case 'Z', 'X', 'x':
		return e.Threads > 1
	default:
		return true
	}
}

// table is one pass over /proc, by pid.
type table map[int]entry

// readTable reads all processes that can be seen. Those that end meanwhile may be missing.
func readTable() table {
	t := table{}
	dir, err := os.Open("/proc")
	if err != nil {
		return t
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil && len(names) == 0 {
		return t
	}
	buf := make([]byte, 1024)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if e, err := readEntryInto(pid, buf); err == nil {
			t[pid] = e
		}
	}
	return t
}

func readEntry(pid int) (entry, error) { return readEntryInto(pid, make([]byte, 1024)) }

// readEntryInto reads one process; one call of open, read and close each, since a look at a busy
// machine does it thousands of times. The error wraps os.ErrNotExist when there is no such process.
func readEntryInto(pid int, buf []byte) (entry, error) {
	name := "/proc/" + strconv.Itoa(pid) + "/stat"
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return entry{}, &os.PathError{Op: "read", Path: name, Err: err}
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err == unix.ESRCH {
		err = unix.ENOENT
	}
	if err != nil {
		return entry{}, &os.PathError{Op: "read", Path: name, Err: err}
	}
	return parseStat(pid, buf[:n])
}

// parseStat reads "PID (COMM) STATE PPID PGRP SESSION ...": the name may hold spaces and brackets, so
// the fields are counted from the last bracket.
func parseStat(pid int, line []byte) (entry, error) {
	from, to := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if from < 0 || to < from {
		return entry{}, fmt.Errorf("read stat of pid %d: no command name in %q", pid, line)
	}
	const state, parent, session, threads, start = 0, 1, 3, 17, 19
	e := entry{Ident: Ident{PID: pid}, Name: string(line[from+1 : to])}
	var errs [4]error
	fields := 0
	for field := range bytes.FieldsSeq(line[to+1:]) {
		switch fields {
		case state:
			e.State = field[0]
		case parent:
			e.Parent, errs[0] = strconv.Atoi(string(field))
		case session:
			e.Session, errs[1] = strconv.Atoi(string(field))
		case threads:
			e.Threads, errs[2] = strconv.Atoi(string(field))
		case start:
			e.StartTime, errs[3] = strconv.ParseUint(string(field), 10, 64)
		}
		if fields++; fields > start {
			break
		}
	}
	if fields <= start {
		return entry{}, fmt.Errorf("read stat of pid %d: %d fields after the name", pid, fields)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return entry{}, fmt.Errorf("read stat of pid %d: %w", pid, err)
	}
	return e, nil
}

// owner is the user that a process runs as; false when it has ended.
func owner(pid int) (uint32, bool) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(pid), &st); err != nil {
		return 0, false
	}
	return st.Uid, true
}

// legibility says what an environment in /proc is worth. A program may have written over it.
type legibility int

const (
	illegible legibility = iota // not readable, empty, or no list of NAME=VALUE
	legible
)

// readMark returns the VIGIL_LIFE in the environment of a process, and whether the environment could
// be read as one at all. buf is room to read it into.
func readMark(pid int, buf []byte) (string, legibility) {
	env := readEnviron(pid, buf)
	if len(env) == 0 {
		return "", illegible
	}
	says := legible
	for item := range bytes.SplitSeq(bytes.TrimRight(env, "\x00"), []byte{0}) {
		if v, ok := bytes.CutPrefix(item, []byte(Mark+"=")); ok {
			return string(v), legible
		}
		if bytes.IndexByte(item, '=') < 1 {
			says = illegible
		}
	}
	return "", says
}

// Environ returns what a process was started with, by name; nothing, when it has gone or is not ours to look into.
func Environ(pid int) map[string]string {
	out := map[string]string{}
	for item := range bytes.SplitSeq(readEnviron(pid, nil), []byte{0}) {
		if name, value, ok := bytes.Cut(item, []byte("=")); ok {
			out[string(name)] = string(value)
		}
	}
	return out
}

// readEnviron returns the environment of a process as far as it can be read, in buf if it has room.
func readEnviron(pid int, buf []byte) []byte {
	name := "/proc/" + strconv.Itoa(pid) + "/environ"
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for n := 0; ; {
		if n == len(buf) {
			buf = append(buf, make([]byte, max(n, 4096))...)
		}
		more, err := unix.Read(fd, buf[n:])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil
		case more == 0:
			return buf[:n]
		default:
			n += more
		}
	}
}

// signal sends sig to that very process. The error is os.ErrProcessDone when it has ended.
func signal(id Ident, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(id.PID, 0)
	switch err {
	case nil:
		defer unix.Close(fd)
	case unix.ESRCH:
		return os.ErrProcessDone
	}
	// With the descriptor held, a matching start time proves that it is of that process. Where the
	// kernel has no such descriptors, the moment between these two lines is left.
	if e, err := readEntry(id.PID); err != nil || e.StartTime != id.StartTime {
		return os.ErrProcessDone
	}
	if err == nil {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	} else {
		err = unix.Kill(id.PID, sig)
	}
	if err == unix.ESRCH {
		return os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("send %s to pid %d: %w", unix.SignalName(sig), id.PID, err)
	}
	return nil
}
