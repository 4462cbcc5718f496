package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

func (s *stage) StopWorker(ctx context.Context, name role.Name, rank int, how engine.Stop) ([]string, error) {
	err := s.call(ctx, fmt.Sprintf("stop_worker %d", rank), name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops = append(s.stops, fmt.Sprintf("%s %d %s %s %s", name, rank, how.Kind, how.Incident, how.Cause))
	return nil, err
}

func (s *stage) RunWorker(ctx context.Context, life role.Life, step int64) error {
	err := s.call(ctx, fmt.Sprintf("run_worker %d.%d", life.Rank, life.Attempt), life.Role)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.ran[life.Rank] = life.Attempt
		s.alone[life.Rank] = append(s.alone[life.Rank], step)
	}
	return err
}

func (s *stage) FenceWorker(name role.Name, rank int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts[rank]++
	return s.attempts[rank] + 1
}

func (s *stage) BeginWorker(role.Name, int, int64) {}

func (s *stage) Rose(role.Name) time.Time   { return time.Now() }
func (s *stage) StepsUnread(role.Name) bool { return false }

func (s *stage) JudgeAgain(life role.Life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "judge_again "+string(life.Role))
}

func (s *stage) Available(role.Name) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.available
}

// free says how many workers are available from now on.
func (s *stage) free(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.available = n
}

// dies reports that a worker of rollout has ended.
func (s *stage) dies(rank int) {
	f := s.failure("rollout", role.Exited)
	s.mu.Lock()
	f.Life.Rank, f.Life.Attempt = rank, s.attempts[rank]+1
	s.mu.Unlock()
	s.engine.Found([]role.Failure{f}, nil)
}

// engines is a role of four workers that need no others.
func engines() []job.Role {
	return []job.Role{roleOf("actor"), roleOf("rollout", func(r *job.Role) {
		r.Workers = 4
		r.Restart.Unit, r.Restart.MinAvailable, r.Restart.EscalateAt = job.UnitWorker, 1, 4
	})}
}

func (s *stage) must(t *testing.T, call string, n int) {
	t.Helper()
	if got := s.count(call); got != n {
		t.Errorf("%q was called %d times, want %d; calls: %q", call, got, n, s.calls)
	}
}

func TestWorkersThatStandAloneAreRestartedSideBySideAndTheirRoleRunsOn(t *testing.T) {
	play(t, engines(), func(t *testing.T, s *stage) {
		s.free(2)
		s.slow("stop_worker 0 rollout", 2*time.Second)
		s.dies(0)
		s.dies(3)
		wait(time.Second)
		s.must(t, "run_worker 3.2 rollout", 1)
		s.must(t, "run_worker 0.2 rollout", 0)
		if st := s.engine.Status("rollout"); st.State != role.Running || st.Incarnation != 1 || !st.Begun {
			t.Errorf("meanwhile the role is %+v", st)
		}
		wait(2 * time.Second)
		s.must(t, "run_worker 0.2 rollout", 1)
		s.must(t, "stop rollout", 0)
		s.must(t, "run rollout", 1)
		if !slices.Contains(s.stops, "rollout 0 after_failure 1 exited") {
			t.Errorf("stops: %q", s.stops)
		}
		for i, d := range s.of(event.Decided) {
			if d.Rule != string(restart.WorkerCanRestart) || d.Rank != []int{0, 3}[i] || d.Attempt != 1 {
				t.Errorf("decision %d: %s", i, d)
			}
		}
		if spent := s.engine.Ledger(); spent.Roles["rollout"].InPlace != 0 || spent.Workers[restart.Worker{Role: "rollout", Rank: 3}].Restarts != 1 {
			t.Errorf("spent %+v", spent)
		}
	})
}

func TestALateWordOfAnAttemptThatWasDecidedAboutIsFolded(t *testing.T) {
	play(t, engines(), func(t *testing.T, s *stage) {
		s.free(3)
		late := s.failure("rollout", role.Reported)
		s.dies(0)
		s.engine.Found([]role.Failure{late}, nil)
		wait(time.Second)
		s.engine.Found([]role.Failure{late}, nil)
		wait(time.Second)
		s.must(t, "run_worker 0.2 rollout", 1)
		if n, folded := len(s.of(event.Decided)), s.of(event.Folded); n != 1 || len(folded) != 2 || folded[1].Incident != "1" {
			t.Errorf("%d decisions, folded %v", n, folded)
		}
		s.dies(0) // the second attempt
		wait(5 * time.Second)
		s.must(t, "run_worker 0.3 rollout", 1)
	})
}

