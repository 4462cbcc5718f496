package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// shows: A42
func TestASuccessIsNotOverriddenByAFailureThatComesLater(t *testing.T) {
	play(t, []job.Role{roleOf("actor")}, func(t *testing.T, s *stage) {
		fatal := s.failure("actor", role.Reported)
		fatal.Fatal = true
		s.engine.Found(nil, []role.Name{"actor"})
		s.engine.Found([]role.Failure{fatal}, nil)
		if out := ending(t, s); out.Exit != 0 {
			t.Errorf("exit %d (%s), want 0", out.Exit, out.Why)
		}
	})
}

func TestAStopByHandWaitsForTheMoveThatIsUnderWay(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.slow("start critic", 10*time.Second)
		s.fail("critic")
		wait(time.Second) // its service starts
		done := make(chan error, 1)
		go func() { done <- s.engine.StopRole(t.Context(), "critic") }()
		wait(5 * time.Second)
		select {
		case err := <-done:
			t.Fatalf("the stop returned (%v) while the repair was under way", err)
		default:
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		state(t, s, "critic", role.Stopped)
		runs(t, s, map[role.Name]int{"actor": 1})
	})
}

func TestARoleThatTheJobHasNotCannotBeRestartedOrStopped(t *testing.T) {
	play(t, []job.Role{roleOf("actor")}, func(t *testing.T, s *stage) {
		if err := s.engine.Restart("nobody"); err == nil {
			t.Error("a restart of nobody was accepted")
		}
		if err := s.engine.StopRole(t.Context(), "nobody"); err == nil {
			t.Error("a stop of nobody was accepted")
		}
	})
}

func TestNothingIsAcceptedWhenTheJobHasEnded(t *testing.T) {
	play(t, []job.Role{roleOf("actor")}, func(t *testing.T, s *stage) {
		s.engine.StopJob("enough", 0)
		ending(t, s)
		for range 50 { // more than the queue would hide by chance
			if s.engine.Restart("actor") == nil {
				t.Fatal("a restart was accepted after the end")
			}
			if s.engine.StopRole(t.Context(), "actor") == nil {
				t.Fatal("a stop was accepted after the end")
			}
		}
		for range 1000 {
			s.fail("actor") // returns although nobody listens
		}
	})
}

func TestWhatAnOperatorAsksForSpendsNothing(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		for range 5 {
			if err := s.engine.Restart("critic"); err != nil {
				t.Fatal(err)
			}
			wait(time.Second)
		}
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 6})
		if l := s.engine.Ledger(); l.Global != 0 || l.Roles["critic"].InPlace != 0 || l.Roles["critic"].InARow != 0 {
			t.Errorf("spent: %+v", l)
		}
		s.engine.StopJob("enough", 0)
		if out := ending(t, s); len(out.Failures) != 0 {
			t.Errorf("the final report lists it as a failure: %+v", out.Failures)
		}
	})
}

// shows: R54
func TestARoleThatHasFinishedIsNotRestartedWhenItsIdleServiceDies(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.engine.Found(nil, []role.Name{"critic"})
		s.fail("critic")
		wait(time.Second)
		state(t, s, "critic", role.Finished)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 1})
		s.engine.Found(nil, []role.Name{"actor"})
		if out := ending(t, s); out.Exit != 0 {
			t.Errorf("outcome %+v", out)
		}
	})
}

// shows: R54
func TestARoleThatRunsOnceStaysFinishedOverAGlobalRestart(t *testing.T) {
	once := func(r *job.Role) { r.Completion = job.Once }
	play(t, []job.Role{roleOf("actor"), roleOf("data", once)}, func(t *testing.T, s *stage) {
		s.engine.Found(nil, []role.Name{"data"})
		for range 2 {
			s.fail("actor")
			wait(10 * time.Second)
			state(t, s, "data", role.Finished)
		}
		if n := s.count("run data"); n != 1 {
			t.Errorf("data ran %d times", n)
		}
		s.engine.Found(nil, []role.Name{"actor"})
		if out := ending(t, s); out.Exit != 0 {
			t.Errorf("outcome %+v", out)
		}
	})
}

// shows: R54
func TestAnEndOfTheLifeBeforeDoesNotFinishARoleThatIsBeingRestarted(t *testing.T) {
	play(t, []job.Role{roleOf("critic")}, func(t *testing.T, s *stage) {
		s.slow("stop critic", 5*time.Second)
		if err := s.engine.Restart("critic"); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		s.engine.Found(nil, []role.Name{"critic"}) // swept before the fence, told after it
		wait(10 * time.Second)
		runs(t, s, map[role.Name]int{"critic": 2})
		state(t, s, "critic", role.Running)
	})
}

func TestARoleWhoseWorkersEndBeforeTheOrderIsAnsweredIsFinished(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.on("run critic", func(context.Context) error {
			s.engine.Found(nil, []role.Name{"critic"})
			time.Sleep(time.Second)
			return nil
		})
		if err := s.engine.Restart("critic"); err != nil {
			t.Fatal(err)
		}
		wait(10 * time.Second)
		state(t, s, "critic", role.Finished)
	})
}

