package engine_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// memory is a journal that loses nothing that it was given, until it dies.
type memory struct {
	mu     sync.Mutex
	writes int
	dieAt  int  // at this write; 0: never
	after  bool // the write is made
	die    func()
	kept   engine.Remembered
	lost   bool
}

func newMemory() *memory {
	return &memory{kept: engine.Remembered{Ledger: restart.NewLedger(), Roles: map[role.Name]engine.RoleMemory{}}}
}

func (m *memory) Keep(u engine.Update) func(context.Context) error {
	m.Note(u)
	return func(ctx context.Context) error {
		select {
		case <-time.After(time.Millisecond): // the commit
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.lost {
			return errDead
		}
		return nil
	}
}

func (m *memory) Note(u engine.Update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost {
		return
	}
	m.writes++
	dies := m.writes == m.dieAt
	if !dies || m.after {
		m.take(u)
	}
	if dies {
		m.lost = true
		m.die()
	}
}

func (m *memory) Trouble() (string, bool) { return "", false }

func (m *memory) take(u engine.Update) {
	if u.Ledger != nil {
		m.kept.Ledger = u.Ledger.Clone()
	}
	m.kept.Incidents = max(m.kept.Incidents, u.Incidents)
	maps.Copy(m.kept.Roles, u.Roles)
	m.kept.Plans = slices.DeleteFunc(m.kept.Plans, func(p engine.PlanMemory) bool { return p.ID == u.Ended || u.Began != nil && p.ID == u.Began.ID })
	if u.Began != nil {
		m.kept.Plans = append(m.kept.Plans, *u.Began)
	}
}

// remembered is what a later controller reads.
func (m *memory) remembered() *engine.Remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := engine.Remembered{Ledger: m.kept.Ledger.Clone(), Incidents: m.kept.Incidents, Roles: maps.Clone(m.kept.Roles), Plans: slices.Clone(m.kept.Plans)}
	return &r
}

func (s *stage) Lives(context.Context) map[role.Name]map[int]role.Life {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[role.Name]map[int]role.Life{}
	for i := range s.options.Job.Roles {
		r := &s.options.Job.Roles[i]
		inc, runs := s.begun[r.Name]
		if !runs {
			continue
		}
		out[r.Name] = map[int]role.Life{}
		for rank := range r.Workers {
			out[r.Name][rank] = role.Life{Role: r.Name, Incarnation: inc, Rank: rank, Attempt: 1}
			if n, ok := s.ran[rank]; ok && r.Name == "rollout" {
				out[r.Name][rank] = role.Life{Role: r.Name, Incarnation: inc, Rank: rank, Attempt: n}
			}
		}
	}
	return out
}

// succession is a job whose controller dies at one write and is followed by another.
type succession struct {
	*testing.T
	*stage
	memory *memory
	end    context.CancelCauseFunc
}

// begin starts a controller with what is remembered.
func (s *succession) begin(remembered *engine.Remembered) {
	ctx, cancel := context.WithCancelCause(s.Context())
	s.end = cancel
	s.mu.Lock()
	s.dead, s.events = false, nil
	clear(s.attempts)
	if remembered != nil {
		for n, was := range remembered.Roles {
			s.inc[n] = was.Incarnation
			for rank, attempt := range was.Attempts {
				s.attempts[rank] = attempt - 1
			}
		}
	}
	s.mu.Unlock()
	o := s.options
	o.Memory, o.Remembered = s.memory, remembered
	s.engine = engine.New(o)
	s.memory.die = func() {
		s.mu.Lock()
		s.dead = true
		s.mu.Unlock()
		go cancel(errDead)
	}
	s.outcome = make(chan engine.Outcome, 1)
	out := s.outcome
	go func() { out <- s.engine.Run(ctx) }()
}

// story lets the roles fail, one way after the other, as long as the controller lives.
func (s *succession) story() {
	for _, act := range []func(){
		func() { s.fail("critic") },
		func() { s.fail("actor") },
		func() { s.free(3); s.fail("critic"); s.fail("reward") },
		func() { s.dies(1) },
		func() { s.fail("critic") },
	} {
		wait(20 * time.Second)
		s.memory.mu.Lock()
		lost := s.memory.lost
		s.memory.mu.Unlock()
		if lost {
			return
		}
		act()
	}
	wait(20 * time.Second)
}

// shows: A49
func TestAControllerThatDiesAtAnyWriteIsFollowedByOneThatFinishesItsWork(t *testing.T) {
	roles := []job.Role{roleOf("data"), roleOf("actor", func(r *job.Role) { r.DependsOn = []role.Name{"data"} }), roleOf("critic"), roleOf("reward"), engines()[1]}
	total := 0
	for at := 0; at <= total; at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d after=%v", at, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := succeed(t, roles, at, after)
					s.story()
					if at == 0 {
						total = s.memory.writes
						if diff := cmp.Diff(s.engine.Ledger(), s.memory.remembered().Ledger); diff != "" {
							t.Errorf("what is remembered is not what was spent:\n%s", diff)
						}
						s.stop()
						return
					}
					wait(time.Second)
					if out := <-s.outcome; out.Exit == 0 {
						t.Errorf("the dead controller says %+v", out)
					}
					well, spent := s.running(), s.memory.remembered()
					s.memory.dieAt, s.memory.lost = 0, false
					s.begin(spent)
					wait(time.Minute)
					s.check(well, spent)
					s.fail("critic") // and what fails now is repaired, too
					wait(time.Minute)
					if st := s.engine.Status("critic"); st.State != role.Running {
						t.Errorf("critic is %+v", st)
					}
					s.stop()
				})
			})
		}
	}
	if total < 20 {
		t.Errorf("%d writes only", total)
	}
}

