package engine_test

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// notes are farewells as a test wants them.
type notes struct {
	left    map[role.Name]engine.Farewell
	removed atomic.Bool
}

func (n *notes) Read(context.Context) map[role.Name]engine.Farewell { return n.left }
func (n *notes) Remove()                                            { n.removed.Store(true) }

// asked is a stage on which a step that was set is the step of the role.
type asked struct{ *stage }

func (a asked) SetStep(name role.Name, step int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps[name] = step
}

// Nobody holds the workers any more when the second controller comes. What it does about a role is settled by what its
// services have left. No restart is left to be spent.
// shows: FAULT-C9
func TestWorkersThatWereEndedInOrderCostNothing(t *testing.T) {
	failed := role.Failure{Life: role.Life{Role: "critic", Incarnation: 1, Attempt: 1}, Cause: role.Exited, Detail: "exit code 3"}
	rollout := failed
	rollout.Life.Role, rollout.Life.Rank = "rollout", 1
	for name, c := range map[string]struct {
		left      map[role.Name]engine.Farewell
		exit      int    // of the job; 0: it goes on
		step      int64  // that critic is begun from
		finished  bool   // critic has
		incidents string // ROLE RANK CAUSE of each
	}{
		"all were ended in order": {left: map[role.Name]engine.Farewell{
			"actor": {Incarnation: 1, Step: 7}, "critic": {Incarnation: 1, Step: 31}, "rollout": {Incarnation: 1, Step: 7}}, step: 31},
		"one has said no steps, and had saved beyond the one given": {left: map[role.Name]engine.Farewell{
			"actor": {Incarnation: 1, Step: 7}, "critic": {Incarnation: 1, Unsaid: true}, "rollout": {Incarnation: 1}}, step: 5},
		"one had finished before": {left: map[role.Name]engine.Farewell{
			"actor": {Incarnation: 1, Step: 7}, "critic": {Incarnation: 1, Step: 31, Finished: true}, "rollout": {Incarnation: 1}}, finished: true},
		"one had failed before": {left: map[role.Name]engine.Farewell{
			"actor": {Incarnation: 1, Step: 7}, "critic": {Incarnation: 1, Step: 31, Failures: []role.Failure{failed}}, "rollout": {Incarnation: 1}}, step: 31, incidents: "critic 0 exited"},
		"a worker that stands alone had failed before": {left: map[role.Name]engine.Farewell{
			"actor": {Incarnation: 1, Step: 7}, "critic": {Incarnation: 1, Step: 31}, "rollout": {Incarnation: 1, Failures: []role.Failure{rollout}}}, step: 31, incidents: "rollout -1 exited"},
		"one has left nothing": {left: map[role.Name]engine.Farewell{
			"actor": {Incarnation: 1, Step: 7}, "rollout": {Incarnation: 1}}, step: 5, incidents: "critic -1 unreachable"},
		"the farewell is of an earlier life": {left: map[role.Name]engine.Farewell{
			"actor": {Incarnation: 1, Step: 7}, "critic": {Incarnation: 0, Step: 31}, "rollout": {Incarnation: 1}}, step: 5, incidents: "critic -1 unreachable"},
		"the role that needs a global restart has left nothing": {left: map[role.Name]engine.Farewell{
			"critic": {Incarnation: 1, Step: 31}, "rollout": {Incarnation: 1}}, exit: 1, incidents: "actor -1 unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &succession{T: t, stage: newStage([]job.Role{roleOf("actor"), roleOf("critic"), engines()[1]}, restart.HealthCheckOn, 0), memory: newMemory()}
				s.options.Crew, s.options.Health = s.stage, asked{s.stage}
				s.begin(nil)
				wait(5 * time.Second)
				s.end(errDead)
				<-s.outcome
				s.mu.Lock()
				clear(s.begun)
				s.steps["critic"] = 5
				s.mu.Unlock()
				left := &notes{left: c.left}
				s.options.Farewells = left
				s.begin(s.memory.remembered())
				wait(time.Minute)

				var incidents []string
				s.mu.Lock()
				for _, e := range s.events {
					if e.Kind == event.Failure {
						incidents = append(incidents, strings.Join([]string{string(e.Role), strconv.Itoa(e.Rank), string(e.Cause)}, " "))
					}
				}
				s.mu.Unlock()
				if got := strings.Join(incidents, ", "); got != c.incidents {
					t.Errorf("incidents %q, want %q", got, c.incidents)
				}
				select {
				case out := <-s.outcome:
					if c.exit == 0 || out.Exit != c.exit {
						t.Errorf("ended with %+v, want exit %d", out, c.exit)
					}
					return
				default:
				}
				if c.exit != 0 {
					t.Errorf("it goes on, want exit %d", c.exit)
				}
				critic := s.engine.Status("critic")
				s.mu.Lock()
				step := s.steps["critic"]
				s.mu.Unlock()
				switch {
				case c.finished && critic.State != role.Finished:
					t.Errorf("critic is %+v, want finished", critic)
				case !c.finished && (critic.State != role.Running || critic.Incarnation != 2 || step != c.step):
					t.Errorf("critic is %+v from step %d, want running in incarnation 2 from step %d", critic, step, c.step)
				}
				spent := s.engine.Ledger()
				if want := strings.Count(c.incidents, "critic"); spent.Global != 0 || spent.Roles["critic"].InPlace != want || spent.Roles["actor"].InPlace != 0 {
					t.Errorf("spent %+v, want %d in place for critic", spent, want)
				}
				if !left.removed.Load() {
					t.Error("the farewells are still there")
				}
				if was := s.memory.remembered().Roles["critic"]; c.finished && !was.Finished {
					t.Errorf("critic is remembered as %+v, want finished", was)
				}
				s.stop()
			})
		})
	}
}

