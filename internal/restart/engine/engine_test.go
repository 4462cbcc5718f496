package engine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

func state(t *testing.T, s *stage, name role.Name, want role.State) {
	t.Helper()
	if got := s.engine.Status(name); got.State != want {
		t.Errorf("%s is %s (%s), want %s", name, got.State, got.Why, want)
	}
}

func runs(t *testing.T, s *stage, want map[role.Name]int) {
	t.Helper()
	if diff := cmp.Diff(want, s.running()); diff != "" {
		t.Errorf("incarnations that run (-want +got):\n%s", diff)
	}
}

// ending waits for the end of the job.
func ending(t *testing.T, s *stage) engine.Outcome {
	t.Helper()
	select {
	case out := <-s.outcome:
		return out
	case <-time.After(10 * time.Minute):
		t.Error("the job has not ended")
		return engine.Outcome{Exit: -1}
	}
}

// shows: A46
func TestWhatIsFoundDuringTheStopOfTheJobRestartsNothing(t *testing.T) {
	play(t, []job.Role{roleOf("critic"), roleOf("actor")}, func(t *testing.T, s *stage) {
		s.slow("stop critic", 5*time.Second)
		s.engine.StopJob("enough", 7)
		wait(time.Second)
		s.fail("critic")
		s.engine.Found(nil, []role.Name{"actor", "critic"})
		out := ending(t, s)
		if out.Exit != 7 || out.Why != "enough" {
			t.Errorf("the job ended with %d (%s), want what was asked for", out.Exit, out.Why)
		}
		if n := len(s.of(event.Failure)) + len(s.of(event.Decided)); n != 0 {
			t.Errorf("%d failures or decisions were made while stopping", n)
		}
		runs(t, s, map[role.Name]int{})
	})
}

func TestRunReturnsAndLeavesNoGoroutineWhenItsContextEnds(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.slow("stop critic", time.Hour)
		s.fail("critic")
		wait(time.Second)
		s.end(errors.New("killed"))
		if out := ending(t, s); out.Exit == 0 || out.Why != "killed" {
			t.Errorf("outcome %+v, want a failure that says why", out)
		}
	})
}

// shows: R56
func TestAPlanEndsWithoutAHeartbeat(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.fail("critic") // no worker of this test ever speaks
		wait(time.Second)
		if ended := s.of(event.PlanEnded); len(ended) != 2 || ended[1].Error != "" {
			t.Errorf("plans that ended: %v", ended)
		}
		state(t, s, "critic", role.Running)
	})
}

// shows: A47
func TestTheSameFaultHasThreeOutcomesAndTheSecondIsHandledToo(t *testing.T) {
	for action, want := range map[role.Action]map[role.Name]int{
		role.InPlace: {"actor": 1, "critic": 3},
		role.Global:  {"actor": 3, "critic": 3},
		role.Stop:    {},
	} {
		t.Run(string(action), func(t *testing.T) {
			play(t, []job.Role{roleOf("actor"), roleOf("critic", func(r *job.Role) { r.Restart.OnFailure = action })}, func(t *testing.T, s *stage) {
				s.fail("critic")
				wait(10 * time.Second)
				s.fail("critic")
				wait(10 * time.Second)
				runs(t, s, want)
			})
		})
	}
}

// shows: A48
func TestTwoRolesThatCannotBeRunInOneStageAreBothBegunAgain(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic"), roleOf("advantages")}, func(t *testing.T, s *stage) {
		s.once("run critic")
		s.once("run advantages")
		s.fail("actor")
		wait(10 * time.Second)
		if got := s.running(); len(got) != 3 {
			t.Errorf("what runs: %v", got)
		}
		for _, n := range []role.Name{"actor", "critic", "advantages"} {
			state(t, s, n, role.Running)
		}
	})
}

func TestARepairThatFailsIsShownUntilItIsRepaired(t *testing.T) {
	for _, call := range []string{"stop critic", "start critic", "write_step critic", "run critic"} {
		t.Run(call, func(t *testing.T) {
			play(t, []job.Role{roleOf("actor"), roleOf("critic", func(r *job.Role) { r.Restart.BackOff.Base = 10 * time.Second })}, func(t *testing.T, s *stage) {
				s.once(call)
				s.fail("critic")
				wait(5 * time.Second) // the next repair is in its back-off
				if s.engine.Status("critic").Begun || s.engine.Status("critic").State == role.Running {
					t.Errorf("critic is shown as %+v", s.engine.Status("critic"))
				}
				wait(10 * time.Second)
				state(t, s, "critic", role.Running)
				if l := s.engine.Ledger(); l.Roles["critic"].InPlace != 2 {
					t.Errorf("spent %+v, want 2: the failed repair spends too", l.Roles["critic"])
				}
			})
		})
	}
}