func succeed(t *testing.T, roles []job.Role, at int, after bool) *succession {
	s := &succession{T: t, stage: newStage(roles, restart.HealthCheckOn, 3), memory: newMemory()}
	s.memory.dieAt, s.memory.after = at, after
	s.options.Crew, s.options.Health = s.stage, s.stage
	s.begin(nil)
	return s
}

func (s *succession) stop() {
	s.engine.StopJob("the test is over", 0)
	wait(2 * time.Minute)
	s.end(nil)
}

// check says what must hold when a controller has taken over: every role runs once, what was well was left
// alone, nothing was spent for the change of controllers.
func (s *succession) check(well map[role.Name]int, spent *engine.Remembered) {
	s.Helper()
	running, ledger := s.running(), s.engine.Ledger()
	touched := map[role.Name]bool{}
	for _, p := range spent.Plans {
		for _, n := range p.Roles {
			touched[n] = true
		}
	}
	for _, n := range s.options.Job.Names() {
		st := s.engine.Status(n)
		if st.State != role.Running || running[n] != st.Incarnation {
			s.Errorf("%s is %s (%s) in incarnation %d; what runs: %v", n, st.State, st.Why, st.Incarnation, running)
		}
		was := spent.Roles[n]
		if inc, ran := well[n]; ran && inc == was.Incarnation && running[n] != inc && !s.isAlone(n, spent) {
			s.Errorf("%s was well in incarnation %d and was restarted (plans %+v)", n, inc, spent.Plans)
		}
	}
	if ledger.Global != spent.Ledger.Global || !maps.Equal(inPlace(ledger), inPlace(spent.Ledger)) {
		s.Errorf("spent %+v, before the change of controllers %+v", ledger, spent.Ledger)
	}
	for _, e := range s.of(event.Failure) {
		if e.Cause == role.Unrepaired || e.Cause == role.Unreachable {
			s.Errorf("found %s", e)
		}
	}
}

// isAlone reports whether a worker of the role was being restarted alone: the stage knows lives of roles only.
func (s *succession) isAlone(n role.Name, spent *engine.Remembered) bool {
	return slices.ContainsFunc(spent.Plans, func(p engine.PlanMemory) bool { return p.Alone && p.Roles[0] == n })
}

func inPlace(l restart.Ledger) map[role.Name]int {
	out := map[role.Name]int{}
	for n, s := range l.Roles {
		if s.InPlace > 0 {
			out[n] = s.InPlace
		}
	}
	return out
}

func TestTwoWorkersThatWereBeingRestartedAloneAreRestartedAloneByTheNextController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := succeed(t, engines(), 0, false)
		wait(time.Second)
		s.free(2)
		s.slow("stop_worker 0 rollout", time.Minute)
		s.slow("stop_worker 1 rollout", time.Minute)
		s.dies(0)
		s.dies(1)
		wait(time.Second)
		s.memory.mu.Lock()
		s.memory.lost = true
		s.memory.mu.Unlock()
		s.memory.die()
		wait(time.Second)
		s.on("stop_worker 0 rollout", nil)
		s.on("stop_worker 1 rollout", nil)
		s.memory.lost = false
		s.begin(s.memory.remembered())
		wait(time.Minute)
		s.must(t, "run_worker 0.3 rollout", 1)
		s.must(t, "run_worker 1.3 rollout", 1)
		s.must(t, "run rollout", 1)
		if st := s.engine.Status("rollout"); st.State != role.Running || st.Incarnation != 1 {
			t.Errorf("rollout is %+v", st)
		}
		if n := len(s.memory.remembered().Plans); n != 0 {
			t.Errorf("%d plans are still remembered", n)
		}
		s.stop()
	})
}

// A job that has ended ends under the next controller too, in the same way, and nothing of it begins again.
// shows: A49
func TestAJobThatWasEndingEndsWhereverItsControllerDied(t *testing.T) {
	roles := []job.Role{roleOf("actor"), roleOf("critic", func(r *job.Role) { r.Restart.OnFailure = role.Stop }), roleOf("reward", func(r *job.Role) { r.Completion = job.Daemon })}
	for name, end := range map[string]struct {
		exit int
		act  func(*succession)
	}{
		"finishes": {0, func(s *succession) { s.engine.Found(nil, []role.Name{"actor", "critic"}) }},
		"fails":    {1, func(s *succession) { s.fail("critic") }},
	} {
		total := 1
		for at := 1; at <= total+1; at++ { // behind the last write, when all is done
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s write %d after=%v", name, at, after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := succeed(t, roles, 0, false)
						wait(20 * time.Second)
						s.memory.mu.Lock()
						before := s.memory.writes
						s.memory.dieAt, s.memory.after = before+at, after
						s.memory.mu.Unlock()
						end.act(s)
						wait(time.Minute)
						<-s.outcome // of one that is dead, or whose end nobody was told
						if n := s.memory.writes - before; n > total {
							total = n
						}
						began := s.count("run actor") + s.count("run critic") + s.count("run reward")
						s.memory.dieAt, s.memory.lost = 0, false
						s.begin(s.memory.remembered())
						wait(time.Second)
						end.act(s) // what was not heard is told again
						select {
						case out := <-s.outcome:
							if out.Exit != end.exit || out.Why == "" {
								t.Errorf("outcome %+v, want exit %d", out, end.exit)
							}
						case <-time.After(time.Minute):
							t.Error("the job does not end")
							s.stop()
						}
						if n := s.count("run actor") + s.count("run critic") + s.count("run reward"); n != began {
							t.Errorf("%d roles were begun again", n-began)
						}
						s.end(nil)
					})
				})
			}
		}
		if total < 3 {
			t.Errorf("%s: %d writes only", name, total)
		}
	}
}