// The machine lost its power: the journal's roles start again, and no restart is spent, for none of them has failed. No
// restart is left to be spent.
// shows: A49
func TestAMachineThatWentDownCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &succession{T: t, stage: newStage([]job.Role{roleOf("actor"), roleOf("critic")}, restart.HealthCheckOn, 0), memory: newMemory()}
		s.begin(nil)
		wait(5 * time.Second)
		s.end(errDead)
		<-s.outcome
		s.mu.Lock()
		clear(s.begun)
		s.mu.Unlock()
		remembered := s.memory.remembered()
		remembered.Rebooted = true
		s.begin(remembered)
		wait(time.Minute)
		spent := s.engine.Ledger()
		for _, name := range []role.Name{"actor", "critic"} {
			if st := s.engine.Status(name); st.State != role.Running || spent.Roles[name].InPlace != 0 || spent.Roles[name].Preempted != 1 {
				t.Errorf("%s is %+v, and has spent %+v", name, st, spent.Roles[name])
			}
		}
		if spent.Global != 0 {
			t.Errorf("%d global restarts are spent", spent.Global)
		}
		s.stop()
	})
}

// A controller that waits for services to end their workers answers its supervisor meanwhile. Told to stop, it waits no
// longer than the stop takes, and nothing is charged for services that had not come to the end.
// shows: FAULT-C9 FAULT-C2
func TestAStopIsHeardWhileFarewellsAreAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &succession{T: t, stage: newStage([]job.Role{roleOf("actor"), roleOf("critic"), engines()[1]}, restart.HealthCheckOn, 0), memory: newMemory()}
		s.options.Crew, s.options.Health = s.stage, asked{s.stage}
		s.begin(nil)
		wait(5 * time.Second)
		s.end(errDead)
		<-s.outcome
		s.options.Farewells = endless{}
		s.begin(s.memory.remembered())
		wait(time.Second)
		alive, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.engine.Alive(alive); err != nil {
			t.Error(err)
		}
		s.engine.StopJob("stopped by SIGTERM", 143)
		wait(time.Minute)
		select {
		case out := <-s.outcome:
			if out.Exit != 143 {
				t.Errorf("ended with %+v, want 143", out)
			}
		default:
			t.Error("the stop was not heard")
			s.end(errDead)
			<-s.outcome
		}
		if spent := s.engine.Ledger(); spent.Global != 0 || spent.Roles["actor"].InPlace+spent.Roles["critic"].InPlace != 0 {
			t.Errorf("spent %+v", spent)
		}
	})
}

// endless are farewells of services that are ending their workers for as long as anybody waits.
type endless struct{}

func (endless) Read(ctx context.Context) map[role.Name]engine.Farewell { <-ctx.Done(); return nil }
func (endless) Remove()                                                {}
