package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
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

// set sets a role's step as an operator does and waits until that is recorded.
func (s *stage) set(t *testing.T, name role.Name, set engine.StepSet) engine.Set {
	t.Helper()
	set.At = time.Now()
	token, wait, ok := s.engine.SetStep(name, set)
	if !ok {
		t.Fatalf("step %d of %s is not taken", set.Step, name)
	}
	if err := wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return token
}

// An operator's step is for the role's next life, however it comes about.
// shows: FAULT-B8
func TestAStepThatWasSetIsWhatTheNextLifeBeginsFrom(t *testing.T) {
	roles := []job.Role{roleOf("actor"), roleOf("critic")}
	for name, c := range map[string]struct {
		act  func(*testing.T, *stage)
		want map[role.Name]int64
	}{
		"after a failure": {func(t *testing.T, s *stage) {
			s.set(t, "critic", engine.StepSet{Step: 50})
			s.reached("critic", 120, -1)
			s.fail("critic")
		}, map[role.Name]int64{"actor": 0, "critic": 50}},
		"of a role that was stopped by hand": {func(t *testing.T, s *stage) {
			if err := s.engine.StopRole(t.Context(), "critic"); err != nil {
				t.Fatal(err)
			}
			s.set(t, "critic", engine.StepSet{Step: 50})
			if err := s.engine.Restart("critic"); err != nil {
				t.Fatal(err)
			}
		}, map[role.Name]int64{"actor": 0, "critic": 50}},
		"in the midst of a repair": {func(t *testing.T, s *stage) {
			s.slow("start critic", 5*time.Second)
			s.fail("critic")
			wait(time.Second)
			s.set(t, "critic", engine.StepSet{Step: 50})
		}, map[role.Name]int64{"actor": 0, "critic": 50}},
		"the newest of two": {func(t *testing.T, s *stage) {
			s.set(t, "critic", engine.StepSet{Step: 50})
			wait(time.Second)
			s.set(t, "critic", engine.StepSet{Step: 40})
			s.fail("critic")
		}, map[role.Name]int64{"actor": 0, "critic": 40}},
		"of the lead role, in a global restart": {func(t *testing.T, s *stage) {
			s.set(t, "actor", engine.StepSet{Step: 50})
			s.fail("actor")
		}, map[role.Name]int64{"actor": 50, "critic": 50}},
		"once": {func(t *testing.T, s *stage) {
			s.set(t, "critic", engine.StepSet{Step: 50})
			s.fail("critic")
			wait(time.Minute)
			s.reached("critic", 70, -1)
			s.fail("critic")
		}, map[role.Name]int64{"actor": 0, "critic": 70}},
		"not once the workers have taken it": {func(t *testing.T, s *stage) {
			set := s.set(t, "critic", engine.StepSet{Step: 50})
			if _, ok := s.engine.TookStep(set, 1); !ok {
				t.Fatal("not taken")
			}
			s.reached("critic", 60, -1)
			s.fail("critic")
		}, map[role.Name]int64{"actor": 0, "critic": 60}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, roles, func(t *testing.T, s *stage) {
				s.reached("critic", 100, -1)
				c.act(t, s)
				wait(time.Minute)
				wantGiven(t, s, c.want)
			})
		})
	}
}

// What is set at a service's own door is told until it is recorded, perhaps to two controllers.
// shows: FAULT-B2
func TestAStepThatIsToldTwiceOrTooLateIsNotSetAgain(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		at := time.Now()
		set := s.set(t, "critic", engine.StepSet{Step: 50, Number: 7})
		if _, _, ok := s.engine.SetStep("critic", engine.StepSet{Step: 50, Number: 7, At: time.Now().Add(time.Millisecond)}); ok {
			t.Error("the same set was taken twice")
		}
		if _, _, ok := s.engine.SetStep("critic", engine.StepSet{Step: 90, Number: 8, At: at.Add(-time.Second)}); ok {
			t.Error("an older set was taken")
		}
		if _, ok := s.engine.TookStep(set, 2); ok {
			t.Error("a life took it that has not begun")
		}
		wait(time.Second)
		s.set(t, "critic", engine.StepSet{Step: 60, Number: 9})
		if _, ok := s.engine.TookStep(set, 1); ok {
			t.Error("a set was settled that a newer one has replaced")
		}
		if _, _, ok := s.engine.SetStep("nobody", engine.StepSet{At: time.Now()}); ok {
			t.Error("an unknown role has a step")
		}
	})
}

// The next controller knows an order that was answered: it is in the journal before the answer.
// shows: FAULT-B8 FAULT-B2
func TestAStepThatWasSetOutlivesTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &succession{T: t, stage: newStage([]job.Role{roleOf("actor"), roleOf("critic"), roleOf("reward")}, restart.HealthCheckOn, 3), memory: newMemory()}
		s.begin(nil)
		wait(time.Second)
		for _, n := range []role.Name{"critic", "reward"} {
			s.reached(n, 100, -1)
		}
		if err := s.engine.StopRole(t.Context(), "reward"); err != nil {
			t.Fatal(err)
		}
		s.set(t, "critic", engine.StepSet{Step: 50, Number: 7})
		s.set(t, "reward", engine.StepSet{Step: 30})
		s.mu.Lock()
		s.dead, s.memory.lost = true, true
		s.mu.Unlock()
		s.end(errDead)
		wait(time.Second)
		s.memory.lost = false
		s.begin(s.memory.remembered())
		if _, _, ok := s.engine.SetStep("critic", engine.StepSet{Step: 50, Number: 7, At: time.Now()}); ok {
			t.Error("a set that the controller before has recorded was taken again")
		}
		wait(time.Second)
		s.reached("critic", 120, -1)
		s.fail("critic")
		if err := s.engine.Restart("reward"); err != nil {
			t.Fatal(err)
		}
		wait(time.Minute)
		wantGiven(t, s.stage, map[role.Name]int64{"actor": 0, "critic": 50, "reward": 30})
		for _, n := range []role.Name{"critic", "reward"} {
			if s.memory.remembered().Roles[n].Assigned {
				t.Errorf("%s has begun from its step, which is remembered as assigned", n)
			}
		}
		s.stop()
	})
}

// Of workers that need no others each begins once from a step that was set, and from its own otherwise.
// shows: FAULT-B8 FAULT-B9
func TestEachWorkerThatStandsAloneBeginsOnceFromAStepThatWasSet(t *testing.T) {
	play(t, engines(), func(t *testing.T, s *stage) {
		s.free(3)
		s.mu.Lock()
		s.own = map[int]int64{0: 102, 1: 5, 2: 90, 3: 91}
		s.mu.Unlock()
		s.dies(0)
		wait(time.Minute)
		s.set(t, "rollout", engine.StepSet{Step: 50})
		for _, rank := range []int{0, 1, 0, 2, 3, 3} {
			s.dies(rank)
			wait(2 * time.Minute)
		}
		if diff := cmp.Diff(map[int][]int64{0: {102, 50, 102}, 1: {50}, 2: {50}, 3: {50, 91}}, s.alone); diff != "" {
			t.Errorf("steps that single workers were begun from (-want +got):\n%s", diff)
		}
	})
}