func TestARoleThatWasStoppedByHandStaysStoppedWhenItsIdleServiceDies(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		if err := s.engine.StopRole(t.Context(), "critic"); err != nil {
			t.Fatal(err)
		}
		s.fail("critic")
		wait(time.Second)
		state(t, s, "critic", role.Stopped)
		runs(t, s, map[role.Name]int{"actor": 1})
		if err := s.engine.Restart("critic"); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 2})
		s.fail("critic")
		wait(time.Second)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 3})
	})
}

func TestAFailureDuringAStopByHandRestartsNothing(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.slow("stop critic", 5*time.Second)
		done := make(chan error, 1)
		go func() { done <- s.engine.StopRole(t.Context(), "critic") }()
		wait(time.Second)
		s.fail("critic")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		wait(time.Minute)
		state(t, s, "critic", role.Stopped)
		runs(t, s, map[role.Name]int{"actor": 1})
	})
}

func TestAStopByHandThatDoesNotSucceedIsNotShownAsRunning(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.once("stop critic")
		if err := s.engine.StopRole(t.Context(), "critic"); !errors.Is(err, errPlayed) {
			t.Errorf("the stop said %v", err)
		}
		state(t, s, "critic", role.Failed)
		if err := s.engine.Restart("critic"); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 2})
	})
}

func TestARoleThatHasFinishedStaysFinishedWhenItIsStoppedByHand(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.engine.Found(nil, []role.Name{"critic"})
		if err := s.engine.StopRole(t.Context(), "critic"); err != nil {
			t.Fatal(err)
		}
		state(t, s, "critic", role.Finished)
		s.engine.Found(nil, []role.Name{"actor"})
		wait(time.Minute)
		state(t, s, "actor", role.Finished)
		if len(s.outcome) == 0 {
			t.Error("the job has not ended")
		}
	})
}

func TestAWorkerThatDiesWhileAnOperatorsRestartWaitsGetsWhatItsPolicySays(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("data", func(r *job.Role) { r.Restart.Also = []role.Name{"actor"} })}, func(t *testing.T, s *stage) {
		s.slow("start data", 10*time.Second)
		s.fail("data") // its plan takes the actor along
		wait(time.Second)
		if err := s.engine.Restart("actor"); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		s.fail("actor")
		wait(time.Minute)
		decided := s.of(event.Decided)
		if last := decided[len(decided)-1]; last.Action != role.Global || last.Rule != string(restart.RoleNeedsGlobal) {
			t.Errorf("the decision was %s", last)
		}
	})
}

func TestOfAStopAndARestartByHandTheLaterCounts(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.slow("start critic", 10*time.Second)
		s.fail("critic")
		wait(time.Second) // its service starts
		stopped := make(chan error, 1)
		go func() { stopped <- s.engine.StopRole(t.Context(), "critic") }()
		wait(time.Second)
		if err := s.engine.Restart("critic"); err != nil {
			t.Fatal(err)
		}
		if err := <-stopped; err == nil {
			t.Error("the stop says that it succeeded")
		}
		wait(time.Minute)
		state(t, s, "critic", role.Running)

		if err := s.engine.Restart("critic"); err != nil {
			t.Fatal(err)
		}
		if err := s.engine.StopRole(t.Context(), "critic"); err != nil {
			t.Fatal(err)
		}
		wait(time.Minute)
		state(t, s, "critic", role.Stopped)
	})
}

func TestAStopByHandIsCarriedOutAlsoWhenNobodyWaitsForIt(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.slow("start critic", 10*time.Second)
		s.fail("critic")
		wait(time.Second) // its service starts
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.engine.StopRole(ctx, "critic"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the stop says %v", err)
		}
		wait(time.Minute)
		state(t, s, "critic", role.Stopped)
	})
}

func TestRolesThatAwaitedARoleWhichIsStoppedByHandInsteadOfRepairedAreBegun(t *testing.T) {
	along := func(r *job.Role) { r.Restart.Also = []role.Name{"reward"} }
	play(t, []job.Role{roleOf("actor"), roleOf("critic", along), roleOf("reward")}, func(t *testing.T, s *stage) {
		s.slow("start reward", 5*time.Second)
		s.on("write_step reward", func(context.Context) error { return errPlayed })
		stopped := make(chan error, 1)
		s.fail("critic")
		go func() { stopped <- s.engine.StopRole(t.Context(), "reward") }()
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		wait(time.Minute)
		state(t, s, "critic", role.Running)
		state(t, s, "reward", role.Stopped)
	})
}

func TestARoleThatWasStoppedByHandIsNotTakenAlong(t *testing.T) {
	along := func(r *job.Role) { r.Restart.Also = []role.Name{"reward"} }
	play(t, []job.Role{roleOf("actor"), roleOf("critic", along), roleOf("reward")}, func(t *testing.T, s *stage) {
		if err := s.engine.StopRole(t.Context(), "reward"); err != nil {
			t.Fatal(err)
		}
		s.fail("critic")
		wait(time.Second)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 2})
		state(t, s, "reward", role.Stopped)
		if d := s.of(event.Decided); len(d) != 1 || len(d[0].Roles) != 1 {
			t.Errorf("the decision says %v", d)
		}
	})
}