func TestRolesOfAPlanThatFailedBeforeTheyWereStoppedAreStoppedByTheNext(t *testing.T) {
	after := func(r *job.Role) { r.DependsOn = []role.Name{"critic"} }
	play(t, []job.Role{roleOf("actor"), roleOf("critic"), roleOf("advantages", after)}, func(t *testing.T, s *stage) {
		s.once("stop advantages") // it is stopped first, so critic is not reached
		s.engine.Found([]role.Failure{s.failure("critic", role.Exited), s.failure("advantages", role.Exited)}, nil)
		wait(20 * time.Second)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 3, "advantages": 3})
	})
}

func TestRolesThatDoNotWaitForEachOtherAreRepairedSideBySide(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic"), roleOf("advantages")}, func(t *testing.T, s *stage) {
		s.slow("start critic", time.Minute)
		s.fail("critic")
		wait(time.Second)
		s.fail("advantages")
		wait(time.Second)
		state(t, s, "critic", role.Starting)
		runs(t, s, map[role.Name]int{"actor": 1, "advantages": 2})
	})
}

func TestAWaitForAReadyRoleEndsWhenItFails(t *testing.T) {
	after := func(r *job.Role) { r.DependsOn = []role.Name{"data"} }
	play(t, []job.Role{roleOf("actor"), roleOf("data"), roleOf("critic", after)}, func(t *testing.T, s *stage) {
		deaf := func(is bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.deaf["data"] = is
		}
		deaf(true)
		s.fail("actor")
		wait(time.Minute)
		runs(t, s, map[role.Name]int{"actor": 2, "data": 2})
		deaf(false)
		s.fail("data")
		wait(time.Second)
		runs(t, s, map[role.Name]int{"actor": 2, "data": 3, "critic": 3})
		if n := len(s.of(event.Failure)); n != 2 {
			t.Errorf("%d failures, want two: the plan that was interrupted is none", n)
		}
	})
}

// shows: R59
func TestAFailedRolesPeersGetTheShortGraceAlsoWhenItsRepairIsOverruled(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic"), roleOf("reward")}, func(t *testing.T, s *stage) {
		s.slow("read_step critic", 500*time.Millisecond)
		s.fail("critic")
		wait(100 * time.Millisecond)
		s.fail("actor")
		wait(10 * time.Second)
		for _, call := range []string{"stopped critic after_failure", "stopped actor after_failure", "stopped reward wanted"} {
			if s.count(call) != 1 {
				t.Errorf("%q is not among %v", call, s.calls)
			}
		}
		s.engine.StopJob("enough", 0)
		ending(t, s)
		if s.count("stopped critic wanted") != 1 {
			t.Errorf("the next life inherits the short grace: %v", s.calls)
		}
	})
}

// shows: A13
func TestAStopNamesItsIncidentAndWhyItsOwnRoleFailedAlsoWhenItsRepairIsOverruled(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic"), roleOf("reward")}, func(t *testing.T, s *stage) {
		s.slow("read_step critic", 500*time.Millisecond)
		s.engine.Found([]role.Failure{s.failure("critic", role.Silent)}, nil)
		wait(100 * time.Millisecond)
		s.fail("actor")
		wait(10 * time.Second)
		s.engine.StopJob("enough", 0)
		ending(t, s)
		for _, want := range []string{"critic after_failure 2 silent", "actor after_failure 2 exited", "reward wanted 2 ", "critic wanted  "} {
			if !slices.Contains(s.stops, want) {
				t.Errorf("%q is not among %q", want, s.stops)
			}
		}
	})
}

// shows: R56 A50
func TestAGlobalDecisionEndsABackOffAtOnce(t *testing.T) {
	long := func(r *job.Role) {
		r.Restart.BackOff = job.BackOff{Base: 10 * time.Minute, Max: 10 * time.Minute, ResetAfter: time.Hour}
	}
	play(t, []job.Role{roleOf("actor"), roleOf("critic", long)}, func(t *testing.T, s *stage) {
		s.fail("critic")
		wait(time.Second)
		s.fail("critic")
		wait(time.Minute)
		state(t, s, "critic", role.BackOff)
		s.fail("actor")
		wait(time.Second)
		runs(t, s, map[role.Name]int{"actor": 2, "critic": 4})
	})
}

