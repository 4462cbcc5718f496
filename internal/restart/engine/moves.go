package engine

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"vigil/internal/restart"
	"vigil/internal/role"
)

// How long a move may take. StopService has the role's grace on top, AwaitReady and BackOff have
// limits of their own.
const (
	readStepLimit  = time.Second
	stopLimit      = 20 * time.Second
	deleteLimit    = 20 * time.Second
	startLimit     = 60 * time.Second
	writeStepLimit = 5 * time.Second
	runLimit       = 60 * time.Second
)

// result is what came of a move.
type result struct {
	step   *int64
	detail string
	held   []string
	err    error
}

// make makes one move. Nothing here outlives its deadline.
func (e *Engine) make(ctx context.Context, r *run, m restart.Move) result {
	if r.plan.Alone {
		return e.makeAlone(ctx, r, m)
	}
	switch m.Verb {
	case restart.Fence:
		return e.fence(m.Role)
	case restart.ReadStep:
		return e.readStep(ctx, m.Role)
	case restart.StopHeartbeat:
		e.Health.StopWatching(m.Role)
		return result{}
	case restart.StopService:
		return e.stopService(ctx, r, m.Role)
	case restart.DeleteService:
		which := UnlessWell
		if r.plan.Action == role.Stop {
			which = All
		}
		return bounded(ctx, deleteLimit, func(ctx context.Context) error { return e.Crew.Delete(ctx, m.Role, which) })
	case restart.Release:
		e.Places.Release(m.Role)
		return result{}
	case restart.BackOff:
		return e.backOff(r, m.Role)
	case restart.Start:
		return e.whileLacking(r, m.Role, func() result { return e.startService(ctx, m.Role) }, nil)
	case restart.WriteStep:
		return e.writeStep(ctx, m.Role)
	case restart.Run:
		return e.whileLacking(r, m.Role, func() result { return e.runWorkers(ctx, r, m.Role) }, func() error { return e.anotherLife(ctx, r, m.Role) })
	case restart.AwaitReady:
		return e.awaitReady(r, m.Role)
	default:
		return result{err: fmt.Errorf("verb %q is not known", m.Verb)}
	}
}

// bounded runs act under a deadline.
func bounded(ctx context.Context, d time.Duration, act func(context.Context) error) result {
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not done after %s", d))
	defer cancel()
	return result{err: act(ctx)}
}

func (e *Engine) startService(ctx context.Context, name role.Name) result {
	e.setState(name, role.Starting, "its service starts")
	return bounded(ctx, startLimit, func(ctx context.Context) error {
		return e.Crew.Start(ctx, name, e.state(name).incarnation)
	})
}

func (e *Engine) stopService(ctx context.Context, r *run, name role.Name) result {
	how := Stop{Kind: Wanted, Incident: r.why.incident, Cause: e.state(name).cause}
	failed := e.state(name).unwell
	if !failed {
		failed = e.oneFailed(name, &how)
	}
	done := e.hurry(r, name, failed, &how)
	res := e.stop(ctx, name, func(ctx context.Context) ([]string, error) { return e.Crew.StopWorkers(ctx, name, how) })
	done()
	if res.err == nil {
		e.mu.Lock()
		st := e.roles[name]
		st.mayRun, st.begun = false, st.begun && r.plan.Action != role.Stop
		e.mu.Unlock()
		e.note(name)
	}
	return res
}

// hurry has a stop of a role that has failed use the short grace, unless somebody wants the role or the job stopped:
// that outranks, now and while the stop is under way. done says that it has ended.
func (e *Engine) hurry(r *run, name role.Name, failed bool, how *Stop) (done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !failed || e.wanted || r.done != nil || r.part[name].isLeaving() {
		return func() {}
	}
	how.Kind = AfterFailure
	e.roles[name].hurried++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.roles[name].hurried--
	}
}

// stop bounds an act that stops workers, and tells who held on. Which grace they have in the end is known to their
// service only: one that saves its work has the longer one, and so has everybody when the stop becomes a wanted one.
func (e *Engine) stop(ctx context.Context, name role.Name, act func(context.Context) ([]string, error)) result {
	cfg, _ := e.Job.Role(name)
	var held []string
	res := bounded(ctx, max(cfg.Stop.Grace, cfg.Stop.GraceOnFailure)+stopLimit, func(ctx context.Context) (err error) {
		held, err = act(ctx)
		return err
	})
	res.held = held
	if len(held) > 0 {
		res.detail = "held on: " + strings.Join(held, "; ")
	}
	return res
}

