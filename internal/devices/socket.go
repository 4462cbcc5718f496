package devices

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// backlog is how many may ask a holder who it is before one of its processes has looked: the most that the kernel
// gives (somaxconn).
const backlog = 4096

// announce puts a name into the kernel's table. The error is unix.EADDRINUSE where a process has it.
func announce(name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name})
	if err == nil {
		err = unix.Listen(fd, backlog) // from here on the kernel names us to who asks
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "@"+name), nil
}

// drain answers those who have asked who we are: the connection alone was the answer.
func drain(fd int) {
	if unix.SetNonblock(fd, true) != nil {
		return
	}
	for range backlog {
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_ = unix.Close(c)
	}
}

// named is who the kernel names to those who ask a listening socket of ours.
func named(fd int) (Process, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Process{}, err
	}
	return identify(cred), nil
}

// state of a name in the kernel's table.
type state int

const (
	nobody state = iota // no process listens: it is free, or held by one that does not tell of itself
	held
)

// ask returns which process has a name. Where very many ask at once, or one has filled the queue on purpose, only that
// it is held is known.
func ask(name string) (Process, state, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return Process{}, nobody, err
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + name})
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Process{}, nobody, nil
	case errors.Is(err, unix.EAGAIN):
		return Process{UID: unknown}, held, nil
	case err != nil:
		return Process{}, nobody, err
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Process{UID: unknown}, held, nil //nolint:nilerr // a process answers
	}
	who := identify(cred)
	if pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD); err == nil {
		_ = unix.Close(pidfd)
	} else if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		who.Ended = true // and the pid may be another's by now
	}
	return who, held, nil
}

// entry is one name of ours in the kernel's table.
type entry struct {
	name    string
	inode   uint64
	listens bool
}

// entries lists the names of this machine that are ours, each once. Sockets that come and go while the table is read
// can hide another, so it is read twice. The connections of a socket that listens are shown with its name.
func entries() ([]entry, error) {
	var out []entry
	at := map[string]int{}
	for range 2 {
		f, err := os.Open("/proc/net/unix")
		if err != nil {
			return nil, err
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			e, ok := parseEntry(s.Text())
			if !ok {
				continue
			}
			if i, known := at[e.name]; !known {
				at[e.name] = len(out)
				out = append(out, e)
			} else if e.listens {
				out[i] = e
			}
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parseEntry reads one line of /proc/net/unix (proc(5)): Num RefCount Protocol Flags Type St Inode Path.
func parseEntry(line string) (entry, bool) {
	at := strings.Index(line, " @vigil/")
	if at < 0 {
		return entry{}, false
	}
	f := strings.Fields(line[:at])
	if len(f) != 7 || f[4] != "0001" { // a stream
		return entry{}, false
	}
	inode, err := strconv.ParseUint(f[6], 10, 64)
	return entry{line[at+2:], inode, f[3] == "00010000"}, err == nil
}

// Process is one that has a device, or waits for one, as the kernel names it.
type Process struct {
	PID   int       // 0 where it cannot be seen from here
	UID   int       // unknown where the kernel does not say
	Start time.Time // zero where it cannot be seen
	Ended bool      // what it has begun lives on: a job's services, without their controller
}

// unknown uid.
const unknown = -1

func identify(cred *unix.Ucred) Process {
	p := Process{PID: int(cred.Pid), UID: int(cred.Uid)}
	if p.PID <= 0 {
		p.PID = 0
		return p
	}
	ms, ok := startOf(p.PID)
	if !ok {
		p.Ended = !alive(p.PID)
		return p
	}
	p.Start = time.Now().Add(time.Duration(ms-sinceBoot()) * time.Millisecond)
	return p
}

func alive(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// ticks of /proc in a second (USER_HZ), the same on all of Linux's architectures that we build for.
const ticks = 100

// startOf returns when a process began, in ms since boot. A zombie has ended.
func startOf(pid int) (int64, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // from state on
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return 0, false
	}
	n, err := strconv.ParseInt(f[19], 10, 64)
	return n * (1000 / ticks), err == nil
}

// sinceBoot is the time since boot in ms, also over suspends: the same for all processes of the machine.
func sinceBoot() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // never fails
	return t.Nano() / int64(time.Millisecond)
}
