package service

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// ears remembers what the hub hears.
type ears struct {
	mu          sync.Mutex
	changed     chan struct{}
	left        int
	suspected   []string
	lost        []string
	failures    []role.Failure
	states      []rpc.WorkerState
	beats       []beat
	checkpoints []int64
	guesses     []beat
	phases      []string
	starved     []time.Duration
	notices     []string
	unreadable  []role.Life
	foreign     uint64
	stepsSet    []rpc.StepSet
	joins       int
	asked       []string
	ending      []string
}

type beat struct {
	life    role.Life
	step    int64
	hasStep bool
}

func (e *ears) note(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *ears) Joined(rpc.Registration) { e.note(func() { e.joins++ }) }
func (e *ears) Left(rpc.Registration)   { e.note(func() { e.left++ }) }
func (e *ears) Suspected(_ rpc.Registration, why string) {
	e.note(func() { e.suspected = append(e.suspected, why) })
}
func (e *ears) Lost(_ rpc.Registration, why string) {
	e.note(func() { e.lost = append(e.lost, why) })
}
func (e *ears) Beat(l role.Life, step int64, has bool, _ time.Time) {
	e.note(func() { e.beats = append(e.beats, beat{l, step, has}) })
}
func (e *ears) Failed(f role.Failure, _ rpc.ServiceID) {
	e.note(func() { e.failures = append(e.failures, f) })
}
func (e *ears) Worker(_ rpc.ServiceID, w rpc.WorkerState) {
	e.note(func() { e.states = append(e.states, w) })
}
func (e *ears) Guess(l role.Life, step int64, _ time.Time) {
	e.note(func() { e.guesses = append(e.guesses, beat{l, step, true}) })
}
func (e *ears) Phase(_ role.Life, name string, begin bool, _ time.Time) {
	e.note(func() { e.phases = append(e.phases, map[bool]string{true: "+", false: "-"}[begin]+name) })
}
func (e *ears) Starved(_ role.Life, waited time.Duration) {
	e.note(func() { e.starved = append(e.starved, waited) })
}
func (e *ears) Notice(_ role.Life, text string) {
	e.note(func() { e.notices = append(e.notices, text) })
}
func (e *ears) Foreign(_ role.Life, datagrams uint64) {
	e.note(func() { e.foreign += datagrams })
}

func (e *ears) StepSet(_ rpc.ServiceID, s rpc.StepSet) {
	e.note(func() { e.stepsSet = append(e.stepsSet, s) })
}

func (e *ears) Unreadable(l role.Life) {
	e.note(func() { e.unreadable = append(e.unreadable, l) })
}
func (e *ears) Asked(_ rpc.Registration, what string) {
	e.note(func() { e.asked = append(e.asked, what) })
}
func (e *ears) Ending(_ rpc.Registration, signal string) {
	e.note(func() { e.ending = append(e.ending, signal) })
}
func (e *ears) Checkpoint(_ role.Life, step int64, _ time.Time) {
	e.note(func() { e.checkpoints = append(e.checkpoints, step) })
}

// wishes returns what operators have asked for, and the signals that the service ends because of.
func (e *ears) wishes() (asked, ending []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asked), slices.Clone(e.ending)
}

// failed returns the failures heard until now.
func (e *ears) failed() []role.Failure {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.failures)
}

// told returns the states heard until now.
func (e *ears) told() []rpc.WorkerState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.states)
}

// troubles returns whatever made the hub doubt the service.
func (e *ears) troubles() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append(slices.Clone(e.suspected), e.lost...)
}

// await waits until ok holds.
func (e *ears) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		e.mu.Lock()
		done, changed := ok(), e.changed
		e.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			e.mu.Lock()
			defer e.mu.Unlock()
			t.Fatalf("waited %s for %s; heard failures %+v, states %+v, beats %+v", patience, what, e.failures, e.states, e.beats)
		}
	}
}

func (e *ears) awaitState(t *testing.T, rank int, state role.WorkerState) rpc.WorkerState {
	t.Helper()
	var found rpc.WorkerState
	e.await(t, fmt.Sprintf("rank %d %s", rank, state), func() bool {
		for _, w := range slices.Backward(e.states) {
			if w.Life.Rank == rank && w.State == state {
				found = w
				return true
			}
		}
		return false
	})
	return found
}

func (e *ears) awaitFailure(t *testing.T, n int) role.Failure {
	t.Helper()
	e.await(t, fmt.Sprintf("failure %d", n), func() bool { return len(e.failures) >= n })
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failures[n-1]
}
