// Package engine carries out what package restart decides.
//
// One goroutine, the repair loop, owns the ledger and everything that is under way. What it is told
// (findings of the health checker, ends of plans, wishes of an operator) reaches it over one queue, in
// order. Plans run in goroutines of their own: those in place of different roles side by side, a
// global one alone. While they run, failures gather; a decision for global or stop ends a plan in
// place at its next move. The engine knows health, services and resources only by the small
// interfaces of this package.
package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// Options make an Engine.
type Options struct {
	Job      *job.Job
	Policy   restart.Policy
	Crew     Crew
	Places   Places
	Health   Health
	Recorder Recorder
	Log      *slog.Logger
	// StartLimit bounds the wait for a role that others depend on; a role's own limits.start beats it.
	StartLimit time.Duration
	// Explain is told every decision with the failures that it answers, before anything is done; it
	// is for people to read. May be nil.
	Explain func(restart.Decision, []role.Failure)
	// Memory keeps what a later controller of the job must know; nil: nobody does.
	Memory Memory
	// Remembered is what an earlier controller of the job has kept; nil: there was none.
	Remembered *Remembered
	// Ports says which of a role's ports cannot be bound yet; nil: nobody asks.
	Ports Ports
	// Farewells are what services have left while there was no controller; nil: nothing.
	Farewells Farewells
	// Jitter is the chance in a back-off, from 0 to 1; nil: a random one.
	Jitter func() float64
}

// Outcome is how the job ended.
type Outcome struct {
	Exit     int
	Rule     restart.Rule // of the decision that stopped it; empty for a wanted end
	Why      string
	Failures []role.Failure // the newest, at most keepFailures
}

const keepFailures = 100

// Engine is the repair loop. Make one with New and call Run once.
type Engine struct {
	Options
	inbox     chan func()
	pings     chan struct{} // received from by the loop when it gets on
	stopAsked chan struct{} // closed when the job is to stop
	stopOnce  sync.Once     // closes it
	gone      chan struct{} // closed when Run has returned

	// Owned by the loop.
	running    map[*run]bool
	pending    []suspect
	next       *decided // waits until every running plan has ended
	ending     *Outcome
	failures   []role.Failure
	incidents  int
	wishes     []wish
	lastPlan   int // id
	overlooked map[overlooked]bool
	strays     bool // a failure was dropped for a stop by hand; others may have waited for its repair
	just       moments

	longest atomic.Int64 // act of the loop, in nanoseconds

	mu     sync.Mutex // guards what readers see
	wanted bool       // somebody has asked for the end of the job
	ledger restart.Ledger
	roles  map[role.Name]*roleState

	charges, chargesKept int // of the ledger: how many there were, and how many when it was last kept
}

// suspect is a failure that waits to be decided.
type suspect struct {
	role.Failure
	incident string
}

// decided is a decision with the failures that it answers.
type decided struct {
	restart.Decision
	failures []role.Failure
	incident string

	replaces int                     // id of a plan of an earlier controller that it goes on with; 0: none
	was      role.Cause              // of the failure that the earlier controller had decided about
	failed   []role.Name             // of the earlier plan's roles
	until    map[role.Name]time.Time // the waits of that plan, as far as they had begun
	resume   *int64                  // the step of that plan, a global one, if it was worked out
	done     chan error              // of the operator who waits for it; nil: nobody does
	failing  map[role.Name]bool      // see failedRoles
}

// cause is that of the failure that the decision answers first; empty without one.
func (d *decided) cause() role.Cause {
	if len(d.failures) > 0 {
		return d.failures[0].Cause
	}
	return d.was
}

// roleState is what the engine knows of a role. It is guarded by Engine.mu.
type roleState struct {
	state         role.State
	why           string
	incarnation   int
	begun         bool
	mayRun        bool       // workers of it were told to run and are not proved gone
	waitsForPorts bool       // a life of it could not bind a port that earlier connections held
	unwell        bool       // something of the workers that run, or ran last, has failed
	cause         role.Cause // of their first failure; empty while they are well
	byHand        bool       // stopped by an operator
	hurried       int        // stops under way that have the grace of a failure
	finished      time.Time  // when it ended well; zero: it has not
	lacks         time.Time  // since when the machine does not let it start; zero: it does
	decided       int        // newest incarnation that a decision was made about
	incident      string     // of that decision
	nextStep                 // what its next life begins from

	alone    map[int]lone // by rank, of workers that are restarted alone; the loop's
	attempts map[int]int  // by rank, the last that was fenced of this incarnation
}