func TestWithTooFewOthersTheRoleIsRestartedAndASingleRestartIsGivenUp(t *testing.T) {
	play(t, engines(), func(t *testing.T, s *stage) {
		s.free(1)
		s.slow("stop_worker 0 rollout", 2*time.Second)
		s.dies(0)
		wait(time.Second)
		s.free(0)
		s.dies(1)
		wait(500 * time.Millisecond)
		s.must(t, "stop rollout", 0) // not before the single stop has ended
		wait(time.Minute)
		s.must(t, "run_worker 0.2 rollout", 0)
		s.must(t, "run rollout", 2)
		if !slices.Contains(s.stops, "rollout after_failure 2 exited") {
			t.Errorf("stops: %q", s.stops)
		}
		if last := s.of(event.Decided)[1]; last.Rule != string(restart.RoleCanStay) || last.Rank != role.NoRank {
			t.Errorf("decided %s", last)
		}
		if n := len(s.engine.Ledger().Workers); n != 0 {
			t.Errorf("the workers have still spent something: %+v", s.engine.Ledger())
		}
		s.free(3)
		s.dies(1)
		wait(time.Second)
		s.must(t, "run_worker 1.2 rollout", 1)
	})
}

func TestAWorkerThatCannotBeRestartedAloneIsItsRolesFailure(t *testing.T) {
	play(t, engines(), func(t *testing.T, s *stage) {
		s.free(3)
		s.once("run_worker 2.2 rollout")
		s.dies(2)
		wait(time.Minute)
		s.must(t, "run rollout", 2)
		failed := s.of(event.Failure)
		if len(failed) != 2 || failed[1].Cause != role.Unrepaired || failed[1].Rank != role.NoRank {
			t.Errorf("failures %v", failed)
		}
	})
}

func TestTheDeathOfTheServiceWhileAWorkerIsRestartedAloneIsHandledOnce(t *testing.T) {
	play(t, engines(), func(t *testing.T, s *stage) {
		s.free(3)
		s.slow("stop_worker 2 rollout", 2*time.Second)
		s.dies(2)
		wait(time.Second)
		lost := s.failure("rollout", role.Exited)
		lost.Life.Rank = role.NoRank
		s.engine.Found([]role.Failure{lost}, nil)
		wait(time.Minute)
		s.must(t, "run_worker 2.2 rollout", 0)
		s.must(t, "run rollout", 2)
		if n := len(s.of(event.Decided)); n != 2 {
			t.Errorf("%d decisions", n)
		}
	})
}

func TestAStopByHandDoesNotWaitForTheBackOffOfAWorker(t *testing.T) {
	play(t, engines(), func(t *testing.T, s *stage) {
		s.free(3)
		for range 3 { // the third in a row waits 2 s
			s.dies(1)
			wait(1100 * time.Millisecond)
		}
		s.must(t, "run_worker 1.4 rollout", 0)
		began := time.Now()
		if err := s.engine.StopRole(t.Context(), "rollout"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("the stop took %s", took)
		}
		s.must(t, "run_worker 1.4 rollout", 0)
		s.dies(0)
		wait(time.Second)
		if st := s.engine.Status("rollout"); st.State != role.Stopped {
			t.Errorf("after the stop by hand: %+v", st)
		}
	})
}

func TestAWorkerThatDiesBeforeItsRoleWasEverReadyIsRestartedAloneAndTheOthersBegin(t *testing.T) {
	roles := engines()
	roles[0].DependsOn = []role.Name{"rollout"}
	play(t, roles, func(t *testing.T, s *stage) {
		s.mu.Lock()
		s.deaf["rollout"] = true
		s.mu.Unlock()
		s.fail("actor")
		wait(time.Second)
		s.must(t, "run actor", 1) // the second waits for rollout
		s.free(3)
		s.dies(0)
		wait(time.Second)
		s.must(t, "run_worker 0.2 rollout", 1)
		s.must(t, "run actor", 2)
	})
}
