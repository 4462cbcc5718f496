package health_test

import (
	"slices"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/role"
)

func stateful(workers int) health.Spec {
	s := critic(workers, explicit)
	s.Stateful = true
	return s
}

// A line of work that was given up leaves nothing behind: not by an operator's set_step, which the workers have taken or
// the next life begins from, not by a global restart, and of no rank.
// shows: FAULT-B3
func TestACheckpointOfALineThatWasGivenUpIsForgotten(t *testing.T) {
	for name, back := range map[string]func(*bed){
		"by a life from an earlier step":         func(b *bed) { b.restart("critic", 50) },
		"by a step that the workers have taken":  func(b *bed) { b.SetStep("critic", 50) },
		"by a step set between two lives":        func(b *bed) { b.Fence("critic", b.now); b.SetStep("critic", 50); b.Begin("critic", 50, b.now) },
		"by a step set, and a life that follows": func(b *bed) { b.SetStep("critic", 50); b.restart("critic", 50) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, stateful(2))
			for rank := range 2 {
				b.beat(rank, 105)
				b.Checkpoint(b.life(rank), 100)
			}
			back(b)
			if got := b.record("critic"); got.Checkpoint != 50 || got.CurrentStep != 50 {
				t.Errorf("step %d, checkpoint %d, want 50 and what was saved until then", got.CurrentStep, got.Checkpoint)
			}
			b.Checkpoint(b.life(0), 60)
			if got := b.record("critic").Checkpoint; got != 50 {
				t.Errorf("one of two ranks has saved 60: checkpoint %d, want 50", got)
			}
			b.Checkpoint(b.life(1), 60)
			if got := b.record("critic").Checkpoint; got != 60 {
				t.Errorf("the new line has saved 60: checkpoint %d", got)
			}
		})
	}
}

// shows: FAULT-B7
func TestWhoseWordMakesACheckpoint(t *testing.T) {
	type save struct {
		rank int
		step int64
		want int64
	}
	for name, c := range map[string]struct {
		workers int
		by      job.SavedBy
		saves   []save
	}{
		"one shard of four is no checkpoint": {4, job.SavedByAll, []save{{0, 100, -1}}},
		"nor are three":                      {4, job.SavedByAll, []save{{0, 100, -1}, {2, 100, -1}, {3, 100, -1}}},
		"all four are":                       {4, job.SavedByAll, []save{{0, 100, -1}, {2, 100, -1}, {3, 100, -1}, {1, 100, 100}}},
		"a second step of one shows that only one reports":       {4, job.SavedByAll, []save{{0, 100, -1}, {0, 200, 200}, {0, 300, 300}}},
		"until another says that it reports too":                 {4, job.SavedByAll, []save{{0, 100, -1}, {0, 200, 200}, {1, 100, 100}, {1, 200, 200}}},
		"a step said twice is one":                               {4, job.SavedByAll, []save{{0, 100, -1}, {0, 100, -1}, {0, 90, -1}}},
		"with by rank0 its word is enough":                       {4, job.SavedByRank0, []save{{0, 100, 100}}},
		"and nobody else's is":                                   {4, job.SavedByRank0, []save{{1, 100, -1}, {0, 50, 50}, {2, 200, 50}}},
		"a role of one worker has none to wait for":              {1, job.SavedByAll, []save{{0, 100, 100}, {0, 200, 200}}},
		"without the key all ranks are waited for":               {2, "", []save{{1, 10, -1}, {0, 10, 10}}},
		"the slowest of those who report makes the checkpoint":   {3, job.SavedByAll, []save{{0, 10, -1}, {0, 20, 20}, {1, 10, 10}, {0, 30, 10}, {1, 30, 30}}},
		"a rank that is late with its first holds back the role": {2, job.SavedByAll, []save{{1, 10, -1}, {1, 20, 20}, {1, 30, 30}, {0, 10, 10}}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := stateful(c.workers)
			spec.SavedBy = c.by
			b := newBed(t, spec)
			for _, s := range c.saves {
				b.Checkpoint(b.life(s.rank), s.step)
				if got := b.record("critic").Checkpoint; got != s.want {
					t.Fatalf("rank %d saved %d: checkpoint %d, want %d", s.rank, s.step, got, s.want)
				}
			}
		})
	}
}