// New returns an engine that has begun nothing.
func New(o Options) *Engine {
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Memory == nil {
		o.Memory = noMemory{}
	}
	if o.Farewells == nil {
		o.Farewells = noFarewells{}
	}
	e := &Engine{Options: o, inbox: make(chan func(), 256), pings: make(chan struct{}), stopAsked: make(chan struct{}), gone: make(chan struct{}), running: map[*run]bool{}, overlooked: map[overlooked]bool{}, ledger: restart.NewLedger(), roles: map[role.Name]*roleState{}}
	for _, n := range o.Job.Names() {
		e.roles[n] = newRoleState(o.Remembered, n)
	}
	return e
}

// Run starts every role, or takes over what an earlier controller has left, repairs what is found unwell, and returns when the job has ended and
// everything of it is stopped. When ctx ends, Run stops at once without an orderly end.
func (e *Engine) Run(ctx context.Context) Outcome {
	defer close(e.gone)
	if e.Remembered != nil {
		left, meanwhile := e.awaitFarewells(ctx)
		e.resume(ctx, left)
		for _, act := range meanwhile {
			act()
		}
		e.advance(ctx)
	} else {
		e.launch(ctx, restart.BeginPlan(e.Job, e.Job.Names()), &decided{})
	}
	for {
		var began time.Time
		select {
		case act := <-e.inbox:
			began = time.Now()
			act()
		case <-e.pings:
			continue
		case <-ctx.Done():
			e.cancelPlans(context.Cause(ctx))
			for len(e.running) > 0 {
				(<-e.inbox)()
			}
			return e.cut(context.Cause(ctx))
		}
		if e.ending != nil && len(e.running) == 0 && e.next == nil {
			e.ending.Failures = e.failures
			return *e.ending
		}
		e.advance(ctx)
		e.took(time.Since(began))
	}
}

// cut is the outcome of a run that was ended at once. If it was about to end anyway, its exit code says
// so, unless that would be success.
func (e *Engine) cut(cause error) Outcome {
	out := Outcome{Exit: restart.ExitFailed, Why: cause.Error(), Failures: e.failures}
	if e.ending != nil && e.ending.Exit != 0 {
		out.Exit, out.Rule = e.ending.Exit, e.ending.Rule
	}
	return out
}

// tell queues an act for the loop. It reports false when the loop has ended.
func (e *Engine) tell(act func()) bool {
	select {
	case <-e.gone: // the queue may still have room
		return false
	default:
	}
	select {
	case e.inbox <- act:
		return true
	case <-e.gone:
		return false
	}
}

// Found hands over what the health checker found.
func (e *Engine) Found(failures []role.Failure, finished []role.Name) {
	e.tell(func() { e.found(failures, finished) })
}

func (e *Engine) found(failures []role.Failure, finished []role.Name) {
	for _, name := range finished {
		e.finish(name)
	}
	for _, f := range failures {
		e.meet(f)
	}
}

// finish marks a role that has ended well and ends the job if it was the last one awaited.
func (e *Engine) finish(name role.Name) {
	if e.ending != nil {
		return
	}
	r, _ := e.Job.Role(name)
	at := e.state(name)
	if !at.begun {
		return // fenced between the sweep and now: the life that ended is over anyway
	}
	if r.Completion == job.Daemon {
		e.holdBack(role.Failure{Life: role.Life{Role: name, Incarnation: at.incarnation, Rank: role.NoRank, Attempt: 1}, Cause: role.Exited, At: time.Now(), Detail: "a daemon role ended (exit code 0)"})
		return
	}
	e.mu.Lock()
	st := e.roles[name]
	st.state, st.why, st.finished = role.Finished, "ended well", time.Now()
	e.mu.Unlock()
	e.note(name)
	ev := event.New(time.Now(), event.RoleFinished)
	ev.Role, ev.Incarnation = name, at.incarnation
	e.Recorder.Record(ev)
	if e.allFinished() {
		e.endWell()
	}
}

