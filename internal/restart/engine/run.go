package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"vigil/internal/event"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// errOverruled ends a plan because of a stronger decision.
var errOverruled = errors.New("overruled by a stronger decision")

// run is one plan under way.
type run struct {
	plan     restart.Plan
	why      *decided
	failed   map[role.Name]bool      // roles of which a rank or service failed
	until    map[role.Name]time.Time // when a role's wait ends, once that is known; guarded by Engine.mu
	began    time.Time
	boundary context.Context // ends when the plan is to end at its next move
	cancel   context.CancelCauseFunc
	waiting  context.Context // ends earlier: only what waits for others ends with it
	stopWait context.CancelCauseFunc
	done     chan error // answered at the end; may be nil
	attempt  int        // of the worker that a plan for one begins
	part     map[role.Name]*part
	isUp     bool   // what is left to do brings roles up; guarded by Engine.mu
	id       int    // in memory
	resume   *int64 // of a global plan: the step that its roles are begun from, once that is known; guarded by Engine.mu
}

// aboutWorker has an event of the plan say which worker it is about, where that is one.
func (r *run) aboutWorker(ev *event.Event) {
	if r.plan.Alone {
		ev.Rank, ev.Attempt = r.plan.Rank, r.attempt
	}
}

// interrupt ends what waits for others, now and later in this plan.
func (r *run) interrupt(cause error) { r.stopWait(cause) }

// moveError is a move that failed.
type moveError struct {
	move restart.Move
	err  error
}

func (m *moveError) Error() string { return fmt.Sprintf("%s %s: %v", m.move.Verb, m.move.Role, m.err) }
func (m *moveError) Unwrap() error { return m.err }

// launch begins a plan. Its fences stand before anything else is heard; the loop hears of its end.
func (e *Engine) launch(ctx context.Context, plan restart.Plan, why *decided) {
	r := &run{plan: plan, why: why, done: why.done, began: time.Now(), failed: map[role.Name]bool{}}
	r.boundary, r.cancel = context.WithCancelCause(ctx)
	r.waiting, r.stopWait = context.WithCancelCause(r.boundary)
	failed := why.failedRoles()
	r.part = partsOf(plan)
	r.until = map[role.Name]time.Time{}
	for _, n := range plan.Roles {
		if failed[n] {
			r.failed[n] = true
		}
		if at, waits := why.until[n]; waits {
			r.until[n] = at
		}
	}
	e.running[r] = true
	var without []role.Name
	if plan.Action == role.Global {
		without = e.without()
	}
	for _, n := range plan.Roles {
		switch {
		case plan.Alone:
			e.setWhy(n, why.Why)
		case slices.Contains(without, n): // stays as it is
		case plan.Action == role.Stop:
			e.setState(n, e.stateOfStop(n), "stopping")
		case plan.Action == restart.Begin:
			e.setState(n, role.Pending, e.waitsFor(n))
		default:
			e.setState(n, role.Repairing, fmt.Sprintf("%s restart: %s", plan.Action, why.Why))
		}
	}
	ev := event.New(r.began, event.PlanBegan)
	ev.Incident, ev.Action, ev.Roles = why.incident, plan.Action, plan.Roles
	r.aboutWorker(&ev)
	e.Recorder.Record(ev)
	e.sayBegan(r)
	moves := e.fenceAll(ctx, r)
	kept := e.Memory.Keep(e.planBegins(r)) // before the next plan begins: its ledger has what this one costs
	recorded := make(chan error, 1)
	go func() { recorded <- e.keep(r, kept) }()
	go func() {
		err := e.carryOut(ctx, r, moves, recorded)
		e.inbox <- func() { e.ended(r, err) }
	}()
}

// waitsFor says what a role that has not begun waits for.
func (e *Engine) waitsFor(n role.Name) string {
	if r, _ := e.Job.Role(n); len(r.DependsOn) > 0 {
		return "waits for " + restart.Names(r.DependsOn)
	}
	return "waits for its turn to start"
}

