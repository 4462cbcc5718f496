package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

var errLack = &engine.LackError{Limit: "the open files of one process (ulimit -n): 64 allowed", Err: errors.New("too many open files")}

// lacks makes a call fail for lack of something until some time; for ever where it is zero.
func lacks(s *stage, call string, until time.Time) {
	s.on(call, func(context.Context) error {
		if until.IsZero() || time.Now().Before(until) {
			return errLack
		}
		return nil
	})
}

// A start that a limit of the machine keeps from succeeding waits, names the limit and spends nothing, whichever move it
// is, and whether or not others failed meanwhile. No life number is used twice.
// shows: FAULT-H4
func TestAStartThatTheMachineDoesNotAllowWaitsAndSpendsNothing(t *testing.T) {
	for _, call := range []string{"start critic", "run critic"} {
		t.Run(call, func(t *testing.T) {
			play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
				lacks(s, call, time.Now().Add(5*time.Minute))
				s.fail("critic")
				wait(2 * time.Minute)
				if st := s.engine.Status("critic"); st.State != role.BackOff || !strings.Contains(st.Why, "ulimit -n") {
					t.Errorf("critic is %+v, want that it waits and names the limit", st)
				}
				if n := s.count(call); n < 12 || n > 40 {
					t.Errorf("%d tries in two minutes", n)
				}
				wait(4 * time.Minute)
				if st := s.engine.Status("critic"); st.State != role.Running {
					t.Errorf("critic is %+v, want that it runs", st)
				}
				if spent := s.engine.Ledger(); spent.Roles["critic"].InPlace != 1 || spent.Global != 0 {
					t.Errorf("spent %+v, want the one failure", spent)
				}
			})
		})
	}
}

// shows: FAULT-H4
func TestAWorkerThatTheMachineDoesNotLetStartAloneWaits(t *testing.T) {
	play(t, engines(), func(t *testing.T, s *stage) {
		s.free(3)
		for _, call := range []string{"run_worker 0.2 rollout", "run_worker 0.3 rollout"} {
			lacks(s, call, time.Time{})
		}
		s.dies(0)
		wait(100 * time.Millisecond)
		if st := s.engine.Status("rollout"); st.State != role.Running || !strings.Contains(st.Why, "ulimit -n") {
			t.Errorf("meanwhile rollout is %+v", st)
		}
		wait(time.Minute)
		s.must(t, "run_worker 0.4 rollout", 1)
		s.must(t, "stop rollout", 0)
		if st := s.engine.Status("rollout"); st.State != role.Running || st.Incarnation != 1 || st.Why != "" {
			t.Errorf("rollout is %+v", st)
		}
		if spent := s.engine.Ledger(); spent.Global != 0 || spent.Roles["rollout"].InPlace != 0 {
			t.Errorf("spent %+v", spent)
		}
	})
}

// What the machine never allows ends the job with 75 once a start may take no longer: the run stays open.
// shows: FAULT-H4
func TestAMachineThatNeverAllowsAStartLeavesTheRunOpen(t *testing.T) {
	short := roleOf("critic", func(r *job.Role) { r.Limits.Start = 3 * time.Minute })
	for _, call := range []string{"start critic", "run critic"} {
		t.Run(call, func(t *testing.T) {
			play(t, []job.Role{roleOf("actor"), short}, func(t *testing.T, s *stage) {
				lacks(s, call, time.Time{})
				s.fail("critic")
				wait(4 * time.Minute)
				select {
				case out := <-s.outcome:
					s.outcome <- out
					if out.Exit != restart.ExitLater || !strings.Contains(out.Why, "ulimit -n") {
						t.Errorf("the job ends with %+v", out)
					}
				default:
					t.Fatalf("the job goes on to wait: %+v", s.engine.Status("critic"))
				}
				if spent := s.engine.Ledger(); spent.Roles["critic"].InPlace != 1 || spent.Global != 0 {
					t.Errorf("spent %+v", spent)
				}
				if len(s.running()) != 0 {
					t.Errorf("%v run on", s.running())
				}
			})
		})
	}
}

// A role that waits for the machine holds up nobody else's repair, also where the whole job is being started.
// shows: FAULT-H4
func TestARepairGoesOnWhileAnotherRoleWaitsForTheMachine(t *testing.T) {
	later := roleOf("critic", func(r *job.Role) { r.DependsOn = []role.Name{"data"} })
	s := newStage([]job.Role{roleOf("actor"), later, roleOf("data")}, restart.HealthCheckOn, 3)
	lacks(s, "start critic", time.Time{})
	playStage(t, s, func(t *testing.T, s *stage) {
		wait(time.Minute)
		before := s.running()["data"]
		s.fail("data")
		wait(20 * time.Second)
		if now := s.running()["data"]; now <= before {
			t.Errorf("data runs in incarnation %d, as before its failure", now)
		}
		if st := s.engine.Status("critic"); !strings.Contains(st.Why, "ulimit -n") {
			t.Errorf("critic is %+v, want that it waits on", st)
		}
		s.on("start critic", nil)
		wait(time.Minute)
		for _, n := range []role.Name{"actor", "critic", "data"} {
			if st := s.engine.Status(n); st.State != role.Running {
				t.Errorf("%s is %+v", n, st)
			}
		}
		if spent := s.engine.Ledger(); spent.Global != 0 || spent.Roles["critic"].InPlace != 0 || spent.Roles["data"].InPlace != 1 {
			t.Errorf("spent %+v", spent)
		}
	})
}
