package command

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
	"vigil/internal/role"
)

// fault is one way to break a running job from outside.
type fault struct {
	name string
	what string
	do   func(*chaos, victim) error
}

// victim is a worker of the job.
type victim struct {
	role role.Name
	rank int
	pid  int
}

func (v victim) String() string { return fmt.Sprintf("%s rank %d (pid %d)", v.role, v.rank, v.pid) }

// faults are what chaos can do to a job from outside. Each is bounded: what it has stopped is let run on at the end,
// if it still is.
var faults = []fault{
	{"kill", "SIGKILL to a worker", signalling(unix.SIGKILL)},
	{"segv", "SIGSEGV to a worker", signalling(unix.SIGSEGV)},
	{"term", "SIGTERM to a worker", signalling(unix.SIGTERM)},
	{"interrupt", "SIGINT to a worker: in Python an exception", signalling(unix.SIGINT)},
	{"report", "an exception that the program reports", (*chaos).report},
	{"stop", "SIGSTOP to a worker", func(c *chaos, v victim) error { return c.stop(v.pid) }},
	{"pause", "SIGSTOP to a worker, and SIGCONT after --pause", func(c *chaos, v victim) error { return c.hold(v.pid) }},
	{"slow", "a worker gets a twentieth of its time for --pause", (*chaos).slow},
	{"two", "SIGKILL to two workers at once", killTwo},
	{"memory", "the limit of a worker's cgroup is set to half of what it uses (as root, where workers have cgroups)", (*chaos).squeeze},
	{"daemon", "a process with a worker's mark in a session of its own, as a daemon that escaped", (*chaos).escape},
	{"flood", "100 MB into a worker's standard output", (*chaos).flood},
	{"kill-service", "SIGKILL to the service of a worker", ofParent((*chaos).kill)},
	{"stop-service", "SIGSTOP to the service of a worker", ofParent((*chaos).stop)},
	{"pause-controller", "SIGSTOP to the controller, and SIGCONT after --pause", func(c *chaos, _ victim) error { return c.hold(c.state.Job.PID) }},
	{"kill-controller", "SIGKILL to the controller: somebody must start it again", func(c *chaos, _ victim) error { return c.kill(c.state.Job.PID) }},
	{"fill-disk", "the file system of a worker's output is filled up for --pause, whoever else uses it", (*chaos).fillDisk},
}

// onlyByName are faults that a job does not survive by itself, or that others suffer from too.
var onlyByName = []string{"kill-controller", "fill-disk"}

func signalling(sig unix.Signal) func(*chaos, victim) error {
	return func(_ *chaos, v victim) error { return unix.Kill(v.pid, sig) }
}

func (c *chaos) kill(pid int) error { return unix.Kill(pid, unix.SIGKILL) }

// stop stops a process until tidy.
func (c *chaos) stop(pid int) error {
	id, err := proc.Identify(pid)
	if err != nil {
		return err
	}
	c.stopped = append(c.stopped, id)
	return unix.Kill(pid, unix.SIGSTOP)
}

// hold stops a process and lets it run on after the pause, whatever becomes of ctx.
func (c *chaos) hold(pid int) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return err
	}
	c.wait(c.pause)
	return unix.Kill(pid, unix.SIGCONT)
}

// wait lets time pass, less if ctx ends.
func (c *chaos) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
}

// slow lets a process run for 5 ms of every 100.
func (c *chaos) slow(v victim) error {
	for end := time.Now().Add(c.pause); time.Now().Before(end) && c.ctx.Err() == nil; {
		if err := unix.Kill(v.pid, unix.SIGSTOP); err != nil {
			return err
		}
		c.wait(95 * time.Millisecond)
		if err := unix.Kill(v.pid, unix.SIGCONT); err != nil {
			return err
		}
		c.wait(5 * time.Millisecond)
	}
	return nil
}

// report says to the controller what a program says that has caught an exception.
func (c *chaos) report(v victim) error {
	path := fmt.Sprintf("/%s/report_error?life=%s", v.role, url.QueryEscape(proc.Environ(v.pid)[proc.Mark]))
	base, token, err := target(c.addr, c.token)
	if err == nil {
		_, err = call(c.ctx, http.MethodPost, base+path, token, "RuntimeError: chaos")
	}
	return err
}

