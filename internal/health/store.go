package health

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// Store shares one Table. Its methods may be called from any goroutine, return quickly and hold no
// lock while they tell anybody.
type Store struct {
	mu      sync.Mutex
	table   *Table
	wake    chan struct{}
	changed chan struct{} // closed and replaced whenever somebody may have become ready or unwell
	record  func(event.Event)
}

// NewStore returns a store over a fresh table; see NewTable. record is told what was heard; it may
// be nil.
func NewStore(jobUID string, interval time.Duration, record func(event.Event), specs ...Spec) *Store {
	if record == nil {
		record = func(event.Event) {}
	}
	return &Store{table: NewTable(jobUID, interval, time.Now(), specs...), wake: make(chan struct{}, 1), changed: make(chan struct{}), record: record}
}

// Wake carries a value when there is a failure or an end that the next tick need not be waited for.
func (s *Store) Wake() <-chan struct{} { return s.wake }

// Sweep judges every role now.
func (s *Store) Sweep(now time.Time) Findings {
	s.mu.Lock()
	found := s.table.Sweep(now)
	if !found.Empty() {
		s.change()
	}
	s.mu.Unlock()
	if found.Blind > 0 {
		e := event.New(now, event.Blind)
		e.Took, e.Detail = found.Blind, fmt.Sprintf("%s credited to every role", round(found.Blind))
		s.record(e)
	}
	for _, k := range found.Suspects {
		s.record(about(now, event.Suspected, k.Life, k.Detail))
	}
	return found
}

// about returns an event that concerns one worker life.
func about(at time.Time, kind event.Kind, life role.Life, detail string) event.Event {
	e := event.New(at, kind)
	e.Role, e.Incarnation, e.Rank, e.Attempt, e.Detail = life.Role, life.Incarnation, life.Rank, life.Attempt, detail
	return e
}

// change wakes those who wait for a change. The lock is held.
func (s *Store) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Store) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Beat takes in a heartbeat. step is nil for a sign of life without one.
func (s *Store) Beat(life role.Life, step *int64, at time.Time) Heard {
	return s.beat(Word{Life: life, Step: step, At: at})
}

// Guess takes in a step that was guessed from output, a file or a hook. The silence of a worker whose
// steps are only guessed makes it suspect before it is a failure.
func (s *Store) Guess(life role.Life, step int64, at time.Time) Heard {
	return s.beat(Word{Life: life, Step: &step, At: at, Guessed: true})
}

func (s *Store) beat(w Word) Heard {
	now := time.Now()
	s.mu.Lock()
	heard := s.table.Beat(w, now)
	off, stateful := s.table.off, false
	if len(off) > 0 {
		stateful = s.table.records[w.Life.Role].Stateful
	}
	s.mu.Unlock()
	switch heard {
	case HeardFirst, HeardWentBack:
		e := about(now, event.FirstStep, w.Life, "")
		e.Step = w.Step
		s.record(e)
	case HeardStale:
		s.stale(w.Life, "heartbeat")
	default: // the rule, and what the counts show
	}
	for _, o := range off {
		e := about(now, offKind(o.Kind, stateful), o.Life, o.Detail)
		e.Step = &o.Step
		s.record(e)
	}
	return heard
}

// offKind is the event that a life is which begins off its step.
func offKind(kind OffKind, stateful bool) event.Kind {
	switch {
	case kind == Ahead:
		return event.StepAhead
	case kind == Apart:
		return event.StepsApart
	case stateful:
		return event.StateBehind
	default:
		return event.StepWentBack
	}
}

func (s *Store) stale(life role.Life, what string) {
	s.record(about(time.Now(), event.Stale, life, what))
}

// Report takes in a failure and wakes the checker. A failure without an incarnation concerns the
// role's current life. It reports HeardStale for one of another life. That a worker does not answer is no
// failure while watching is paused; who asks it tells again.
func (s *Store) Report(f role.Failure) Heard {
	now := time.Now()
	if f.At.IsZero() {
		f.At = now
	}
	s.mu.Lock()
	if r, ok := s.table.records[f.Life.Role]; ok && f.Cause == role.Stuck {
		_, k := s.table.peek(f.Life)
		if r.paused(now) || k != nil && k.paused(now) {
			s.mu.Unlock()
			return HeardNext
		}
	}
	heard := s.table.Report(f)
	s.mu.Unlock()
	switch heard {
	case HeardStale:
		s.stale(f.Life, "failure")
	case HeardFirst:
		s.nudge()
	default: // told before
	}
	return heard
}

// Checkpoint says that a rank has saved its work of a step completely.
func (s *Store) Checkpoint(life role.Life, step int64) Heard {
	s.mu.Lock()
	heard := s.table.Checkpoint(life, step)
	s.mu.Unlock()
	if heard == HeardStale {
		s.stale(life, "checkpoint")
		return heard
	}
	e := about(time.Now(), event.Checkpoint, life, "")
	e.Step = &step
	s.record(e)
	return heard
}

