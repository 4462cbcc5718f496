package health_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/role"
)

// heard collects what a store records.
type heard struct {
	mu     sync.Mutex
	events []event.Event
}

func (h *heard) record(e event.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, e)
}

func (h *heard) kinds() []event.Kind {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []event.Kind
	for _, e := range h.events {
		out = append(out, e.Kind)
	}
	return out
}

func lifeOf(name role.Name, inc, rank int) role.Life {
	return role.Life{Job: uid, Role: name, Incarnation: inc, Rank: rank, Attempt: 1}
}

func newStore(h *heard, specs ...health.Spec) *health.Store {
	s := health.NewStore(uid, time.Second, h.record, specs...)
	for _, spec := range specs {
		s.Fence(spec.Name)
		s.Begin(spec.Name, 0)
	}
	return s
}

// shows: R6
func TestAQuestionAboutAnUnknownRoleNamesTheRolesThatExist(t *testing.T) {
	s := newStore(&heard{}, critic(1, learned), health.Spec{Name: "actor", Workers: 1})
	_, err := s.Record("crtic")
	if err == nil || !strings.Contains(err.Error(), `"crtic"`) || !strings.Contains(err.Error(), "critic, actor") {
		t.Errorf("the error says %v", err)
	}
	if err := s.AwaitReady(t.Context(), "crtic", 1); err == nil {
		t.Error("a wait for nobody succeeded")
	}
	if h := s.Report(role.Failure{Life: role.Life{Role: "crtic", Rank: role.NoRank}}); h != health.HeardStale {
		t.Errorf("a report about nobody was heard as %s", h)
	}
}

// shows: R46 R4
func TestTheStoreTellsAllRecordsInTheOrderOfTheJobAndTheirCounts(t *testing.T) {
	s := newStore(&heard{}, critic(2, learned), health.Spec{Name: "actor", Workers: 1}, health.Spec{Name: "data", Workers: 1})
	s.Report(role.Failure{Life: lifeOf("actor", 1, 0), Cause: role.Reported, Detail: "x"})
	s.SetRestarts("actor", 2)
	recs, c := s.Records()
	var names []role.Name
	for _, r := range recs {
		names = append(names, r.Name)
	}
	if !slices.Equal(names, []role.Name{"critic", "actor", "data"}) || !slices.Equal(names, s.Names()) {
		t.Errorf("records of %v", names)
	}
	if c.Roles != 3 || c.Healthy != 2 || c.Unhealthy != 1 || recs[1].RestartCount != 2 || recs[1].Error != "x" {
		t.Errorf("counts %+v, actor %+v", c, recs[1])
	}
}

func TestARecordIsACopy(t *testing.T) {
	s := newStore(&heard{}, critic(1, learned))
	r, _ := s.Record("critic")
	r.Ranks[0].State = role.WorkerFinished
	if again, _ := s.Record("critic"); again.Ranks[0].State == role.WorkerFinished {
		t.Error("a reader has changed the store")
	}
}

// shows: R34 R53
func TestTheStoreRecordsFirstStepsGoingBackAndStaleWords(t *testing.T) {
	for _, c := range []struct {
		stateful bool
		behind   event.Kind
	}{{false, event.StepWentBack}, {true, event.StateBehind}} {
		h := &heard{}
		spec := critic(1, learned)
		spec.Stateful = c.stateful
		s := newStore(h, spec)
		one, zero := int64(1), int64(0)
		s.Beat(lifeOf("critic", 1, 0), &one, time.Now())
		s.Beat(lifeOf("critic", 1, 0), &one, time.Now())
		s.Fence("critic")
		s.Begin("critic", 1)
		s.Beat(lifeOf("critic", 1, 0), &one, time.Now())
		s.Beat(lifeOf("critic", 2, 0), nil, time.Now())
		s.Beat(lifeOf("critic", 2, 0), &zero, time.Now())
		if want := []event.Kind{event.FirstStep, event.Stale, event.FirstStep, c.behind}; !slices.Equal(h.kinds(), want) {
			t.Errorf("recorded %v, want %v", h.kinds(), want)
		}
	}
}

func TestWorkersAreRecordedWhenTheyChangeAndTheRoleWhenAllAreReady(t *testing.T) {
	h := &heard{}
	s := newStore(h, critic(2, learned))
	for _, state := range []role.WorkerState{role.WorkerStarting, role.WorkerReady, role.WorkerReady} {
		s.Worker(lifeOf("critic", 1, 0), 100, state, "")
	}
	if r, _ := s.Record("critic"); r.Ready {
		t.Error("the role is ready with one of two workers")
	}
	s.Worker(lifeOf("critic", 1, 1), 101, role.WorkerReady, "")
	s.Worker(lifeOf("critic", 9, 1), 101, role.WorkerReady, "")
	s.Worker(lifeOf("critic", 1, 2), 101, role.WorkerReady, "")
	want := []event.Kind{event.WorkerStarted, event.WorkerReady, event.WorkerReady, event.RoleReady, event.Stale, event.Stale}
	if !slices.Equal(h.kinds(), want) {
		t.Errorf("recorded %v, want %v", h.kinds(), want)
	}
}