// stateOfStop keeps a finished role finished in the display while the job stops.
func (e *Engine) stateOfStop(n role.Name) role.State {
	if e.state(n).state == role.Finished {
		return role.Finished
	}
	return role.Stopped
}

// fenceAll makes the fences at the head of the plan and returns the moves after them.
func (e *Engine) fenceAll(ctx context.Context, r *run) []restart.Move {
	moves := r.plan.Moves
	for len(moves) > 0 && moves[0].Verb == restart.Fence {
		_ = e.move(ctx, r, moves[0]) // a fence cannot fail
		moves = moves[1:]
	}
	if len(moves) < len(r.plan.Moves) {
		e.sayStage(r, restart.Fence)
	}
	return moves
}

// carryOut makes the moves, stage by stage. A plan that is overruled ends between two stages; a role that an operator
// takes out of it has no more moves in it.
//
// No move that does anything is made before recorded has said that the plan is on the disk. What only looks,
// or changes nothing but what we know, is not held up.
func (e *Engine) carryOut(ctx context.Context, r *run, moves []restart.Move, recorded <-chan error) error {
	acted := false
	var assigned func(context.Context) error // waits until the step of a global restart is on the disk; nil: it is
	for i := 0; i < len(moves); {
		if verb := moves[i].Verb; !acted && verb != restart.ReadStep && verb != restart.StopHeartbeat {
			if err := <-recorded; err != nil {
				return err
			}
			acted = true
		}
		if assigned != nil && moves[i].Verb == restart.WriteStep { // no life is given a step that the next controller would not know
			if err := e.keep(r, assigned); err != nil {
				return err
			}
			assigned = nil
		}
		if r.boundary.Err() != nil {
			return context.Cause(r.boundary)
		}
		from, verb := i, moves[i].Verb
		for ; i < len(moves) && moves[i].Stage == moves[from].Stage; i++ {
		}
		e.comesTo(r, verb)
		if err := e.makeStage(ctx, r, moves[from:i]); err != nil {
			return err
		}
		if verb == restart.ReadStep && r.plan.Action == role.Global {
			assigned = e.assign(r)
		}
		e.sayStage(r, verb)
	}
	if !acted {
		return <-recorded
	}
	if e.isDeserted(r) {
		return errOverruled
	}
	return nil
}

// makeStage makes the moves of one stage, side by side.
func (e *Engine) makeStage(ctx context.Context, r *run, stage []restart.Move) error {
	if stage[0].Verb == restart.Place {
		return e.placeAll(ctx, r, stage)
	}
	var group errgroup.Group
	for _, m := range stage {
		group.Go(func() error { return e.move(ctx, r, m) })
	}
	return group.Wait()
}

// move makes one move and tells its result, unless its role is not part of the plan any more.
func (e *Engine) move(ctx context.Context, r *run, m restart.Move) error {
	if !e.enter(r, m.Role) {
		return nil
	}
	began := time.Now()
	res := e.make(ctx, r, m)
	if e.leave(r, m.Role) && m.Verb == restart.AwaitReady {
		res = result{detail: leftDetail}
	}
	return e.moved(r, m, began, res)
}

// moved tells the result of a move.
func (e *Engine) moved(r *run, m restart.Move, began time.Time, res result) error {
	ev := event.New(time.Now(), event.Moved)
	ev.Incident, ev.Action, ev.Role, ev.Verb, ev.Incarnation = r.why.incident, "", m.Role, string(m.Verb), e.state(m.Role).incarnation
	ev.Took, ev.Step, ev.Detail = time.Since(began), res.step, res.detail
	r.aboutWorker(&ev)
	if res.err != nil {
		ev.Error = res.err.Error()
	}
	e.Recorder.Record(ev)
	e.sayMove(r, m, res)
	if res.err == nil || m.Teardown {
		return nil
	}
	return &moveError{m, res.err}
}