// squeeze halves the memory of a worker's cgroup, which ends with the worker (cgroup v2, memory.max).
func (c *chaos) squeeze(v victim) error {
	leaf, err := proc.CgroupOf(v.pid)
	if err != nil {
		return err
	}
	if !strings.Contains(leaf, "/vigil-"+c.state.Job.UID) {
		return errors.New("it has no cgroup of its own")
	}
	text, err := os.ReadFile(filepath.Join(leaf, "memory.current"))
	if err != nil {
		return err
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return err
	}
	c.squeezed = append(c.squeezed, filepath.Join(leaf, "memory.max"))
	return os.WriteFile(filepath.Join(leaf, "memory.max"), []byte(strconv.FormatInt(used/2, 10)), 0)
}

// escape starts what looks like a daemon of the worker: it has its mark, and a session of its own.
func (c *chaos) escape(v victim) error {
	mark := proc.Environ(v.pid)[proc.Mark]
	if mark == "" {
		return errors.New("it has ended")
	}
	daemon := exec.Command("sleep", "86400")
	daemon.Env = append(os.Environ(), proc.Mark+"="+mark)
	daemon.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := daemon.Start(); err != nil {
		return err
	}
	c.daemons = append(c.daemons, daemon)
	c.say("daemon: pid %d", daemon.Process.Pid)
	return nil
}

// floodPatience is how long a flood waits for a service that takes nothing of it, such as one that is stopped.
const floodPatience = 10 * time.Second

// flood writes 100 MB where the worker writes.
func (c *chaos) flood(v victim) error {
	out, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", v.pid), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	lines := []byte(strings.Repeat("chaos: a line of a flood, which nobody wants to read and which fills the disk\n", 1<<14))
	for left := 100 << 20; left > 0 && c.ctx.Err() == nil; {
		if err := out.SetWriteDeadline(time.Now().Add(floodPatience)); err != nil && !errors.Is(err, os.ErrNoDeadline) {
			return err
		}
		n, err := out.Write(lines)
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// fillDisk takes all that is free on the file system of a worker's output, and gives it back.
func (c *chaos) fillDisk(v victim) error {
	path := filepath.Dir(proc.Environ(v.pid)["TORCHELASTIC_ERROR_FILE"]) // beside its output
	if path == "." {
		return errors.New("it is not known where its output is")
	}
	f, err := os.CreateTemp(path, "chaos-fill-")
	if err != nil {
		return err
	}
	defer f.Close() // which gives all back, also if we are killed
	if err := os.Remove(f.Name()); err != nil {
		return err
	}
	size := int64(0)
	for piece := int64(1 << 40); piece >= 4096; {
		switch err := unix.Fallocate(int(f.Fd()), 0, size, piece); err {
		case nil:
			size += piece
		case unix.ENOSPC, unix.EFBIG:
			piece /= 2
		case unix.EINTR:
		default:
			return fmt.Errorf("fill %s: %w", path, err)
		}
	}
	c.say("fill-disk: %d MiB in %s", size>>20, f.Name())
	c.wait(c.pause)
	return nil
}

func killTwo(c *chaos, v victim) error {
	all := c.victims()
	other := all[c.chance.IntN(len(all))]
	c.say("two: and %s", other)
	if err := unix.Kill(v.pid, unix.SIGKILL); err != nil {
		return err
	}
	if other.pid == v.pid {
		return nil
	}
	return unix.Kill(other.pid, unix.SIGKILL)
}

// ofParent does something to the service of a worker, which is its parent.
func ofParent(do func(c *chaos, pid int) error) func(*chaos, victim) error {
	return func(c *chaos, v victim) error {
		parent, err := parentOf(v.pid)
		if err != nil {
			return err
		}
		if is := proc.Environ(parent); is["VIGIL_OPT_JOB_UID"] != c.state.Job.UID || is["VIGIL_OPT_ROLE"] != string(v.role) {
			return fmt.Errorf("its parent (pid %d) is not its service", parent)
		}
		return do(c, parent)
	}
}

// parentOf returns the parent of a process (field 4 of /proc/PID/stat, proc(5)).
func parentOf(pid int) (int, error) {
	src, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	var state string
	var parent int
	_, rest, _ := strings.Cut(string(src[strings.LastIndexByte(string(src), ')'):]), " ")
	if _, err := fmt.Sscan(rest, &state, &parent); err != nil || parent <= 1 {
		return 0, fmt.Errorf("pid %d has no parent that could be its service", pid)
	}
	return parent, nil
}
