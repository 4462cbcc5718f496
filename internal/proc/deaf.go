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

// deafShare is how much CPU time the main thread of a process may use after a signal that it does not hear: its
// handler in C is run, and the system call that it waits in begun again.
const deafShare = 300 * time.Microsecond

// deaf are the processes that were ended because they did not hear the stop signal.
type deaf struct {
	mu   sync.Mutex
	held []Holder
	wait sync.WaitGroup
}

// watch ends a process that has a handler for the signal and whose main thread, asked so long ago as spec.Deaf
// says, has done nothing since and sleeps: an interpreter runs its handlers when that thread is back from C,
// and it is not coming back. One that ignores the signal, or is at work on it, keeps its grace.
func (d *deaf) watch(ctx context.Context, p *Process, spec StopSpec, before time.Duration) {
	d.wait.Go(func() {
		timer := time.NewTimer(spec.Deaf)
		defer timer.Stop()
		select {
		case <-p.done:
			return
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now, ok := ranFor(p.id.PID)
		e, err := readEntry(p.id.PID)
		if !ok || err != nil || e.Ident != p.id || e.State != 'S' || now-before > deafShare || !catches(p.id.PID, spec.Signal) {
			return
		}
		if p.Signal(unix.SIGKILL) == nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.held = append(d.held, Holder{Ident: p.id, Name: e.Name, Session: e.Session,
				Why: fmt.Sprintf("its main thread is blocked and did not hear %s for %s", unix.SignalName(spec.Signal), spec.Deaf)})
		}
	})
}

// all waits for whoever is watched and returns those that were ended.
func (d *deaf) all() []Holder {
	d.wait.Wait()
	return d.held
}

// ranFor is how much CPU time a process's main thread has had (/proc/PID/task/TID/schedstat,
// Documentation/scheduler/sched-stats.rst); false where that cannot be read.
func ranFor(pid int) (time.Duration, bool) {
	src, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, pid))
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