// shows: R56 A46
func TestAStopOfTheJobEndsABackOffAtOnce(t *testing.T) {
	long := func(r *job.Role) {
		r.Restart.BackOff = job.BackOff{Base: time.Hour, Max: time.Hour, ResetAfter: 10 * time.Hour}
	}
	play(t, []job.Role{roleOf("actor"), roleOf("critic", long)}, func(t *testing.T, s *stage) {
		s.fail("critic")
		wait(time.Second)
		s.fail("critic")
		wait(time.Minute)
		began := time.Now()
		s.engine.StopJob("enough", 0)
		ending(t, s)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %s", took)
		}
	})
}

// shows: R52 A48
func TestAFailureThatIsToldTwiceIsRepairedOnce(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		f := s.failure("critic", role.Exited)
		s.engine.Found([]role.Failure{f, f}, nil)
		s.engine.Found([]role.Failure{f}, nil)
		wait(time.Second)
		s.engine.Found([]role.Failure{f}, nil) // word of a life that is over
		wait(time.Second)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 2})
		if n := len(s.of(event.Folded)); n != 3 {
			t.Errorf("%d failures were folded, want 3", n)
		}
	})
}

func TestAPeerOfAFailedRankIsStoppedWithTheShortGraceAlsoWhenARestartWasAskedFor(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		asked := role.Failure{Life: role.Life{Role: "critic", Rank: role.NoRank}, Cause: role.Operator}
		s.engine.Found([]role.Failure{s.failure("critic", role.Exited), asked}, nil)
		wait(time.Second)
		if s.count("stopped critic after_failure") != 1 {
			t.Errorf("calls: %v", s.calls)
		}
		if err := s.engine.Restart("critic"); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		if s.count("stopped critic wanted") != 1 {
			t.Errorf("calls: %v", s.calls)
		}
	})
}

func TestManyFailuresAtOnceNeitherBlockTheTellerNorTheLoop(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 2000 {
				s.engine.Found([]role.Failure{s.failure("critic", role.Exited)}, nil)
			}
		}()
		<-done
		wait(time.Minute)
		synctest.Wait()
		state(t, s, "actor", role.Running)
		if n := len(s.of(event.Decided)); n > 4 {
			t.Errorf("%d decisions", n)
		}
	})
}

// shows: R34
func TestAStepThatTheIdleServiceDoesNotConfirmIsAFailedRepair(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic", func(r *job.Role) { r.Restart.BackOff.Base = 10 * time.Second })}, func(t *testing.T, s *stage) {
		answer := func(wrong int64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.steps["critic"], s.wrong["critic"] = 7, wrong
		}
		answer(1)
		s.fail("critic")
		wait(time.Second)
		answer(0)
		wait(20 * time.Second)
		state(t, s, "critic", role.Running)
		failures := s.of(event.Failure)
		if len(failures) != 2 || failures[1].Cause != role.Unrepaired || !strings.Contains(failures[1].Detail, "wrote step 8, the service answers 9") {
			t.Errorf("failures: %v", failures)
		}
		if n := s.count("run critic"); n != 2 {
			t.Errorf("critic was run %d times, want twice: at the start and after the step was confirmed", n)
		}
	})
}

// What a role needs is in the hand of something that could not be ended: the role waits for that, and spends nothing.
// shows: A08
func TestARoleWaitsForWhatIsBlockedAndOthersDoNot(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic"), roleOf("reward")}, func(t *testing.T, s *stage) {
		freed := make(chan struct{})
		s.placing("critic", &engine.BlockedError{Err: errors.New("waits for devices 1: pid 4711 is still there"), Freed: freed})
		s.fail("critic")
		wait(time.Minute)
		if st := s.engine.Status("critic"); st.Why != "waits for devices 1: pid 4711 is still there" {
			t.Errorf("critic is %+v", st)
		}
		s.fail("reward")
		wait(time.Minute)
		runs(t, s, map[role.Name]int{"actor": 1, "reward": 2})
		s.placing("critic", nil)
		close(freed)
		wait(time.Minute)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 2, "reward": 2})
		if l := s.engine.Ledger(); l.Global != 0 || l.Roles["critic"].InPlace != 1 {
			t.Errorf("spent %+v", l)
		}
		// Nobody waits longer than a start may take.
		s.placing("critic", &engine.BlockedError{Err: errors.New("waits"), Freed: make(chan struct{})})
		s.fail("critic")
		wait(31 * time.Minute)
		if l := s.engine.Ledger(); l.Roles["critic"].InPlace != 0 || l.Global != 1 {
			t.Errorf("spent %+v: the failed repair was not answered", l)
		}
		s.placing("critic", nil)
		wait(31 * time.Minute)
	})
}
