package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

func checkpointed(r *job.Role) { r.State = job.Checkpointed }

func dependsOn(names ...role.Name) func(*job.Role) {
	return func(r *job.Role) { r.DependsOn = names }
}

// reached sets what a role has reached, and what it has saved; -1: nothing.
func (s *stage) reached(name role.Name, step, saved int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps[name], s.saved[name] = step, saved
}

// givenTo returns the step that each role's newest life was given.
func (s *stage) givenTo() map[role.Name]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[role.Name]int64{}
	for n, steps := range s.given {
		out[n] = steps[len(steps)-1]
	}
	return out
}

func (s *stage) setDeaf(name role.Name, deaf bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf[name] = deaf
}

func wantGiven(t *testing.T, s *stage, want map[role.Name]int64) {
	t.Helper()
	if diff := cmp.Diff(want, s.givenTo()); diff != "" {
		t.Errorf("steps given to the newest lives (-want +got):\n%s", diff)
	}
}

// What a role saves, or says, while others have not been begun does not change the step of their restart.
// shows: FAULT-B4
func TestAGlobalRestartHasOneStepWhateverIsSaidMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		roles     []job.Role
		meanwhile func(*stage)
		want      int64
	}{
		"a checkpoint of the first level": {
			[]job.Role{roleOf("actor", checkpointed), roleOf("critic", checkpointed, dependsOn("actor"))},
			func(s *stage) { s.reached("actor", 55, 60) }, 50,
		},
		"steps of a lead role without checkpoints": {
			[]job.Role{roleOf("actor"), roleOf("critic", dependsOn("actor"))},
			func(s *stage) { s.reached("actor", 70, -1) }, 55,
		},
		"the first checkpoint of all": {
			[]job.Role{roleOf("actor"), roleOf("critic", checkpointed, dependsOn("actor"))},
			func(s *stage) { s.reached("critic", 105, 5) }, 55,
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, c.roles, func(t *testing.T, s *stage) {
				s.reached("actor", 55, 50)
				s.reached("critic", 105, 100)
				for _, r := range c.roles {
					if r.State != job.Checkpointed {
						s.reached(r.Name, 55, -1)
					}
				}
				if name == "the first checkpoint of all" {
					s.reached("critic", 105, -1)
				}
				s.on("run actor", func(context.Context) error { c.meanwhile(s); return nil })
				s.fail("actor")
				wait(10 * time.Second)
				wantGiven(t, s, map[role.Name]int64{"actor": c.want, "critic": c.want})
			})
		})
	}
}

// A global restart whose second half is done by a repair in place.
// shows: FAULT-B4
func TestWhatAGlobalRestartLeftBehindIsBegunFromItsStep(t *testing.T) {
	play(t, []job.Role{roleOf("actor", checkpointed), roleOf("data"), roleOf("critic", dependsOn("data"))}, func(t *testing.T, s *stage) {
		s.reached("actor", 85, 50)
		s.reached("data", 85, -1)
		s.reached("critic", 85, -1)
		s.setDeaf("data", true)
		s.fail("actor")
		wait(time.Minute) // the actor runs from 50; the critic waits for data
		s.setDeaf("data", false)
		s.reached("data", 52, -1) // it has got on since
		s.fail("data")
		wait(time.Minute)
		wantGiven(t, s, map[role.Name]int64{"actor": 50, "data": 52, "critic": 50})
	})
}

// A second failure in the midst of a global restart begins another, which has a step of its own: that of the first for
// who has not come to it.
// shows: FAULT-B4
func TestAGlobalRestartAfterOneThatWasCutShortGoesOnFromItsStep(t *testing.T) {
	play(t, []job.Role{roleOf("data", func(r *job.Role) { r.Restart.OnFailure = role.Global }), roleOf("actor", dependsOn("data"))}, func(t *testing.T, s *stage) {
		s.reached("data", 85, -1)
		s.reached("actor", 85, -1)
		s.once("run actor")
		s.fail("data")
		wait(time.Minute)
		wantGiven(t, s, map[role.Name]int64{"data": 85, "actor": 85})
		s.reached("data", 90, -1)
		s.fail("data")
		wait(time.Minute)
		wantGiven(t, s, map[role.Name]int64{"data": 90, "actor": 90})
	})
}

// Wherever a controller dies in a global restart, the one after it gives the same step to those that had not begun.
// shows: FAULT-B4
func TestAGlobalRestartThatIsTakenOverKeepsItsStep(t *testing.T) {
	roles := []job.Role{roleOf("actor", checkpointed), roleOf("data"), roleOf("critic", checkpointed, dependsOn("data"))}
	for _, at := range []string{"place actor", "write_step actor", "run data", "await", "start critic", "run critic"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &succession{T: t, stage: newStage(roles, restart.HealthCheckOn, 3), memory: newMemory()}
				s.begin(nil)
				wait(time.Second)
				s.reached("actor", 85, 50)
				s.reached("data", 85, -1)
				s.reached("critic", 85, 60)
				dies := func(context.Context) error {
					s.mu.Lock()
					s.dead = true
					s.memory.lost = true
					s.mu.Unlock()
					s.end(errDead)
					return errDead
				}
				if at == "await" {
					s.setDeaf("data", true)
				} else {
					s.on(at, dies)
				}
				s.fail("actor")
				wait(time.Minute)
				if at == "await" {
					_ = dies(t.Context())
					wait(time.Second)
				}
				s.setDeaf("data", false)
				s.on(at, nil)
				s.reached("actor", 56, 55) // whoever runs has saved meanwhile
				s.reached("critic", 85, 70)
				s.memory.lost = false
				s.begin(s.memory.remembered())
				wait(time.Minute)
				wantGiven(t, s.stage, map[role.Name]int64{"actor": 50, "data": 50, "critic": 50})
				for _, r := range roles {
					if st := s.engine.Status(r.Name); st.State != role.Running {
						t.Errorf("%s is %s: %s", r.Name, st.State, st.Why)
					}
				}
				s.engine.StopJob("the test is over", 0)
				wait(2 * time.Minute)
				s.end(nil)
			})
		})
	}
}