// Who reports checkpoints is known to a later controller too.
// shows: FAULT-B7
func TestWhoReportsCheckpointsIsKnownToALaterController(t *testing.T) {
	s := newStore(&heard{}, stateful(4))
	life := func(rank int) role.Life { return lifeOf("critic", 1, rank) }
	s.Checkpoint(life(0), 100)
	restored := func() *health.Store {
		next := newStore(&heard{}, stateful(4))
		next.Restore("critic", health.Before{Incarnation: 1, Step: 105, Saved: s.Saved("critic"), Was: health.AtWork})
		return next
	}
	next := restored()
	if _, saved := next.Standing("critic"); saved != -1 {
		t.Errorf("one shard of four is a checkpoint after a takeover: %d", saved)
	}
	next.Checkpoint(life(0), 200)
	if _, saved := next.Standing("critic"); saved != 200 {
		t.Errorf("only rank 0 reports: checkpoint %d, want 200", saved)
	}
	s.Checkpoint(life(0), 200)
	next = restored()
	next.Checkpoint(life(0), 300)
	if _, saved := next.Standing("critic"); saved != 300 {
		t.Errorf("only rank 0 has ever reported: checkpoint %d, want 300", saved)
	}
}

// shows: FAULT-B9
func TestAFinishedRankDoesNotHoldBackItsRole(t *testing.T) {
	b := newBed(t, critic(3, explicit))
	b.beat(0, 3)
	b.Worker(b.life(0), 100, role.WorkerFinished, "")
	if got := b.record("critic").CurrentStep; got != 3 {
		t.Errorf("step %d while nobody else has spoken, want 3", got)
	}
	b.beat(1, 105)
	b.beat(2, 104)
	if got := b.record("critic").CurrentStep; got != 104 {
		t.Errorf("step %d, want that of those who go on, 104", got)
	}
	b.Fence("critic", b.now)
	if got := b.Reached("critic", map[int]int64{0: 3, 1: 106, 2: 104}); got != 104 {
		t.Errorf("its next life goes on from %d, want 104", got)
	}
	b.restart("critic", 104)
	for rank, step := range []int64{110, 120, 130} {
		b.beat(rank, step)
		b.Worker(b.life(rank), 100, role.WorkerFinished, "")
	}
	if got := b.record("critic").CurrentStep; got != 110 {
		t.Errorf("all have ended well: step %d, want the least, 110", got)
	}
}

// shows: FAULT-B9
func TestAWorkerThatIsRestartedAloneGoesOnFromItsOwnStep(t *testing.T) {
	b := newBed(t, critic(3, explicit))
	b.beat(0, 102)
	b.beat(1, 5)
	b.FenceWorker("critic", 0, b.now)
	if got := b.WorkerStep("critic", 0); got != 102 {
		t.Errorf("rank 0 goes on from %d, want 102", got)
	}
	b.BeginWorker("critic", 0, 102, b.now)
	b.FenceWorker("critic", 0, b.now) // it died before its first word
	if got := b.WorkerStep("critic", 0); got != 102 {
		t.Errorf("it goes on from %d after a life without a word, want 102", got)
	}
	if got := b.WorkerStep("critic", 2); got != 0 {
		t.Errorf("rank 2, which has said nothing, goes on from %d, want what it was given", got)
	}
}

// What workers have said to the controller counts as what they have said to their service, and the other way round.
// shows: FAULT-B1
func TestTheNewestStepCountsWhoeverHasHeardIt(t *testing.T) {
	for name, c := range map[string]struct {
		heard, spoken map[int]int64
		want          int64
	}{
		"nobody has heard anything":              {nil, nil, 20},
		"only the controller has":                {map[int]int64{0: 31}, nil, 31},
		"only the service has":                   {nil, map[int]int64{0: 31}, 31},
		"the controller has heard more":          {map[int]int64{0: 31}, map[int]int64{0: 25}, 31},
		"the service has heard more":             {map[int]int64{0: 30}, map[int]int64{0: 31}, 31},
		"each has heard another rank":            {map[int]int64{0: 31}, map[int]int64{1: 29}, 29},
		"of each rank the newest, and the least": {map[int]int64{0: 31, 1: 28}, map[int]int64{0: 25, 1: 33}, 31},
		"a rank that the role does not have":     {map[int]int64{0: 31}, map[int]int64{7: 1}, 31},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, critic(2, explicit))
			b.restart("critic", 20)
			for rank, step := range c.heard {
				b.beat(rank, step)
			}
			b.Fence("critic", b.now)
			for range 2 { // a repair that is begun again asks again
				if got := b.Reached("critic", c.spoken); got != c.want || b.record("critic").CurrentStep != c.want {
					t.Errorf("reached %d, and it is shown at %d, want %d", got, b.record("critic").CurrentStep, c.want)
				}
				b.Fence("critic", b.now)
			}
		})
	}
}

