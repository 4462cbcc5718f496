package engine_test

import (
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/role"
)

// ignoring is a role whose reports are left alone.
func ignoring(name role.Name) job.Role {
	return roleOf(name, func(r *job.Role) {
		r.Restart.Rules = []job.RoleRule{{Causes: []role.Cause{role.Reported}, Action: role.Ignore}}
	})
}

func TestAnIgnoredFailureTouchesNothingAndIsToldOncePerLife(t *testing.T) {
	play(t, []job.Role{ignoring("critic"), roleOf("actor")}, func(t *testing.T, s *stage) {
		wait(time.Second)
		for range 3 {
			s.engine.Found([]role.Failure{s.failure("critic", role.Reported)}, nil)
			wait(time.Second)
		}
		if n := s.count("judge_again critic"); n != 3 {
			t.Errorf("the life is judged again %d times, want 3", n)
		}
		if n := len(s.of(event.Ignored)); n != 1 {
			t.Errorf("told %d times, want once", n)
		}
		if n := len(s.of(event.Failure)) + len(s.of(event.Decided)) + len(s.of(event.Folded)); n != 0 {
			t.Errorf("%d failures and decisions, want none", n)
		}
		state(t, s, "critic", role.Running)
		runs(t, s, map[role.Name]int{"critic": 1, "actor": 1})
		s.fail("critic") // for another cause
		wait(time.Second)
		runs(t, s, map[role.Name]int{"critic": 2, "actor": 1})
		s.engine.Found([]role.Failure{s.failure("critic", role.Reported)}, nil)
		wait(time.Second)
		if n := len(s.of(event.Ignored)); n != 2 {
			t.Errorf("of two lives it is told %d times", n)
		}
	})
}

// A plan for every role waits for nobody because of what is ignored, and what fails beside it is not
// folded into it.
func TestAnIgnoredFailureDuringTheStartHidesNoOther(t *testing.T) {
	play(t, []job.Role{ignoring("critic"), roleOf("actor")}, func(t *testing.T, s *stage) {
		wait(time.Second)
		s.slow("run actor", 5*time.Second)
		s.fail("actor")
		wait(time.Second)
		s.engine.Found([]role.Failure{s.failure("critic", role.Reported)}, nil)
		s.fail("critic")
		wait(20 * time.Second)
		if got := s.of(event.Folded); len(got) != 0 {
			t.Errorf("folded: %v", got)
		}
		if n := len(s.of(event.Ignored)); n != 1 {
			t.Errorf("told %d times, want once", n)
		}
		if got := s.running()["critic"]; got != 3 {
			t.Errorf("critic runs its life %d, want 3: one of the global restart, one of its own", got)
		}
	})
}
