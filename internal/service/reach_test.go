package service

import (
	"slices"
	"strings"
	"testing"
	"time"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/role"
)

// A shell script that traps the stop signal keeps it from the program that it waits for. In a wanted stop the program has it
// at half of the grace, which is said; not after a failure, not while a checkpoint is being written, and otherwise as
// stop.signal_to says.
// shows: FAULT-C4
func TestTheProgramInAWrapperThatTrapsTheSignalHearsOfTheStop(t *testing.T) {
	slow(t)
	t.Parallel()
	const saver = `sh -c 'trap "echo saved; exit 0" TERM; echo up; while :; do sleep 0.02; done'`
	for name, c := range map[string]struct {
		to     job.SignalTo
		before string        // the program
		grace  time.Duration // of both kinds
		stop   *api.Stop
		saved  bool
		said   bool
		speaks bool // another program than saver speaks for the worker
	}{
		"in a wanted stop":             {grace: 3 * time.Second, stop: &api.Stop{}, saved: true, said: true},
		"in a wanted stop, who speaks": {before: `sleep 1000 & VIGIL_TEST_AS=say $SELF X_VIGIL_STEP=5 & `, grace: 3 * time.Second, stop: &api.Stop{}, said: true, speaks: true},
		"after a failure":              {grace: 2 * time.Second, stop: &api.Stop{AfterFailure: true}},
		"not where it is for worker":   {to: job.SignalWorker, grace: 2 * time.Second, stop: &api.Stop{}},
		"at once where it is for tree": {to: job.SignalTree, grace: time.Hour, stop: &api.Stop{}, saved: true},
		"after a failure too, then":    {to: job.SignalTree, grace: time.Hour, stop: &api.Stop{AfterFailure: true}, saved: true},
		"while a checkpoint is open":   {before: `VIGIL_TEST_AS=say $SELF X_VIGIL_PHASE=+checkpoint & `, grace: 2 * time.Second, stop: &api.Stop{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := workerOf(`trap 'echo noted' TERM; ` + c.before + saver + `; :`)
			r.Workers = 1
			r.Stop = job.StopPolicy{Signal: "TERM", Grace: c.grace, GraceOnFailure: c.grace, GraceWritten: true, SignalTo: c.to}
			s := enter(t, r)
			order := runOrder(1)
			order.WorldSize, order.Workers = 1, order.Workers[:1]
			s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
			s.awaitLog(1, 0, "up")
			if c.speaks {
				s.ears.await(t, "the step", func() bool { return len(s.ears.beats) == 1 })
			} else if c.before != "" {
				s.ears.await(t, "the phase to begin", func() bool { return len(s.ears.phases) == 1 })
			}
			held := s.must(stop(c.stop)).Held
			if got := strings.Count(s.log(1, 0, "stdout"), "saved"); (got == 1) != c.saved || got > 1 {
				t.Errorf("the program had the signal %d times, want %v", got, c.saved)
			}
			if c.saved != (len(held) == 0) {
				t.Errorf("held on: %q", held)
			}
			said := s.ears.noticed("which runs below it, has it too")
			if said != c.said || s.ears.noticed("(it speaks for the worker)") != c.speaks || c.speaks && s.ears.noticed("a child of it") {
				t.Errorf("said: %q", s.ears.said())
			}
			if pid := s.ears.awaitState(t, 0, role.WorkerDown).PID; pid != 0 {
				gone(t, pid)
			}
		})
	}
}

// noticed says whether a notice has been told that contains the text.
func (e *ears) noticed(text string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.notices, func(n string) bool { return strings.Contains(n, text) })
}
