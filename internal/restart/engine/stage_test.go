package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// stage plays everything that the engine needs, in fake time. A call of the crew takes ten
// milliseconds unless a hook says otherwise.
type stage struct {
	engine  *engine.Engine
	options engine.Options
	outcome chan engine.Outcome
	end     context.CancelCauseFunc

	mu     sync.Mutex
	calls  []string // "verb role"
	stops  []string // "role kind incident cause"
	events []event.Event
	hooks  map[string]func(context.Context) error // by call
	inc    map[role.Name]int
	steps  map[role.Name]int64
	begun  map[role.Name]int // incarnation that runs
	deaf   map[role.Name]bool
	wrong  map[role.Name]int64   // added to what a service answers of its step
	saved  map[role.Name]int64   // newest checkpoint; absent: none is known
	given  map[role.Name][]int64 // the steps of all its lives, those too that could not be begun

	dead      bool              // the controller is: nothing that it begins has an effect
	highest   map[role.Name]int // incarnation that ever ran
	ran       map[int]int       // attempt of rollout's workers that runs, by rank; absent: the first
	attempts  map[int]int       // of rollout's workers beyond the first, by rank
	available int

	own   map[int]int64   // steps of rollout's workers
	alone map[int][]int64 // those that they were begun from alone

	unplaced map[role.Name]error // what Place answers
}

var errDead = errors.New("the controller is dead")

var errPlayed = errors.New("the test wants it to fail")

func (s *stage) call(ctx context.Context, verb string, name role.Name) error {
	key := verb + " " + string(name)
	s.mu.Lock()
	s.calls = append(s.calls, key)
	hook := s.hooks[key]
	s.mu.Unlock()
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	dead := s.dead
	s.mu.Unlock()
	if dead {
		return errDead
	}
	if hook != nil {
		return hook(ctx)
	}
	return nil
}

// on sets what a call does from now on; nil: it succeeds again.
func (s *stage) on(call string, do func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[call] = do
}

// once makes the next such call fail.
func (s *stage) once(call string) {
	s.on(call, func(context.Context) error { s.on(call, nil); return errPlayed })
}

// slow makes a call take d longer, or end with its context.
func (s *stage) slow(call string, d time.Duration) {
	s.on(call, func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

func (s *stage) ReadStep(ctx context.Context, name role.Name) (engine.Steps, error) {
	err := s.call(ctx, "read_step", name)
	s.mu.Lock()
	defer s.mu.Unlock()
	step := s.steps[name] + s.wrong[name]
	return engine.Steps{Step: step, Spoken: map[int]int64{0: step}}, err
}

func (s *stage) StopWorkers(ctx context.Context, name role.Name, how engine.Stop) ([]string, error) {
	err := s.call(ctx, "stop", name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[slices.Index(s.calls, "stop "+string(name))] = fmt.Sprintf("stopped %s %s", name, how.Kind)
	s.stops = append(s.stops, fmt.Sprintf("%s %s %s %s", name, how.Kind, how.Incident, how.Cause))
	if err == nil {
		delete(s.begun, name)
	}
	return nil, err
}

func (s *stage) Lengthen(ctx context.Context, name role.Name) error {
	return s.call(ctx, "lengthen", name)
}
func (s *stage) Delete(ctx context.Context, name role.Name, _ engine.DeleteKind) error {
	return s.call(ctx, "delete", name)
}
func (s *stage) Start(ctx context.Context, name role.Name, _ int) error {
	return s.call(ctx, "start", name)
}

func (s *stage) WriteStep(ctx context.Context, name role.Name, step int64) error {
	err := s.call(ctx, "write_step", name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps[name] = step
	return err
}

func (s *stage) Run(ctx context.Context, name role.Name, inc int, step int64) error {
	s.mu.Lock()
	if !s.dead {
		s.given[name] = append(s.given[name], step)
	}
	if before, runs := s.begun[name]; runs && !s.dead {
		s.mu.Unlock()
		return fmt.Errorf("workers of incarnation %d are not stopped", before)
	}
	if !s.dead {
		if inc <= s.highest[name] {
			s.mu.Unlock()
			panic(fmt.Sprintf("incarnation %d of %s is used twice", inc, name))
		}
		s.begun[name], s.highest[name] = inc, inc
		if name == "rollout" {
			clear(s.ran)
		}
	}
	s.mu.Unlock()
	err := s.call(ctx, "run", name)
	if err != nil && !errors.Is(err, errDead) {
		s.mu.Lock()
		delete(s.begun, name)
		s.mu.Unlock()
	}
	return err
}

func (s *stage) Place(name role.Name) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unplaced[name]
}

// placing sets what comes of placing a role; nil: it succeeds.
func (s *stage) placing(name role.Name, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unplaced[name] = err
}

func (s *stage) Release(role.Name) {}

func (s *stage) Fence(name role.Name) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inc[name]++
	if name == "rollout" {
		clear(s.attempts)
	}
	return s.inc[name]
}
func (s *stage) StopWatching(role.Name)     {}
func (s *stage) Begin(role.Name, int64)     {}
func (s *stage) SetStep(role.Name, int64)   {}
func (s *stage) SetRestarts(role.Name, int) {}
func (s *stage) Standing(name role.Name) (int64, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	saved, ok := s.saved[name]
	if !ok {
		saved = -1
	}
	return s.steps[name], saved
}

func (s *stage) WorkerStep(_ role.Name, rank int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.own[rank]
}

func (s *stage) Reached(name role.Name, spoken map[int]int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if step, ok := spoken[0]; ok {
		return step
	}
	return s.steps[name]
}

func (s *stage) AwaitReady(ctx context.Context, name role.Name, _ int) error {
	s.mu.Lock()
	wait := s.deaf[name]
	s.mu.Unlock()
	if !wait {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// Report hands a failure back as the checker would, from a goroutine of its own.
func (s *stage) Report(f role.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dead {
		go s.engine.Found([]role.Failure{f}, nil)
	}
}

func (s *stage) Record(e event.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.dead {
		s.events = append(s.events, e)
	}
}

// failure is word that the role's current life has ended.
func (s *stage) failure(name role.Name, cause role.Cause) role.Failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return role.Failure{Life: role.Life{Role: name, Incarnation: s.inc[name], Rank: 0, Attempt: 1}, Cause: cause, Detail: "played", At: time.Now()}
}

// fail reports the failure of a role's current life and lets the engine take it in.
func (s *stage) fail(name role.Name) {
	s.engine.Found([]role.Failure{s.failure(name, role.Exited)}, nil)
	synctest.Wait()
}

// count says how many calls there were.
func (s *stage) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c == call {
			n++
		}
	}
	return n
}

// of returns the events of a kind.
func (s *stage) of(kind event.Kind) []event.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.events), func(e event.Event) bool { return e.Kind != kind })
}

