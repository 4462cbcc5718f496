package proc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// deafShare is how much CPU time a thread of a process may use after a signal that the process does not hear: its
	// handler in C is run, and the system call that it waits in begun again.
	deafShare = 300 * time.Microsecond
	// deafTotal is the same for all of its threads together: some wake now and then to look around.
	deafTotal = 3 * time.Millisecond
)

// deaf are the processes that were ended because they did not hear the stop signal.
type deaf struct {
	mu   sync.Mutex
	held []Holder
	wait sync.WaitGroup
}

// watch ends a process that has a handler for the signal and of which no thread, asked so long ago as spec.Deaf
// says, has done anything since, and all sleep: an interpreter runs its handlers when its main thread is back from C,
// and it is not coming back. One that ignores the signal, or of which any thread is at work, keeps its grace: many
// programs save in another thread than the one that waits.
func (d *deaf) watch(ctx context.Context, p *Process, spec StopSpec, before effort) {
	d.wait.Go(func() {
		timer := time.NewTimer(spec.Deaf)
		defer timer.Stop()
		select {
		case <-p.done:
			return
		case <-ctx.Done():
			return
		case <-spec.Longer:
			return
		case <-timer.C:
		}
		now, ok := effortOf(p.id)
		all, busiest := now.since(before)
		e, err := readEntry(p.id.PID)
		if !ok || err != nil || all > deafTotal || busiest > deafShare || !asleep(p.id.PID) || !catches(p.id.PID, spec.Signal) {
			return
		}
		if p.Signal(unix.SIGKILL) == nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.held = append(d.held, Holder{Ident: p.id, Name: e.Name, Session: e.Session, Early: true,
				Why: fmt.Sprintf("blocked: ended %s after %s, not %s, since none of its threads works", spec.Deaf, unix.SignalName(spec.Signal), spec.Grace)})
		}
	})
}

// all waits for whoever is watched and returns those that were ended.
func (d *deaf) all() []Holder {
	d.wait.Wait()
	return d.held
}

// threadRan is how much CPU time a thread of a process has had (/proc/PID/task/TID/schedstat,
// Documentation/scheduler/sched-stats.rst); false where that cannot be read.
func threadRan(pid, tid int) (time.Duration, bool) {
	src, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, tid))
	fields := bytes.Fields(src)
	if err != nil || len(fields) == 0 {
		return 0, false
	}
	ns, err := strconv.ParseInt(string(fields[0]), 10, 64)
	return time.Duration(ns), err == nil
}

// catches reports whether a process has a handler for a signal (SigCgt of /proc/PID/status, proc(5)).
func catches(pid int, sig unix.Signal) bool {
	src, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range bytes.Lines(src) {
		if mask, ok := bytes.CutPrefix(line, []byte("SigCgt:")); ok {
			bits, err := strconv.ParseUint(string(bytes.TrimSpace(mask)), 16, 64)
			return err == nil && bits&(1<<(uint(sig)-1)) != 0
		}
	}
	return false
}