func TestAWaitForAReadyRoleEndsWhenItIsReadyOrItsLifeIsOverOrItsContextEnds(t *testing.T) {
	s := newStore(&heard{}, critic(2, learned))
	await := func(ctx context.Context, inc int) chan error {
		done := make(chan error, 1)
		go func() { done <- s.AwaitReady(ctx, "critic", inc) }()
		return done
	}
	ready := await(t.Context(), 1)
	s.Worker(lifeOf("critic", 1, 0), 1, role.WorkerReady, "")
	s.Worker(lifeOf("critic", 1, 1), 2, role.WorkerReady, "")
	if err := <-ready; err != nil {
		t.Error(err)
	}
	s.Fence("critic")
	s.Begin("critic", 0)
	over := await(t.Context(), 2)
	s.Fence("critic")
	if err := <-over; err == nil || !strings.Contains(err.Error(), "incarnation 2 is over") {
		t.Errorf("the wait for a life that is over said %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := await(ctx, 3)
	why := errors.New("enough")
	cancel(why)
	if err := <-ended; !errors.Is(err, why) {
		t.Errorf("the wait said %v", err)
	}
}

// shows: R42
func TestTheStoreCanBeUsedFromManyGoroutines(t *testing.T) {
	s := newStore(&heard{}, critic(8, learned), health.Spec{Name: "actor", Workers: 8, Limits: learned})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for n := range int64(50) {
				l := lifeOf([]role.Name{"critic", "actor"}[i%2], 1+int(n)/10, i)
				s.Beat(l, &n, time.Now())
				s.Worker(l, i, role.WorkerReady, "busy")
				s.Checkpoint(l, n)
				s.Report(role.Failure{Life: l, Cause: role.Reported, Detail: fmt.Sprint(n)})
				s.Sweep(time.Now())
				s.Records()
				s.Standing("critic")
				s.Pause("critic", time.Millisecond)
				s.Resume("critic")
				if i == 0 && n%10 == 9 {
					s.Fence("critic")
					s.StopWatching("critic")
					s.SetStep("critic", n)
					s.Begin("critic", n)
				}
			}
		})
	}
	group.Wait()
	if r, err := s.Record("critic"); err != nil || r.Incarnation != 6 {
		t.Errorf("record %+v, %v", r, err)
	}
}

// BenchmarkSweep sweeps one role of 10,000 ranks that all speak; the target is under a millisecond.
func BenchmarkSweep(b *testing.B) {
	const ranks = 10_000
	t := health.NewTable(uid, time.Second, noon, critic(ranks, learned))
	t.Fence("critic", noon)
	t.Begin("critic", 0, noon)
	step := int64(1)
	for r := range ranks {
		for i := range 5 {
			t.Beat(health.Word{Life: lifeOf("critic", 1, r), Step: &step, At: noon.Add(time.Duration(i) * time.Second)}, noon)
		}
	}
	for b.Loop() {
		if f := t.Sweep(noon.Add(5 * time.Second)); !f.Empty() {
			b.Fatalf("found %d", len(f.Failures))
		}
	}
}

// BenchmarkBeat takes in heartbeats of 10,000 ranks in turn.
func BenchmarkBeat(b *testing.B) {
	const ranks = 10_000
	s := newStore(&heard{}, critic(ranks, learned))
	step := int64(0)
	for i := 0; b.Loop(); i++ {
		step = int64(i)
		s.Beat(lifeOf("critic", 1, i%ranks), &step, time.Now())
	}
}

// shows: A28
func TestThatAWorkerDoesNotAnswerIsNotTakenDuringAPauseAndIsAfterIt(t *testing.T) {
	s := newStore(&heard{}, critic(1, learned))
	mute := role.Failure{Life: lifeOf("critic", 1, 0), Cause: role.Stuck, Detail: "its alive probe has failed"}
	s.Pause("critic", time.Hour)
	if h := s.Report(mute); h != health.HeardNext {
		t.Errorf("heard as %s", h)
	}
	if f := s.Sweep(time.Now()); len(f.Failures) > 0 {
		t.Errorf("found %v", f.Failures)
	}
	s.Resume("critic")
	if h := s.Report(mute); h != health.HeardFirst {
		t.Errorf("after the pause it is heard as %s", h)
	}
}

// shows: A22 A23
func TestWhatIsOddOfPhasesAndWhoIsSuspectIsRecordedAndNoFailure(t *testing.T) {
	var h heard
	limits := learned
	limits.Start, limits.Floor = time.Hour, time.Minute
	s := newStore(&h, critic(1, limits))
	life, now := lifeOf("critic", 1, 0), time.Now()
	s.Phase(life, "eval", false, now.Add(-11*time.Minute))
	s.Phase(lifeOf("critic", 7, 0), "eval", true, now)
	s.Starved(life, 100*time.Millisecond)
	s.Starved(life, 100*time.Millisecond)
	for i := range int64(5) {
		s.Guess(life, i, now.Add(-10*time.Minute+time.Duration(i)*time.Second))
	}
	s.Sweep(now)
	if f := s.Sweep(now); len(f.Failures) > 0 {
		t.Errorf("found %v", f.Failures)
	}
	want := []event.Kind{event.PhaseOdd, event.Stale, event.Starved, event.FirstStep, event.Suspected}
	if got := h.kinds(); !slices.Equal(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
}
