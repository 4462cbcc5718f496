package engine_test

import (
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// signalled is the death of a role's worker by a signal, or with a code the exit of a shell that reports one.
func (s *stage) signalled(name role.Name, signal string, code int) {
	f := s.failure(name, role.Exited)
	f.Exit = &role.Exit{Signal: signal, Code: code}
	s.engine.Found([]role.Failure{f}, nil)
}

// TERM, INT and HUP are what a stop of the job may be; so are the codes by which a shell reports them, and the end of
// a daemon that exits with 0 when it is told to. Other deaths are judged at once.
// shows: FAULT-C2
func TestADeathByAStopSignalThatWeDidNotSendIsJudgedASecondLater(t *testing.T) {
	daemon := func(r *job.Role) { r.Completion = job.Daemon }
	for name, c := range map[string]struct {
		dies func(*stage)
		at   time.Duration
	}{
		"SIGTERM":         {func(s *stage) { s.signalled("critic", "SIGTERM", 0) }, time.Second},
		"SIGINT":          {func(s *stage) { s.signalled("critic", "SIGINT", 0) }, time.Second},
		"SIGHUP":          {func(s *stage) { s.signalled("critic", "SIGHUP", 0) }, time.Second},
		"exit code 143":   {func(s *stage) { s.signalled("critic", "", 143) }, time.Second},
		"a daemon's exit": {func(s *stage) { s.engine.Found(nil, []role.Name{"critic"}) }, time.Second},
		"SIGKILL":         {func(s *stage) { s.signalled("critic", "SIGKILL", 0) }, 0},
		"SIGSEGV":         {func(s *stage) { s.signalled("critic", "SIGSEGV", 0) }, 0},
		"exit code 1":     {func(s *stage) { s.signalled("critic", "", 1) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, []job.Role{roleOf("actor"), roleOf("critic", daemon)}, func(t *testing.T, s *stage) {
				began := time.Now()
				c.dies(s)
				wait(10 * time.Second)
				decided := s.of(event.Decided)
				if len(decided) != 1 || decided[0].At.Sub(began) != c.at {
					t.Fatalf("decided %+v after %s, want once after %s", decided, decided[0].At.Sub(began), c.at)
				}
				if f := s.of(event.Failure)[0]; f.Took != c.at {
					t.Errorf("the failure is told as %s old, want %s", f.Took, c.at)
				}
			})
		})
	}
}

// shows: FAULT-C2
func TestAWorkerThatDiesBeforeTheJobIsStoppedHasNotFailed(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.signalled("actor", "SIGTERM", 0)
		s.signalled("critic", "SIGTERM", 0)
		wait(900 * time.Millisecond)
		s.engine.StopJob("stopped by SIGTERM", 143)
		if out := ending(t, s); out.Exit != 143 {
			t.Errorf("exit %d (%s), want 143", out.Exit, out.Why)
		}
		if n := len(s.of(event.Failure)) + len(s.of(event.Decided)); n != 0 {
			t.Errorf("%d failures or decisions, want none", n)
		}
		if n := s.count("run actor") + s.count("run critic"); n != 2 {
			t.Errorf("workers were begun %d times, want once for each role", n)
		}
		if got := s.stops; len(got) != 2 || got[0] != "actor wanted  " && got[0] != "critic wanted  " {
			t.Errorf("stops %q, want wanted ones", got)
		}
	})
}

// A rank may report in the same second what the death of its peer means to it.
// shows: FAULT-C2
func TestAReportIsJudgedAtOnceWithTheDeathBeforeItAndCostsNothingWhenTheJobIsStopped(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.signalled("actor", "SIGTERM", 0)
		s.signalled("critic", "SIGTERM", 0)
		wait(100 * time.Millisecond)
		s.engine.Found([]role.Failure{s.failure("actor", role.Reported)}, nil)
		wait(0)
		if f := s.of(event.Failure); len(f) != 1 || f[0].Cause != role.Exited {
			t.Errorf("failures %+v, want the death first", f)
		}
		if spent := s.engine.Ledger().Global; spent != 1 {
			t.Errorf("%d global restarts spent, want 1 for now", spent)
		}
		wait(800 * time.Millisecond)
		s.engine.StopJob("stopped by SIGTERM", 143)
		wait(0)
		if l := s.engine.Ledger(); l.Global != 0 || l.Roles["actor"].InARow != 0 {
			t.Errorf("spent %+v, want nothing", l)
		}
		if out := ending(t, s); out.Exit != 143 {
			t.Errorf("exit %d (%s), want 143", out.Exit, out.Why)
		}
	})
}

// shows: FAULT-C2
func TestWhatWasSpentMoreThanASecondBeforeTheStopStaysSpent(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic")}, func(t *testing.T, s *stage) {
		s.fail("critic")
		wait(1500 * time.Millisecond)
		s.engine.StopJob("stopped by SIGTERM", 143)
		ending(t, s)
		if got := s.engine.Ledger().Roles["critic"].InPlace; got != 1 {
			t.Errorf("%d restarts spent, want 1", got)
		}
	})
}