// A program that says no steps shows by its checkpoints how far it has come. It goes on from there, and what it has saved
// is not taken for a line that was given up.
// shows: FAULT-B3
func TestARoleThatSaysNoStepsGoesOnFromWhatItHasSaved(t *testing.T) {
	b := newBed(t, stateful(2))
	for _, saved := range []int64{40, 60} {
		for rank := range 2 {
			b.Checkpoint(b.life(rank), saved)
		}
	}
	want := func(when string) {
		t.Helper()
		if got := b.record("critic"); got.CurrentStep != 60 || got.Checkpoint != 60 {
			t.Errorf("%s: step %d, checkpoint %d, want 60 and 60", when, got.CurrentStep, got.Checkpoint)
		}
	}
	want("in its first life")
	b.Fence("critic", b.now)
	step := b.Reached("critic", nil)
	b.restart("critic", step)
	want("restarted in place")
	b.restart("critic", 50)
	if got := b.record("critic"); got.CurrentStep != 50 || got.Checkpoint != 50 {
		t.Errorf("set back to 50: step %d, checkpoint %d", got.CurrentStep, got.Checkpoint)
	}
	b.beat(0, 51)
	b.Checkpoint(b.life(1), 90)
	if got := b.record("critic").CurrentStep; got != 51 {
		t.Errorf("a rank has said 51: step %d", got)
	}
}

// offs plays lives on a store and returns what is said of where they begin.
func offs(t *testing.T, play func(*health.Store), specs ...health.Spec) []string {
	t.Helper()
	h := &heard{}
	s := newStore(h, specs...)
	play(s)
	var said []string
	for _, e := range h.events {
		if slices.Contains([]event.Kind{event.StepWentBack, event.StateBehind, event.StepAhead, event.StepsApart}, e.Kind) {
			said = append(said, e.String())
		}
	}
	return said
}

func next(s *health.Store, name role.Name, given int64) {
	s.Fence(name)
	s.Begin(name, given)
}

func says(s *health.Store, name role.Name, inc, rank int, steps ...int64) {
	for _, n := range steps {
		s.Beat(lifeOf(name, inc, rank), &n, time.Now())
	}
}

