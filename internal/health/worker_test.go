package health_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/role"
)

// attempt is a later attempt of a worker of the critic.
func (b *bed) attempt(rank, n int) role.Life {
	l := b.life(rank)
	l.Attempt = n
	return l
}

func (b *bed) says(life role.Life, step int64) health.Heard {
	return b.Beat(health.Word{Life: life, Step: &step, At: b.now}, b.now)
}

// alone is a critic of three workers, of which rank 1 has failed and is fenced.
func alone(t *testing.T, change func(*health.Spec)) *bed {
	spec := critic(3, explicit)
	if change != nil {
		change(&spec)
	}
	b := newBed(t, spec)
	for rank := range 3 {
		b.Worker(b.life(rank), 100+rank, role.WorkerReady, "")
		b.beat(rank, 10)
	}
	b.Report(role.Failure{Life: b.life(1), Cause: role.Exited, Detail: "exit code 3"})
	b.sweep()
	if got := b.FenceWorker("critic", 1, b.now); got != 2 {
		t.Fatalf("attempt %d, want 2", got)
	}
	return b
}

func TestAFencedWorkerIsNotJudgedAndItsPeersAre(t *testing.T) {
	b := alone(t, nil)
	if n := b.Available("critic"); n != 2 {
		t.Errorf("%d are available, want 2", n)
	}
	b.pass(time.Minute)
	b.beat(0, 11)
	b.pass(90 * time.Second)
	if len(b.found) != 2 || b.found[1].Life.Rank != 2 || b.found[1].Cause != role.Silent {
		t.Errorf("found %+v, want the silence of rank 2 only", b.found[1:])
	}
}

// shows: A30
func TestWordOfAnEarlierAttemptChangesNothing(t *testing.T) {
	b := alone(t, nil)
	b.BeginWorker("critic", 1, 7, b.now)
	if got := b.says(b.attempt(1, 1), 99); got != health.HeardStale {
		t.Errorf("a late heartbeat was heard as %s", got)
	}
	if got := b.Report(role.Failure{Life: b.attempt(1, 1), Cause: role.Reported}); got != health.HeardStale {
		t.Errorf("a late report was heard as %s", got)
	}
	if b.Worker(b.attempt(1, 1), 1, role.WorkerDown, "") {
		t.Error("a late state was taken")
	}
	if got := b.says(b.attempt(1, 2), 8); got != health.HeardFirst {
		t.Errorf("the first word of the second attempt was heard as %s", got)
	}
	if got := b.says(b.attempt(1, 2), 9); got != health.HeardNext {
		t.Errorf("the second word of the second attempt was heard as %s", got)
	}
	if r := b.record("critic"); !r.Healthy || r.CurrentStep != 9 || r.Ranks[1].Life.Attempt != 2 {
		t.Errorf("record %+v", r)
	}
}

func TestAnAttemptThatBeginsBelowWhereItWasToldIsSaid(t *testing.T) {
	b := alone(t, nil)
	b.BeginWorker("critic", 1, 7, b.now)
	if got := b.says(b.attempt(1, 2), 3); got != health.HeardWentBack {
		t.Errorf("heard as %s", got)
	}
}

func TestARoleIsHealthyAgainWhenTheLastOfItsFailedWorkersHasBegun(t *testing.T) {
	b := alone(t, nil)
	b.Report(role.Failure{Life: b.life(2), Cause: role.Exited, Detail: "exit code 4"})
	b.BeginWorker("critic", 1, 10, b.now)
	if b.record("critic").Healthy {
		t.Error("it is healthy, and rank 2 has failed")
	}
	b.FenceWorker("critic", 2, b.now)
	b.BeginWorker("critic", 2, 10, b.now)
	if r := b.record("critic"); !r.Healthy || r.Error != "" {
		t.Errorf("healthy %v, error %q", r.Healthy, r.Error)
	}
	if f := b.sweep(); len(f.Failures) != 0 {
		t.Errorf("found %+v of a life that was fenced", f.Failures)
	}
}

func TestAQuarantinedWorkerIsReadyWhenItIsAdmittedAndNotBefore(t *testing.T) {
	b := alone(t, func(s *health.Spec) { s.Rejoin = job.RejoinManual })
	b.BeginWorker("critic", 1, 10, b.now)
	if r := b.record("critic"); !r.Ranks[1].Held || r.Ranks[0].Held {
		t.Errorf("that it will be quarantined is not known before it is ready: %+v", r.Ranks)
	}
	if is, _, ok := b.Admit("critic", 1); ok || is != role.WorkerStarting {
		t.Errorf("a worker that is not ready was admitted (%s)", is)
	}
	b.Worker(b.attempt(1, 2), 201, role.WorkerReady, "")
	if r := b.record("critic"); r.Ranks[1].State != role.WorkerQuarantined || r.Available != 2 || r.Ranks[0].State != role.WorkerReady || !r.Ready {
		t.Errorf("record %+v", r)
	}
	b.pass(time.Hour) // it is watched: explicit limits hold for it too
	if len(b.found) < 2 {
		t.Errorf("found %+v", b.found)
	}
	b = alone(t, func(s *health.Spec) { s.Rejoin = job.RejoinManual })
	b.BeginWorker("critic", 1, 10, b.now)
	b.Worker(b.attempt(1, 2), 201, role.WorkerReady, "")
	if _, changed, ok := b.Admit("critic", 1); !ok || !changed || b.Available("critic") != 3 {
		t.Errorf("admitted: %v, changed %v, %d available", ok, changed, b.Available("critic"))
	}
	if _, changed, ok := b.Admit("critic", 1); !ok || changed {
		t.Errorf("once more: %v, changed %v", ok, changed)
	}
	if _, _, ok := b.Admit("critic", 7); ok {
		t.Error("a worker that is not there was admitted")
	}
}