// take records a failure and holds it until it can be decided. A failure of a life that has been
// decided about is folded into that incident.
func (e *Engine) take(f role.Failure) {
	if e.ending != nil {
		return // no restart while stopping
	}
	at := e.state(f.Life.Role)
	if e.ignores(f, at) {
		return
	}
	e.needsPorts(f)
	if f.Cause != role.Operator && (f.Life.Incarnation == 0 || f.Life.Incarnation >= at.incarnation) {
		e.mu.Lock()
		st := e.roles[f.Life.Role]
		if e.standsAlone(f) {
			l := st.alone[f.Life.Rank]
			l.cause = cmp.Or(l.cause, f.Cause)
			st.alone[f.Life.Rank] = l
		} else {
			st.unwell, st.cause = true, cmp.Or(st.cause, f.Cause)
		}
		e.mu.Unlock()
	}
	ev := event.New(time.Now(), event.Failure)
	ev.Took = max(0, ev.At.Sub(f.At))
	ev.Role, ev.Incarnation, ev.Rank, ev.Cause, ev.Detail = f.Life.Role, f.Life.Incarnation, f.Life.Rank, f.Cause, f.Detail
	ev.Log = f.Log
	if f.Life.Rank != role.NoRank {
		ev.Attempt = f.Life.Attempt
	}
	if f.Exit != nil {
		ev.PID, ev.Signal = f.Exit.PID, f.Exit.Signal
		if f.Exit.Signal == "" {
			ev.ExitCode = &f.Exit.Code
		}
	}
	if incident, told := e.toldOf(f, at); told && !f.Fatal {
		ev.Kind, ev.Incident = event.Folded, incident
		e.Recorder.Record(ev)
		e.strays = e.strays || at.byHand
		return
	}
	e.incidents++
	ev.Incident = fmt.Sprint(e.incidents)
	e.Recorder.Record(ev)
	e.pending = append(e.pending, suspect{f, ev.Incident})
	if f.Cause != role.Operator {
		e.failures = append(e.failures, f)
		if len(e.failures) > keepFailures {
			e.failures = e.failures[1:]
		}
		e.sayFailure(f)
	}
	for r := range e.running {
		if r.plan.Alone || e.hasLeft(r, f.Life.Role) {
			continue // it waits for nobody
		}
		if r.plan.Action == role.Global || r.plan.Action == restart.Begin || slices.Contains(r.plan.Roles, f.Life.Role) {
			r.interrupt(fmt.Errorf("%s failed meanwhile", f.Subject()))
		}
	}
}

// toldOf returns the incident that a failure belongs to, if it needs no decision of its own: the role
// waits to be decided about anyway, this life has been decided about, it has finished or was stopped by
// hand, or everything is about to be restarted or stopped.
func (e *Engine) toldOf(f role.Failure, at roleState) (incident string, told bool) {
	for _, s := range e.pending {
		if s.Cause != f.Cause && (s.Cause == role.Operator || f.Cause == role.Operator && e.isBeingStopped(f.Life.Role)) {
			continue // what failed needs no repair once the role is stopped, and a restart that is asked for does
		}
		if s.Life.Role == f.Life.Role && e.covers(s.Failure, f) {
			return s.incident, true
		}
	}
	if f.Life.Incarnation != 0 && f.Life.Incarnation < at.incarnation {
		return at.incident, true // fenced between the sweep and now
	}
	if f.Cause != role.Operator && (at.byHand || at.state == role.Finished) {
		return at.incident, true // its idle service died
	}
	if e.next != nil {
		return e.next.incident, true
	}
	if l := at.alone[f.Life.Rank]; e.standsAlone(f) && f.Life.Attempt <= l.decided {
		return l.incident, true
	}
	return at.incident, f.Life.Incarnation != 0 && at.decided == f.Life.Incarnation && f.Cause != role.Operator
}

// isBeingStopped says whether an operator's stop of the role waits or is under way.
func (e *Engine) isBeingStopped(name role.Name) bool {
	for r := range e.running {
		if r.done != nil && r.plan.Roles[0] == name {
			return true
		}
	}
	return slices.ContainsFunc(e.wishes, func(w wish) bool { return w.name == name })
}

// advance does what has become possible: the decision that waited, the failures that can be decided,
// the wishes that can be carried out.
func (e *Engine) advance(ctx context.Context) {
	if e.next == nil && e.ending == nil && !e.isDone() || e.fatal() {
		e.settle(ctx)
	}
	if e.next != nil && len(e.running) == 0 {
		d := e.next
		e.next = nil
		e.begin(ctx, d)
	}
	if e.next == nil && e.ending == nil {
		e.grant(ctx)
		e.gather(ctx)
	}
}

// end begins the orderly end of the job. The first outcome stands.
func (e *Engine) end(o Outcome) {
	if e.ending != nil {
		return
	}
	e.ending, e.just.ended = &o, time.Now()
	e.next = &decided{Decision: restart.Decision{Action: role.Stop, Rule: o.Rule, Why: o.Why, Exit: o.Exit}}
	e.cancelPlans(errOverruled)
}
