package evidence

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

const (
	mostStacks  = 4                      // processes of one worker of which stacks are taken
	maxStack    = 1 << 20                // bytes of one stack dump
	askEvery    = 20 * time.Millisecond  // between two looks for what a worker was asked to write
	settled     = 3                      // looks without anything new after which it is complete
	handlerTime = 500 * time.Millisecond // that a fault handler is given to begin
	traceTime   = 1500 * time.Millisecond
)

// stack writes the stacks of a worker: by py-spy where that is installed, else by the fault handler
// that it has armed.
func (t Taker) stack(ctx context.Context, to string, s Subject, states []processState, missing *lacks) {
	spy, err := exec.LookPath("py-spy")
	if err == nil {
		var out bytes.Buffer
		for _, p := range pythons(states) {
			var why bytes.Buffer
			cmd := helper(ctx, &out, &why, spy, "dump", "--nonblocking", "--pid", strconv.Itoa(p.pid))
			if err := t.Run(cmd); err != nil {
				missing.say("stack of pid %d: py-spy: %v %s", p.pid, err, strings.TrimSpace(why.String()))
			}
		}
		if out.Len() > 0 {
			missing.write(to, out.Bytes())
			return
		}
	}
	switch {
	case s.FaultHandler != 0:
		i := slices.IndexFunc(states, func(p processState) bool { return handles(p.pid, s.FaultHandler) })
		if i < 0 {
			missing.say("stack: none of its processes handles %s", unix.SignalName(s.FaultHandler))
			return
		}
		s.askHandler(ctx, to, states[i], missing)
	case err != nil:
		missing.say("stack: py-spy is not in the PATH, and the worker has not said that it has armed faulthandler (X_VIGIL_FAULTHANDLER)")
	}
}

// helper makes a command whose whole process group ends with ctx.
func helper(ctx context.Context, out, why *bytes.Buffer, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &limited{w: out, left: maxStack}, &limited{w: why, left: 4096}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 50 * time.Millisecond
	return cmd
}

// pythons returns those of a worker's processes that look like Python, or the worker's own if none does.
func pythons(states []processState) []processState {
	out := slices.Clone(states)
	out = slices.DeleteFunc(out, func(p processState) bool {
		return !strings.HasPrefix(p.name, "python") && !strings.HasPrefix(p.name, "pt_") && !strings.Contains(p.command, "python")
	})
	if len(out) == 0 {
		out = states[:1]
	}
	return out[:min(len(out), mostStacks)]
}

// handles says whether a process catches a signal, by SigCgt of /proc/PID/status (proc(5)). One that does
// not might be killed by it.
func handles(pid int, sig unix.Signal) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			caught, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && caught&(1<<(sig-1)) != 0
		}
	}
	return false
}

// askHandler sends the signal that makes the worker write its stacks on standard error, and keeps what
// it writes. One that was stopped by a signal is let run on for that.
func (s *Subject) askHandler(ctx context.Context, to string, main processState, missing *lacks) {
	before := sizeOf(s.Stderr)
	if main.state == 'T' {
		_ = unix.Kill(main.pid, unix.SIGCONT) // else the signal waits
	}
	if err := unix.Kill(main.pid, s.FaultHandler); err != nil {
		missing.say("stack: send %s to pid %d: %v", unix.SignalName(s.FaultHandler), main.pid, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handlerTime)
	defer cancel()
	awaitGrowth(ctx, func() int64 { return sizeOf(s.Stderr) - before })
	f, err := proc.OpenRegular(s.Stderr)
	if err != nil {
		missing.say("stack: %v", err)
		return
	}
	defer f.Close()
	text, _ := io.ReadAll(io.NewSectionReader(f, before, maxStack))
	if len(text) == 0 {
		missing.say("stack: pid %d wrote nothing on %s", main.pid, unix.SignalName(s.FaultHandler))
		return
	}
	missing.write(to, text)
}

// trace makes NCCL's flight recorder write, by a byte in its pipe (torch's
// ProcessGroupNCCL.cpp, DumpPipe), and keeps what it writes.
func trace(ctx context.Context, to string, s Subject, missing *lacks) {
	if s.Trace == "" {
		return
	}
	if err := knock(s.Pipe); err == nil {
		ctx, cancel := context.WithTimeout(ctx, traceTime)
		defer cancel()
		began := time.Now()
		awaitGrowth(ctx, func() int64 {
			if info, err := os.Stat(s.Trace); err == nil && !info.ModTime().Before(began.Add(-time.Second)) {
				return info.Size()
			}
			return 0
		})
	} else if !os.IsNotExist(err) {
		missing.say("flight recorder: %v", err)
	}
	missing.keepTrace(s.Trace, to)
}

// knock writes one byte to a FIFO that somebody reads. It never waits.
func knock(pipe string) error {
	f, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err //nolint:wrapcheck // it says open and the path
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return fmt.Errorf("%s is no FIFO", pipe)
	}
	_, err = f.Write([]byte{'1'})
	return err //nolint:wrapcheck // it says write and the path
}

// awaitGrowth waits until something was written and no more comes, or ctx ends.
func awaitGrowth(ctx context.Context, size func() int64) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	last, same := int64(0), 0
	for same < settled {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if now := size(); now != last || now <= 0 {
			last, same = now, 0
		} else {
			same++
		}
	}
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// limited takes everything and keeps the beginning.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	keep := p[:min(len(p), l.left)]
	l.left -= len(keep)
	if _, err := l.w.Write(keep); err != nil {
		return 0, fmt.Errorf("keep output: %w", err)
	}
	return len(p), nil
}