// Phase takes in that a worker has entered a phase, or with begin false left it.
func (s *Store) Phase(life role.Life, name string, begin bool, at time.Time) Heard {
	now := time.Now()
	s.mu.Lock()
	heard := s.table.Phase(life, name, begin, at, now)
	s.mu.Unlock()
	switch heard {
	case HeardStale:
		s.stale(life, "phase "+name)
	case HeardNotOpen:
		s.record(about(now, event.PhaseOdd, life, "phase "+name+" was ended and is not open"))
	case HeardTooMany:
		s.record(about(now, event.PhaseOdd, life, fmt.Sprintf("phase %s is not taken: %d are open", name, MaxPhases)))
	default: // the rule
	}
	return heard
}

// Starved takes in for how long lately a silent worker has waited for a CPU.
func (s *Store) Starved(life role.Life, waited time.Duration) Heard {
	now := time.Now()
	s.mu.Lock()
	heard := s.table.Starved(life, waited, now)
	s.mu.Unlock()
	switch heard {
	case HeardStale:
		s.stale(life, "starved")
	case HeardFirst:
		s.record(about(now, event.Starved, life, fmt.Sprintf("it has waited for a CPU for %s; such time is not its silence", round(waited))))
	default: // told before
	}
	return heard
}

// kinds are the events that a worker's coming to a state is.
var kinds = map[role.WorkerState]event.Kind{
	role.WorkerStarting: event.WorkerStarted, role.WorkerReady: event.WorkerReady,
	role.WorkerQuarantined: event.WorkerQuarantined, role.WorkerFinished: event.WorkerFinished,
}

// Worker takes in what a worker is doing.
func (s *Store) Worker(life role.Life, pid int, state role.WorkerState, status string) {
	s.mu.Lock()
	before := role.WorkerState("")
	ready := false
	r, k := s.table.peek(life)
	if k != nil {
		before, ready = k.state, r.ready()
	}
	fresh := s.table.Worker(life, pid, state, status)
	ready = fresh && !ready && r.ready()
	shown := state
	if fresh {
		shown = k.shown()
	}
	s.change()
	s.mu.Unlock()
	if !fresh {
		s.stale(life, "worker "+string(state))
		return
	}
	kind := kinds[shown]
	if kind != "" && before != state || state == role.WorkerStarting {
		e := about(time.Now(), kind, life, "")
		e.PID = pid
		s.record(e)
	}
	if ready {
		e := event.New(time.Now(), event.RoleReady)
		e.Role, e.Incarnation = life.Role, life.Incarnation
		s.record(e)
	}
	if state == role.WorkerFinished {
		s.nudge()
	}
}

// Unready notes what a worker's ready probe met last; see Table.Unready.
func (s *Store) Unready(life role.Life, met string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	s.table.Unready(life, met)
}

// Fence raises the role's incarnation; see Table.Fence.
func (s *Store) Fence(name role.Name) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	return s.table.Fence(name, time.Now())
}

// StopWatching ends judgement of the role's current life.
func (s *Store) StopWatching(name role.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.StopWatching(name)
}

// Begin says that the role's workers are about to run from the given step.
func (s *Store) Begin(name role.Name, step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.Begin(name, step, time.Now())
}

// SetRestarts sets the role's restart count.
func (s *Store) SetRestarts(name role.Name, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.table.records[name]; ok {
		r.restarts = n
	}
}

// Pause stops watching the role for silence for the duration.
func (s *Store) Pause(name role.Name, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.table.Pause(name, now.Add(d), now)
}

// Resume watches the role again.
func (s *Store) Resume(name role.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.Resume(name, time.Now())
}

// Record returns a copy of the role's health; an error names the roles that exist.
func (s *Store) Record(name role.Name) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec, ok := s.table.Record(name, time.Now())
	if !ok {
		return Record{}, s.unknown(name)
	}
	return rec, nil
}

func (s *Store) unknown(name role.Name) error {
	var names []string
	for _, n := range s.table.order {
		names = append(names, string(n))
	}
	return fmt.Errorf("role %q is not in this job; its roles are %s", name, strings.Join(names, ", "))
}

// Records returns a copy of every role's health, in the order of the job, and the counts.
func (s *Store) Records() ([]Record, Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var recs []Record
	for _, n := range s.table.order {
		rec, _ := s.table.Record(n, time.Now())
		recs = append(recs, rec)
	}
	return recs, s.table.Counts()
}

// Names returns the names of all roles, in the order of the job.
func (s *Store) Names() []role.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.table.order)
}

// AwaitReady waits until all workers of the role's life inc are ready. It ends with an error when
// that life is over or ctx ends; that the role is unwell is for the sweep to tell.
func (s *Store) AwaitReady(ctx context.Context, name role.Name, inc int) error {
	for {
		s.mu.Lock()
		r, ok := s.table.records[name]
		over, ready := !ok || r.incarnation != inc, ok && r.ready()
		changed := s.changed
		s.mu.Unlock()
		switch {
		case !ok:
			return s.unknown(name)
		case over:
			return fmt.Errorf("await %s: its incarnation %d is over", name, inc)
		case ready:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("await %s: not ready: %w", name, context.Cause(ctx))
		}
	}
}