// The stop after a failure, that of a whole role and that of a single worker, is under way when the job is stopped.
// shows: FAULT-C2
func TestAWantedStopGivesItsGraceToTheStopsThatAreUnderWay(t *testing.T) {
	alone := func(r *job.Role) { r.Workers, r.Restart.Unit, r.Restart.MinAvailable = 2, job.UnitWorker, 1 }
	for name, stop := range map[string]string{"critic": "stop critic", "rollout": "stop_worker 0 rollout"} {
		t.Run(name, func(t *testing.T) {
			play(t, []job.Role{roleOf("actor"), roleOf("critic"), roleOf("rollout", alone)}, func(t *testing.T, s *stage) {
				s.available = 2
				s.slow(stop, 20*time.Second)
				s.fail(role.Name(name))
				wait(500 * time.Millisecond)
				s.on(stop, nil)
				if n := s.count("lengthen " + name); n != 0 {
					t.Fatalf("lengthened %d times before anybody wanted a stop", n)
				}
				s.engine.StopJob("stopped by SIGTERM", 143)
				wait(time.Second)
				if n := s.count("lengthen " + name); n != 1 {
					t.Errorf("lengthened %d times, want once", n)
				}
				if out := ending(t, s); out.Exit != 143 {
					t.Errorf("exit %d, want 143", out.Exit)
				}
				for _, how := range s.stops {
					if how != "actor wanted  " && how != "critic wanted  exited" && how != "critic wanted  " && how != "rollout wanted  " && how != "rollout wanted  exited" && how != "rollout 0 after_failure 1 exited" && how != "critic after_failure 1 exited" {
						t.Errorf("stop %q, want a wanted one", how)
					}
				}
			})
		})
	}
}

// Programs that save when they are told to stop, and exit with 0, have not finished.
// shows: FAULT-C2
func TestAJobThatIsStoppedAsItEndsWellIsStopped(t *testing.T) {
	m := newMemory()
	keep := func(o *engine.Options) { o.Memory = m }
	playOptions(t, []job.Role{roleOf("actor"), roleOf("critic")}, keep, func(t *testing.T, s *stage) {
		s.engine.Found(nil, []role.Name{"critic"})
		wait(2 * time.Second) // that one has finished
		s.engine.Found(nil, []role.Name{"actor"})
		wait(900 * time.Millisecond)
		s.engine.StopJob("stopped by SIGTERM", 143)
		if out := ending(t, s); out.Exit != 143 {
			t.Errorf("exit %d (%s), want 143", out.Exit, out.Why)
		}
		if actor, critic := m.remembered().Roles["actor"], m.remembered().Roles["critic"]; actor.Finished || !critic.Finished {
			t.Errorf("remembered: actor %+v, critic %+v; want only the critic finished", actor, critic)
		}
	})
}

// shows: FAULT-C2
func TestAJobEndsWellASecondAfterItsLastRole(t *testing.T) {
	play(t, []job.Role{roleOf("actor"), roleOf("critic", func(r *job.Role) { r.Completion = job.Daemon })}, func(t *testing.T, s *stage) {
		began := time.Now()
		s.engine.Found(nil, []role.Name{"actor"})
		s.fail("critic") // since its peer has gone
		out := ending(t, s)
		if took := time.Since(began); out.Exit != 0 || took < time.Second || took > 2*time.Second {
			t.Errorf("exit %d after %s, want 0 after a second", out.Exit, took)
		}
		if n := len(s.of(event.Decided)); n != 0 {
			t.Errorf("%d decisions about a job that is done", n)
		}
	})
}

// shows: FAULT-C2
func TestAStopByASignalComesBeforeAnEndThatWasDecidedInTheSameMoment(t *testing.T) {
	for name, c := range map[string]struct {
		cause role.Cause
		fatal bool
		after time.Duration
		exit  int
	}{
		"health check off":   {role.Reported, false, 500 * time.Millisecond, 143},
		"decided long ago":   {role.Reported, false, 1500 * time.Millisecond, 1},
		"an error for good":  {role.Reported, true, 500 * time.Millisecond, 1},
		"a death by SIGKILL": {role.Exited, false, 500 * time.Millisecond, 143},
	} {
		t.Run(name, func(t *testing.T) {
			playWith(t, restart.HealthCheckIsOff, 3, []job.Role{roleOf("actor")}, func(t *testing.T, s *stage) {
				s.slow("stop actor", 2*time.Second)
				f := s.failure("actor", c.cause)
				f.Fatal = c.fatal
				s.engine.Found([]role.Failure{f}, nil)
				wait(c.after)
				s.engine.StopJob("stopped by SIGTERM", 143)
				if out := ending(t, s); out.Exit != c.exit {
					t.Errorf("exit %d (%s), want %d", out.Exit, out.Why, c.exit)
				}
			})
		})
	}
}
