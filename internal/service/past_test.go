package service

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"vigil/api"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// snap breaks the connections that are open; new ones are let through.
func (d *door) snap() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		c.Close()
	}
	d.conns = nil
}

// succeed has another controller take the place of the first, behind a new door.
func (s *stage) succeed(epoch uint64) (*rpc.Hub, *ears) {
	s.t.Helper()
	next := &ears{changed: make(chan struct{})}
	hub := rpc.NewHub(rpc.HubOptions{JobUID: s.uid, Token: "secret", Epoch: epoch, Ears: next, PollEvery: 500 * time.Millisecond})
	path := filepath.Join(s.dir, "next.sock")
	l, err := proc.ListenUnix(path)
	if err != nil {
		s.t.Fatal(err)
	}
	go hub.Serve(l)
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		hub.Stop(ctx)
	})
	s.door.slam()
	s.door = openDoor(s.t, s.door.path, path)
	return hub, next
}

// A worker that lives on has reported an error, saved a step and opened a phase, and its controller dies before it has
// done anything about that. The next one hears it all, once, also when its own stream breaks.
//
// shows: FAULT-D1
func TestWhatHoldsIsToldToTheNextController(t *testing.T) {
	t.Parallel()
	s := newStage(t, sayer("X_VIGIL_STEP=41\nX_VIGIL_CHECKPOINT=40", "X_VIGIL_CHECKPOINT=41", "X_VIGIL_PHASE=+save", "X_VIGIL_PHASE=-save", "X_VIGIL_PHASE=+epoch", "X_VIGIL_ERROR=loss is NaN"))
	s.grace = time.Minute
	s.start()
	s.joined()
	s.must(run(1))
	s.ears.awaitFailure(t, 1)

	hub, next := s.succeed(2)
	again := func(n int) func() bool {
		return func() bool {
			seen := 0
			for _, w := range next.states {
				if w.Again && w.Life == s.life(1, 0) {
					seen++
				}
			}
			return seen >= n
		}
	}
	next.await(t, "the worker to be told again", again(1))
	next.await(t, "its checkpoint", func() bool { return len(next.checkpoints) == 1 && next.checkpoints[0] == 41 })
	f := next.awaitFailure(t, 1)
	if f.Cause != role.Reported || f.Detail != "loss is NaN" || f.Life != s.life(1, 0) {
		t.Errorf("told of %+v", f)
	}
	for _, w := range next.told() {
		if w.Life.Rank == 0 && (w.Past == nil || w.Past.Step == nil || *w.Past.Step != 41 || len(w.Past.Phases) != 1 || w.Past.Phases[0].Name != "epoch") {
			t.Errorf("its past is told as %+v", w.Past)
		}
	}
	s.door.snap()
	next.await(t, "a second session", again(2))
	if _, err := hub.Call(t.Context(), s.id, getStep()); err != nil { // what the Hello brought has been heard
		t.Fatal(err)
	}
	if n := len(next.failed()); n != 1 {
		t.Errorf("a controller that knew the failure was told %d times", n)
	}
}

func TestWhatHoldsOfALifeIsBoundedAndGoesWithIt(t *testing.T) {
	s := &Service{lives: map[int]*worker{}}
	s.steps.begin(0)
	life := role.Life{Job: "j", Role: "critic", Incarnation: 1, Attempt: 1}
	w := &worker{life: life}
	s.lives[0] = w
	now := time.Now()
	say := func(f func(*words)) {
		var out words
		f(&out)
		s.remember(&out)
	}
	for i := range 2 * maxLasting {
		say(func(out *words) {
			out.failure(role.Failure{Life: life, Cause: role.Hardware, Detail: strconv.Itoa(i), At: now})
		})
	}
	say(func(out *words) {
		out.passingFailure(role.Failure{Life: life, Cause: role.Stuck, At: now})
		stale := life
		stale.Attempt = 2
		out.failure(role.Failure{Life: stale, Cause: role.Reported, At: now})
	})
	for _, step := range []int64{40, 60} {
		say(func(out *words) {
			out.other = append(out.other, &api.FromService{Word: &api.FromService_Checkpoint{Checkpoint: &api.Checkpoint{Life: rpc.WireLife(life), Step: step}}})
		})
	}
	p := s.past(w, now.Add(time.Minute))
	if len(p.Failures) != maxLasting || p.Failures[0].Detail != "0" || p.Failures[0].Number != 1 || p.Failures[0].AgeMs < 59_000 {
		t.Errorf("failures %v", p.Failures)
	}
	if p.Checkpoint.GetStep() != 60 || p.Checkpoint.AgeMs < 59_000 {
		t.Errorf("checkpoint %v", p.Checkpoint)
	}
	w.lasting.wentBack(50)
	w.stopping = true
	if p := s.past(w, now); p.Checkpoint != nil || p.Failures != nil {
		t.Errorf("a worker that was set back to 50 and is being stopped: told %v", p)
	}
}

// shows: FAULT-E2
func TestAStarvedWorkersAnswersAreExcusedForNoLongerThanTheStartLimit(t *testing.T) {
	var e excuse
	now := time.Now()
	for minute, want := range []bool{true, true, true, false} {
		if got := e.holds(now.Add(time.Duration(minute)*time.Minute), 2*time.Minute); got != want {
			t.Errorf("after %d min it holds: %v", minute, got)
		}
	}
}