// shows: A28
func TestOneWorkerCanBePausedAndThePauseIsNotItsSilence(t *testing.T) {
	b := newBed(t, critic(2, explicit))
	b.beat(0, 1)
	b.beat(1, 1)
	b.PauseWorker("critic", 1, b.now.Add(10*time.Minute), b.now)
	if r := b.record("critic"); !r.Ranks[1].Paused || r.Ranks[0].Paused {
		t.Errorf("ranks %+v", r.Ranks)
	}
	for range 5 {
		b.pass(time.Minute)
		b.beat(0, 2)
	}
	b.ResumeWorker("critic", 1, b.now)
	b.pass(119 * time.Second)
	if len(b.found) != 0 {
		t.Fatalf("found %+v", b.found)
	}
	b.beat(0, 3)
	b.pass(3 * time.Second)
	if len(b.found) != 1 || b.found[0].Life.Rank != 1 {
		t.Errorf("found %+v, want the silence of rank 1", b.found)
	}
}

func TestANewControllerKnowsWhatWasSaidToTheOneBefore(t *testing.T) {
	b := &bed{TB: t, Table: health.NewTable(uid, time.Second, noon, critic(2, explicit)), now: noon}
	b.Restore("critic", health.Before{Incarnation: 4, Attempts: map[int]int{1: 3}, Quarantined: []int{1}, Step: 40, Saved: health.Saved{Whole: 30}, Was: health.AtWork}, b.now)
	b.sweep()
	first, second := b.life(0), b.attempt(1, 3)
	if first.Incarnation != 4 {
		t.Fatalf("life %s", first)
	}
	for i, l := range []role.Life{first, second} {
		if !b.Worker(l, 100+i, role.WorkerReady, "") {
			t.Errorf("%s is not known", l)
		}
	}
	step := int64(55)
	b.Recall(first, health.Past{At: b.now.Add(-100 * time.Second), Step: &step, Phases: []health.PastPhase{{Name: "step", Began: b.now.Add(-90 * time.Second)}}}, b.now)
	r := b.record("critic")
	if r.CurrentStep != 55 || r.Checkpoint != 30 || r.Ranks[0].Age != 100*time.Second || len(r.Ranks[0].Phases) != 1 || r.Ranks[1].State != role.WorkerQuarantined {
		t.Errorf("record %+v", r)
	}
	b.pass(21 * time.Second)
	if len(b.found) != 1 || b.found[0].Life != first || b.found[0].Cause != role.Silent {
		t.Errorf("found %+v, want the silence of rank 0, which began before the change", b.found)
	}
	if got := b.says(first, 56); got != health.HeardNext {
		t.Errorf("its next word is heard as %s", got)
	}
	b.Recall(first, health.Past{At: b.now.Add(-time.Hour)}, b.now) // told again with a new session
	if age := b.record("critic").Ranks[0].Age; age != 0 {
		t.Errorf("its last word is now %s old", age)
	}
}

// What a stream lost when it broke is told again with the next session: a heartbeat, that a phase has begun, that one has
// ended. The gap over a time in which nobody listened teaches nothing.
//
// shows: FAULT-D1
func TestWordsThatAStreamLostAreTakenInWithTheNextSession(t *testing.T) {
	b := newBed(t, critic(1, learned))
	first := b.life(0)
	b.says(first, 1)
	b.Phase(first, "epoch", true, b.now, b.now)
	b.Phase(first, "eval", true, b.now, b.now)
	epoch := b.now
	limit := b.record("critic").Limit
	b.pass(20 * time.Minute)
	step := int64(9)
	b.Recall(first, health.Past{At: b.now.Add(-10 * time.Second), Step: &step, Phases: []health.PastPhase{{Name: "epoch", Began: epoch}, {Name: "save", Began: b.now.Add(-5 * time.Second)}}}, b.now)
	r := b.record("critic")
	if k := r.Ranks[0]; k.Step != 9 || k.Age != 10*time.Second {
		t.Errorf("step %d, age %s", k.Step, k.Age)
	}
	var open []string
	for _, p := range r.Ranks[0].Phases {
		open = append(open, fmt.Sprint(p.Name, " ", p.Age))
	}
	if want := []string{"epoch 20m0s", "save 5s"}; !slices.Equal(open, want) {
		t.Errorf("open phases %q, want %q", open, want)
	}
	if r.Limit != limit {
		t.Errorf("the limit went from %s to %s", limit, r.Limit)
	}
}
