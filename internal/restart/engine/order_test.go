package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// A global restart is decided while a role is being stopped by hand: the role is stopped all the same.
// shows: FAULT-C10
func TestAStopByHandOutlivesAGlobalRestart(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.slow("read_step critic", 500*time.Millisecond)
		stopped := make(chan error, 1)
		go func() { stopped <- s.engine.StopRole(t.Context(), "critic") }()
		wait(100 * time.Millisecond)
		s.fail("actor")
		if err := <-stopped; err != nil {
			t.Errorf("stop critic: %v", err)
		}
		wait(time.Minute)
		state(t, s, "critic", role.Stopped)
		runs(t, s, map[role.Name]int{"actor": 2})
	})
}

// A role has failed, and before its workers are told to stop an operator asks for the stop of the role: they have the
// grace of a wanted stop.
// shows: FAULT-C2
func TestAStopByHandHasItsGraceAlsoWhereARepairIsAboutToStopTheRole(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.slow("read_step critic", 500*time.Millisecond)
		s.fail("critic")
		wait(100 * time.Millisecond)
		if err := s.engine.StopRole(t.Context(), "critic"); err != nil {
			t.Error(err)
		}
		if n := s.count("stopped critic after_failure"); n != 0 {
			t.Error("its workers were given the grace of a failure")
		}
	})
}

// What is given back when the job is stopped is remembered at once: a scheduler may kill the controller before the stop
// that was under way has ended.
// shows: FAULT-C2
func TestWhatIsGivenBackIsRememberedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &succession{T: t, stage: newStage([]job.Role{roleOf("actor"), roleOf("critic")}, restart.HealthCheckOn, 3), memory: newMemory()}
		s.options.Crew, s.options.Health = s.stage, s.stage
		s.begin(nil)
		wait(time.Second)
		s.slow("stop critic", 20*time.Second)
		s.fail("critic")
		wait(500 * time.Millisecond)
		if got := s.memory.remembered().Ledger.Roles["critic"].InPlace; got != 1 {
			t.Errorf("%d restarts are remembered before the stop, want 1", got)
		}
		s.engine.StopJob("stopped by SIGTERM", 143)
		wait(5 * time.Second)
		if got := s.memory.remembered().Ledger.Roles["critic"].InPlace; got != 0 {
			t.Errorf("%d restarts are remembered while the job is being stopped, want 0", got)
		}
		wait(time.Minute)
		<-s.outcome
	})
}

// The clock of the machine was set back since a step was set; a controller comes that knows that only by the time of
// day. What an operator sets now is newer.
// shows: FAULT-B8
func TestAClockThatWasSetBackKeepsNobodyFromSettingAStep(t *testing.T) {
	for name, number := range map[string]uint64{"at the controller": 0, "at a service": 7} {
		t.Run(name, func(t *testing.T) {
			s := newStage([]job.Role{roleOf("actor")}, restart.HealthCheckOn, 3)
			s.options.Remembered = &engine.Remembered{Ledger: restart.NewLedger(), Roles: map[role.Name]engine.RoleMemory{
				"actor": {Incarnation: 1, Step: 50, Assigned: true, SetAt: time.Now().Add(time.Hour).Round(0)}}}
			e := engine.New(s.options)
			_, wait, ok := e.SetStep("actor", engine.StepSet{Step: 20, At: time.Now(), Number: number})
			if !ok || errors.Join(wait(context.Background())) != nil {
				t.Errorf("the step is not taken (%v)", ok)
			}
		})
	}
}
