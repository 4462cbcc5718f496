package engine_test

import (
	"errors"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// patiently waits so long before each restart.
func patiently(d time.Duration) func(*job.Role) {
	return func(r *job.Role) {
		r.Restart.BackOff = job.BackOff{Base: d, Max: d, ResetAfter: time.Hour}
		r.Restart.EscalateAt = 9
	}
}

// inBackOff has the critic wait before its second restart, for 25 s.
func inBackOff(t *testing.T, s *stage) {
	t.Helper()
	s.fail("critic")
	wait(time.Second)
	s.fail("critic")
	wait(time.Second)
	state(t, s, "critic", role.BackOff)
}

// shows: FAULT-C10
func TestABackOffEndsWhenAnOperatorAsksForTheRestart(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic", patiently(50*time.Second))}, func(t *testing.T, s *stage) {
		inBackOff(t, s)
		if err := s.engine.Restart("critic"); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		state(t, s, "critic", role.Running)
		wait(time.Minute)
		runs(t, s, map[role.Name]int{"actor": 1, "critic": 3}) // and it is restarted once
	})
}

// shows: FAULT-C10
func TestABackOffEndsWhenAnOperatorStopsTheRole(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic", patiently(50*time.Second))}, func(t *testing.T, s *stage) {
		inBackOff(t, s)
		began := time.Now()
		if err := s.engine.StopRole(t.Context(), "critic"); err != nil || time.Since(began) > time.Second {
			t.Errorf("stopped after %s: %v", time.Since(began), err)
		}
		wait(time.Minute)
		state(t, s, "critic", role.Stopped)
		runs(t, s, map[role.Name]int{"actor": 1})
	})
}

// A global restart waits for the actor's back-off, another time for its place, and the first begin for a role that is not
// ready; no operator waits for that, and the others go on.
// shows: FAULT-C10 FAULT-C12
func TestNoOrderOfAnOperatorWaitsForWhatOnlyLetsTimePass(t *testing.T) {
	after := func(r *job.Role) { r.DependsOn = []role.Name{"data"} }
	for name, c := range map[string]struct {
		waits func(*stage)
		stops role.Name
		runs  map[role.Name]int
	}{
		"the back-off of a global restart": {func(s *stage) {
			s.fail("actor")
			wait(time.Second)
			s.fail("actor")
			wait(time.Second)
		}, "critic", map[role.Name]int{"actor": 3, "data": 3}},
		"a blocked device": {func(s *stage) {
			s.placing("critic", &engine.BlockedError{Err: errors.New("waits for a device"), Freed: make(chan struct{})})
			s.fail("actor")
			wait(time.Second)
		}, "critic", map[role.Name]int{"actor": 2, "data": 2}},
		"a role that is not ready": {func(s *stage) {
			s.mu.Lock()
			s.deaf["data"] = true
			s.mu.Unlock()
			s.fail("actor")
			wait(time.Second)
		}, "data", map[role.Name]int{"actor": 2, "critic": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, []job.Role{roleOf("actor", patiently(50*time.Second), after), roleOf("critic"), roleOf("data")}, func(t *testing.T, s *stage) {
				c.waits(s)
				began := time.Now()
				if err := s.engine.StopRole(t.Context(), c.stops); err != nil || time.Since(began) > time.Second {
					t.Errorf("stopped after %s: %v", time.Since(began), err)
				}
				state(t, s, c.stops, role.Stopped)
				wait(2 * time.Minute)
				runs(t, s, c.runs)
				state(t, s, c.stops, role.Stopped)
				s.placing("critic", nil)
				s.mu.Lock()
				s.deaf["data"] = false
				s.mu.Unlock()
				if err := s.engine.Restart(c.stops); err != nil {
					t.Fatal(err)
				}
				wait(time.Minute)
				state(t, s, c.stops, role.Running)
			})
		})
	}
}

// One role waits for a device, another depends on it; the third of the global restart, and at the first begin, goes on.
// shows: FAULT-C12
func TestARoleThatWaitsForItsPlaceHoldsUpOnlyThoseThatDependOnIt(t *testing.T) {
	after := func(r *job.Role) { r.DependsOn = []role.Name{"data"} }
	play(t, []job.Role{roleOf("actor"), roleOf("critic", after), roleOf("data")}, func(t *testing.T, s *stage) {
		free := make(chan struct{})
		s.placing("data", &engine.BlockedError{Err: errors.New("waits for a device"), Freed: free})
		s.fail("actor")
		wait(10 * time.Second)
		runs(t, s, map[role.Name]int{"actor": 2})
		if got := s.engine.Status("data"); got.Why != "waits for a device" {
			t.Errorf("data: %+v, want that it waits for a device", got)
		}
		s.fail("actor") // nobody waits with it either
		wait(10 * time.Second)
		runs(t, s, map[role.Name]int{"actor": 3})
		s.placing("data", nil)
		close(free)
		wait(10 * time.Second)
		got := s.running()
		if got["actor"] != 3 || got["data"] == 0 || got["critic"] == 0 {
			t.Errorf("%v run, want all", got)
		}
		if n := len(s.of(event.Failure)); n != 2 {
			t.Errorf("%d failures, want those of the actor", n)
		}
	})
}

// shows: FAULT-C12
func TestAPlanWaitsWhereAllItsRolesWaitForTheirPlaces(t *testing.T) {
	play(t, []job.Role{roleOf("actor", func(r *job.Role) { r.Limits.Start = time.Minute })}, func(t *testing.T, s *stage) {
		s.placing("actor", &engine.BlockedError{Err: errors.New("waits for a device"), Freed: make(chan struct{})})
		s.fail("actor")
		wait(50 * time.Second)
		if n := len(s.of(event.Failure)); n != 1 {
			t.Errorf("%d failures within the limit, want 1", n)
		}
		wait(15 * time.Second)
		if f := s.of(event.Failure); len(f) < 2 || f[1].Cause != role.Unrepaired {
			t.Errorf("failures %+v, want that the role could not be begun within its limit", f)
		}
	})
}

func TestALatePlanPlacesAndBegins(t *testing.T) {
	j := &job.Job{Name: "x", Lead: "a", Roles: []job.Role{roleOf("a"), roleOf("b", func(r *job.Role) { r.DependsOn = []role.Name{"a"} })}}
	var got []string
	for _, m := range restart.LatePlan(j, []role.Name{"b", "a"}).Moves {
		got = append(got, string(m.Verb)+" "+string(m.Role))
	}
	want := []string{"place a", "place b", "start a", "write_step a", "run a", "await_ready a", "start b", "write_step b", "run b"}
	if len(got) != len(want) {
		t.Fatalf("moves %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("move %d is %q, want %q", i, got[i], want[i])
		}
	}
}