// shows: FAULT-B5 FAULT-B6 FAULT-B10
func TestALifeThatBeginsOffItsStepIsSaidOnce(t *testing.T) {
	two := critic(2, learned)
	actor := critic(1, learned)
	actor.Name = "actor"
	for name, c := range map[string]struct {
		specs []health.Spec
		play  func(*health.Store)
		want  []string
	}{
		"at its step": {[]health.Spec{two}, func(s *health.Store) {
			next(s, "critic", 24)
			says(s, "critic", 2, 0, 25, 26)
			says(s, "critic", 2, 1, 24, 25)
		}, nil},
		"behind": {[]health.Spec{two}, func(s *health.Store) {
			next(s, "critic", 24)
			says(s, "critic", 2, 0, 1, 2, 3)
		}, []string{`step_went_back role=critic inc=2 rank=0 step=1 detail="given step 24, began at 1"`}},
		"a later rank behind": {[]health.Spec{two}, func(s *health.Store) {
			next(s, "critic", 24)
			says(s, "critic", 2, 0, 25, 26)
			says(s, "critic", 2, 1, 1, 2)
		}, []string{`step_went_back role=critic inc=2 rank=1 step=1 detail="given step 24, began at 1"`}},
		"all ranks at the same step behind": {[]health.Spec{two}, func(s *health.Store) {
			next(s, "critic", 24)
			says(s, "critic", 2, 0, 16, 17)
			says(s, "critic", 2, 1, 16, 17)
		}, []string{`step_went_back role=critic inc=2 rank=0 step=16 detail="given step 24, began at 16"`}},
		"again in the next life": {[]health.Spec{two}, func(s *health.Store) {
			next(s, "critic", 24)
			says(s, "critic", 2, 0, 16)
			next(s, "critic", 24)
			says(s, "critic", 3, 0, 16)
		}, []string{`step_went_back role=critic inc=2 rank=0 step=16 detail="given step 24, began at 16"`, `step_went_back role=critic inc=3 rank=0 step=16 detail="given step 24, began at 16"`}},
		"ahead": {[]health.Spec{two}, func(s *health.Store) {
			next(s, "critic", 24)
			says(s, "critic", 2, 0, 525, 526, 527)
			says(s, "critic", 2, 1, 525, 526)
		}, []string{`step_ahead role=critic inc=2 rank=0 step=525 detail="given step 24, began at 525"`}},
		"one word in ten steps is not ahead": {[]health.Spec{two}, func(s *health.Store) {
			next(s, "critic", 24)
			says(s, "critic", 2, 0, 30, 40, 50)
		}, nil},
		"a first life from a checkpoint of its own": {[]health.Spec{two}, func(s *health.Store) {
			says(s, "critic", 1, 0, 501, 502)
			says(s, "critic", 1, 1, 501, 502)
		}, nil},
		"ranks of a first life apart": {[]health.Spec{two}, func(s *health.Store) {
			says(s, "critic", 1, 0, 501, 502)
			says(s, "critic", 1, 1, 1, 2, 3)
		}, []string{`steps_apart role=critic inc=1 rank=1 step=1 detail="began at step 1, critic at 501"`}},
		"roles of a first life apart": {[]health.Spec{two, actor}, func(s *health.Store) {
			says(s, "critic", 1, 0, 451, 452)
			says(s, "actor", 1, 0, 501, 502)
		}, []string{`steps_apart role=actor inc=1 rank=0 step=501 detail="began at step 501, critic at 451"`}},
		"roles that say their steps more or less often": {[]health.Spec{two, actor}, func(s *health.Store) {
			says(s, "critic", 1, 0, 510, 520)
			says(s, "actor", 1, 0, 501, 502)
		}, nil},
		"the first life after a step was set": {[]health.Spec{two}, func(s *health.Store) {
			next(s, "critic", 0)
			says(s, "critic", 2, 0, 40, 41)
		}, []string{`step_ahead role=critic inc=2 rank=0 step=40 detail="given step 0, began at 40"`}},
		"a life that another controller has begun": {[]health.Spec{two}, func(s *health.Store) {
			s.Restore("critic", health.Before{Incarnation: 3, Step: 24, Saved: health.Saved{Whole: -1}, Was: health.AtWork})
			says(s, "critic", 3, 0, 40, 41)
			says(s, "critic", 3, 1, 12, 13)
		}, nil},
		"a worker restarted alone": {[]health.Spec{two}, func(s *health.Store) {
			says(s, "critic", 1, 0, 1, 2)
			s.FenceWorker("critic", 0)
			s.BeginWorker("critic", 0, 24)
			life := lifeOf("critic", 1, 0)
			life.Attempt = 2
			one := int64(1)
			s.Beat(life, &one, time.Now())
		}, []string{`step_went_back role=critic inc=1 rank=0 attempt=2 step=1 detail="given step 24, began at 1"`}},
	} {
		t.Run(name, func(t *testing.T) {
			got := offs(t, c.play, c.specs...)
			for i := range got {
				if len(c.want) == len(got) && got[i] == c.want[i] {
					continue
				}
				t.Errorf("said %q", got[i])
			}
			if len(got) != len(c.want) {
				t.Errorf("%d are said, want %q", len(got), c.want)
			}
		})
	}
}

// shows: FAULT-B5
func TestThatALifeBeganOffItsStepIsShownUntilTheNext(t *testing.T) {
	b := newBed(t, critic(2, explicit))
	b.restart("critic", 24)
	b.beat(1, 3)
	if r := b.record("critic"); r.Off != "rank 1: given step 24, began at 3" || r.Given != 24 {
		t.Errorf("shown: %q, given %d", r.Off, r.Given)
	}
	b.restart("critic", 5)
	if r := b.record("critic"); r.Off != "" || r.Given != 5 {
		t.Errorf("shown of the next life: %q, given %d", r.Off, r.Given)
	}
}