// ended takes in the end of a plan.
func (e *Engine) ended(r *run, err error) {
	delete(e.running, r)
	interrupted := r.waiting.Err() != nil
	r.cancel(nil)
	ev := event.New(time.Now(), event.PlanEnded)
	ev.Incident, ev.Action, ev.Roles, ev.Took = r.why.incident, r.plan.Action, r.plan.Roles, time.Since(r.began)
	if err != nil {
		ev.Error = err.Error()
	}
	if len(r.plan.Roles) == 1 || r.why.failures != nil {
		ev.Role = r.plan.Roles[0]
		if r.why.failures != nil {
			ev.Role, ev.Cause = r.why.failures[0].Life.Role, r.why.failures[0].Cause
		}
	}
	r.aboutWorker(&ev)
	e.Recorder.Record(ev)
	e.sayEnded(r, err)
	if r.done != nil {
		e.stoppedByHand(r, err)
	}
	for _, n := range r.plan.Roles {
		e.showEnded(r, n, err)
	}
	if r.plan.Alone && err == nil {
		e.wellAgain(r.plan.Roles[0], r.plan.Rank)
	}
	e.planEnded(r)
	if lack := new(LackError); errors.As(err, &lack) && r.plan.Action != role.Stop && e.ending == nil && e.next == nil {
		e.endForLack(r, lack)
		return
	}
	if err == nil || r.plan.Action == role.Stop || errors.Is(err, errOverruled) || interrupted || e.ending != nil {
		return
	}
	at := r.plan.Roles[0]
	if m := new(moveError); errors.As(err, &m) {
		at = m.move.Role
	}
	e.Health.Report(role.Failure{Life: role.Life{Role: at, Rank: role.NoRank, Incarnation: e.state(at).incarnation, Attempt: 1}, Cause: role.Unrepaired, Detail: err.Error(), At: time.Now()})
}

// stoppedByHand takes in the end of a stop that an operator asked for, and answers him. What failed in the life that
// was stopped needs no repair. Where a global restart has come before the stop, the role is stopped in that.
func (e *Engine) stoppedByHand(r *run, err error) {
	name := r.plan.Roles[0]
	if errors.Is(err, errOverruled) && e.ending == nil {
		e.wishes = append(e.wishes, wish{name: name, done: r.done})
		return
	}
	defer func() { r.done <- err }()
	if e.state(name).state == role.Finished || errors.Is(err, errOverruled) {
		return
	}
	// A restart that was asked for since the stop began comes after it.
	restartAsked := slices.ContainsFunc(e.pending, func(s suspect) bool { return s.Life.Role == name && s.Cause == role.Operator })
	e.mu.Lock()
	e.roles[name].byHand = !restartAsked
	e.mu.Unlock()
	before := len(e.pending)
	e.pending = slices.DeleteFunc(e.pending, func(s suspect) bool { return s.Life.Role == name && s.Cause != role.Operator })
	e.strays = e.strays || len(e.pending) < before
}

// showEnded sets what is shown of a role after a plan that touched it.
func (e *Engine) showEnded(r *run, name role.Name, err error) {
	st := e.state(name)
	switch {
	case e.hasLeft(r, name): // another plan shows it
	case st.state == role.Finished: // whatever was done to its services
	case r.done != nil && err == nil:
		e.setState(name, role.Stopped, "stopped by hand; restart begins it again")
	case r.done != nil && !errors.Is(err, errOverruled):
		e.setState(name, role.Failed, "a stop by hand did not succeed: "+err.Error())
	case r.plan.Action == role.Stop && r.done == nil && st.mayRun:
		e.setState(name, role.Failed, "it is not proved that its workers are gone")
	case r.plan.Action == role.Stop && r.done == nil:
		e.setState(name, role.Stopped, "the job has ended")
	case st.begun:
		e.setRunning(name, "")
	case st.byHand: // a global restart leaves it stopped
	case err != nil:
		e.setState(name, role.Repairing, err.Error())
	}
}

func (e *Engine) cancelPlans(cause error) {
	for r := range e.running {
		r.cancel(cause)
	}
}