func (e *Engine) backOff(r *run, name role.Name) result {
	if !r.failed[name] {
		return result{}
	}
	d := e.left(r, name, e.Policy.Wait(e.spent(), name, e.Jitter()))
	if d <= 0 {
		return result{}
	}
	e.setState(name, role.BackOff, fmt.Sprintf("waits %s before restart %d in a row", d.Round(time.Millisecond), e.spent().Roles[name].InARow))
	return r.wait(d, r.part[name].hurry)
}

// left is what is left of a role's wait, d in all. When it ends is remembered from its begin, by the time of
// day; a clock that was set meanwhile does not make it longer than the policy allows.
func (e *Engine) left(r *run, name role.Name, d time.Duration) time.Duration {
	e.mu.Lock()
	until, begun := r.until[name]
	if !begun && d > 0 {
		r.until[name] = time.Now().Add(d)
	}
	e.mu.Unlock()
	if begun {
		return min(max(0, time.Until(until)), e.Policy.Roles[name].BackOff.Max)
	}
	if d > 0 {
		e.Memory.Note(Update{Began: e.planMemory(r)})
	}
	return d
}

// wait lets time pass, unless the plan is overruled or somebody does not want to wait any more.
func (r *run) wait(d time.Duration, hurry <-chan struct{}) result {
	began := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return result{detail: d.Round(100 * time.Millisecond).String()}
	case <-hurry:
		return result{detail: time.Since(began).Round(100*time.Millisecond).String() + " of " + d.Round(100*time.Millisecond).String() + ": an operator does not wait"}
	case <-r.boundary.Done():
		return result{err: context.Cause(r.boundary)}
	}
}

func (e *Engine) runWorkers(ctx context.Context, r *run, name role.Name) result {
	if res, over := e.awaitPorts(r, name, role.NoRank); over {
		return res
	}
	given := e.state(name)
	step := given.step
	e.Health.Begin(name, step)
	e.mu.Lock()
	st := e.roles[name]
	st.begun, st.mayRun, st.unwell, st.cause, st.byHand, st.state, st.why = true, true, false, "", false, role.Starting, "its workers start"
	st.alone = map[int]lone{}
	e.mu.Unlock()
	res := bounded(ctx, e.runLimit(name), func(ctx context.Context) error { return e.Crew.Run(ctx, name, given.incarnation, step) })
	res.step = &step
	e.mu.Lock()
	if res.err != nil {
		st.begun = false
	} else if st.sets == given.sets { // else it was set anew for the life after this one
		st.assigned, st.had = false, nil
	}
	e.mu.Unlock()
	if res.err != nil {
		return res
	}
	e.charge(func(l restart.Ledger) restart.Ledger { return l.Began(name, time.Now()) })
	e.setRunning(name, "")
	e.note(name)
	return res
}

// runLimit is how long the workers of a role may take to be started. With modules to be preloaded the
// first of them waits for these.
func (e *Engine) runLimit(name role.Name) time.Duration {
	cfg, _ := e.Job.Role(name)
	if len(cfg.Preload) == 0 {
		return runLimit
	}
	return runLimit + cmp.Or(cfg.Limits.Start, e.StartLimit)
}

func (e *Engine) awaitReady(r *run, name role.Name) result {
	cfg, _ := e.Job.Role(name)
	// Health gives the verdict not_ready at the limit itself; this bound is behind it.
	limit := cmp.Or(cfg.Limits.Start, e.StartLimit) + time.Minute
	e.setRunning(name, "others wait until it is ready")
	waiting, stop := context.WithCancel(r.waiting)
	defer stop()
	go func() { // an operator has taken it out of the plan
		select {
		case <-r.part[name].leave:
			stop()
		case <-waiting.Done():
		}
	}()
	return bounded(waiting, limit, func(ctx context.Context) error {
		return e.Health.AwaitReady(ctx, name, e.state(name).incarnation)
	})
}