// running returns the incarnations that run.
func (s *stage) running() map[role.Name]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.begun)
}

// roleOf returns a role as a job file would make it.
func roleOf(name role.Name, change ...func(*job.Role)) job.Role {
	r := job.Role{Name: name, Workers: 1, Completion: job.Finish, State: job.Stateless,
		Stop:    job.StopPolicy{Grace: 30 * time.Second, GraceOnFailure: 3 * time.Second},
		Limits:  job.Limits{Start: 30 * time.Minute, Floor: 2 * time.Minute},
		Restart: job.Restart{OnFailure: role.InPlace, EscalateAt: 3, MaxRewind: -1, BackOff: job.BackOff{Base: time.Second, Max: time.Minute, ResetAfter: time.Minute}}}
	if name == "actor" {
		r.Restart.OnFailure = role.Global
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

// play runs the engine over the roles inside a bubble; the job is stopped at the end of the test if
// it has not ended, and no goroutine may remain.
func play(t *testing.T, roles []job.Role, test func(*testing.T, *stage)) {
	t.Helper()
	playWith(t, restart.HealthCheckOn, 3, roles, test)
}

func newStage(roles []job.Role, check restart.HealthCheck, maxGlobal int) *stage {
	s := &stage{outcome: make(chan engine.Outcome, 1), hooks: map[string]func(context.Context) error{}, inc: map[role.Name]int{},
		steps: map[role.Name]int64{}, begun: map[role.Name]int{}, deaf: map[role.Name]bool{}, wrong: map[role.Name]int64{}, saved: map[role.Name]int64{}, given: map[role.Name][]int64{}, alone: map[int][]int64{}, attempts: map[int]int{}, highest: map[role.Name]int{}, ran: map[int]int{}, unplaced: map[role.Name]error{}}
	j := &job.Job{Name: "test", Lead: roles[0].Name, Roles: roles}
	s.options = engine.Options{Job: j, Policy: restart.PolicyOf(j, check, maxGlobal, 0), Crew: s, Places: s, Health: s, Recorder: s,
		Log: slog.New(slog.DiscardHandler), StartLimit: 30 * time.Minute, Jitter: func() float64 { return 0 }}
	return s
}

func playWith(t *testing.T, check restart.HealthCheck, maxGlobal int, roles []job.Role, test func(*testing.T, *stage)) {
	t.Helper()
	playStage(t, newStage(roles, check, maxGlobal), test)
}

// playOptions is play with changed options.
func playOptions(t *testing.T, roles []job.Role, change func(*engine.Options), test func(*testing.T, *stage)) {
	t.Helper()
	s := newStage(roles, restart.HealthCheckOn, 3)
	change(&s.options)
	playStage(t, s, test)
}

func playStage(t *testing.T, s *stage, test func(*testing.T, *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		s.outcome = make(chan engine.Outcome, 1) // of the bubble
		s.end = cancel
		s.engine = engine.New(s.options)
		go func() { s.outcome <- s.engine.Run(ctx) }()
		time.Sleep(time.Second)
		test(t, s)
		s.engine.StopJob("the test is over", 0)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		cancel(nil)
	})
}

// wait lets fake time pass.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
