package service

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/farewell"
	"vigil/internal/role"
)

// What a service leaves when it ends its workers without being told to by its controller: one rank has failed before,
// one has finished, one was ended in order. Both ends of that kind: the controller was lost for longer than the grace,
// and a signal.
// shows: FAULT-C9
func TestAServiceThatEndsByItselfLeavesAFarewell(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(*stage)
		exit int
		why  string
	}{
		"without a controller": {func(s *stage) { s.door.slam() }, ExitControllerLost, "it had been without a controller for 0s"},
		"by a signal":          {func(s *stage) { _ = s.service.Process.Signal(unix.SIGTERM) }, ExitDone, "it was told to end by SIGTERM"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := workerOf(`[ $RANK != 0 ] || exit 3; [ $RANK != 1 ] || exit 0; ` + orderly)
			r.Workers = 3
			s := enter(t, r)
			order := runOrder(1)
			order.WorldSize = 3
			order.Workers = append(order.Workers, &api.Worker{Rank: 2, Attempt: 1})
			s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
			s.awaitLog(1, 2, "up")
			s.ears.awaitFailure(t, 1)
			s.ears.awaitState(t, 1, role.WorkerFinished)
			c.end(s)
			if code := s.awaitExit(); code != c.exit {
				t.Errorf("exit %d, want %d", code, c.exit)
			}
			notes, err := farewell.Read(s.logDir())
			if err != nil || len(notes) != 1 {
				t.Fatalf("farewells %+v, %v; want one", notes, err)
			}
			n := notes[0]
			if n.Why != c.why || !n.Ended || n.Incarnation != 1 || n.Services != 1 || n.Step != 40 || !n.Unsaid || n.PID != s.service.Process.Pid || len(n.Workers) != 3 {
				t.Errorf("farewell %+v", n)
			}
			if f := n.Workers[0].Failure; f == nil || f.Cause != role.Exited || f.Exit.Code != 3 || n.Workers[0].Finished {
				t.Errorf("rank 0 is %+v, want that it has failed with exit code 3", n.Workers[0])
			}
			if w := n.Workers[1]; !w.Finished || w.Failure != nil {
				t.Errorf("rank 1 is %+v, want that it has finished", w)
			}
			if w := n.Workers[2]; w.Finished || w.Failure != nil || w.Life != s.life(1, 2) {
				t.Errorf("rank 2 is %+v, want that it was ended in order", w)
			}
		})
	}
}

// A farewell has what nobody else tells the next controller: the step that workers have said, and what they have saved.
// shows: FAULT-C9 FAULT-D1
func TestAFarewellHasWhatWasSaved(t *testing.T) {
	t.Parallel()
	s := enter(t, sayer("X_VIGIL_STEP=41\nX_VIGIL_CHECKPOINT=40"))
	s.must(run(1))
	s.ears.await(t, "the checkpoint", func() bool { return slices.Equal(s.ears.checkpoints, []int64{40}) })
	s.door.slam()
	if code := s.awaitExit(); code != ExitControllerLost {
		t.Errorf("exit %d, want %d", code, ExitControllerLost)
	}
	notes, err := farewell.Read(s.logDir())
	if err != nil || len(notes) != 1 || len(notes[0].Workers) != 2 {
		t.Fatalf("farewells %+v, %v; want one of two workers", notes, err)
	}
	n := notes[0]
	if n.Step != 41 || n.Unsaid || n.Workers[0].Saved == nil || *n.Workers[0].Saved != 40 || n.Workers[1].Saved != nil {
		t.Errorf("farewell %+v, want step 41, and that rank 0 has saved 40", n)
	}
}
