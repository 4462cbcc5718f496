package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"vigil/internal/restart"
	"vigil/internal/role"
)

// LackError says that a limit of the machine (descriptors, processes, memory, room on a disk) keeps something of a role
// from being started now. It may pass.
type LackError struct {
	Limit string // which limit, its value, and whose it is
	Err   error
}

func (e *LackError) Error() string { return e.Err.Error() }

// Unwrap returns what could not be done.
func (e *LackError) Unwrap() error { return e.Err }

// The pause between two tries of a start that a limit of the machine keeps from succeeding: doubling from one to the
// other.
const (
	lackPause    = 250 * time.Millisecond
	longestPause = 10 * time.Second
)

// lackSaid is how often the log says again that a role waits for the machine.
const lackSaid = time.Minute

// whileLacking makes a move, and again with growing pauses as long as a limit of the machine keeps it from succeeding:
// for as long as a start of the role may take, counted from the first such try of its life. That is no failure of the
// role and costs nothing. again prepares another try; nil: there is nothing to prepare. A failure elsewhere that needs
// this plan to end ends the wait, and the plan after it goes on with that.
func (e *Engine) whileLacking(r *run, name role.Name, act func() result, again func() error) result {
	pause, said, waited := lackPause, time.Time{}, false
	began := time.Now()
	for {
		res := act()
		lack := new(LackError)
		if !errors.As(res.err, &lack) {
			if waited {
				e.Log.Info(fmt.Sprintf("the machine lets '%s' start again", name), "after", time.Since(began).Round(time.Millisecond))
				if res.detail == "" {
					res.detail = "after a wait for the machine"
				}
			}
			if res.err == nil {
				e.lacked(name, false)
			}
			return res
		}
		since, limit := e.lacked(name, true), e.startLimit(name)
		left := limit - time.Since(since)
		if left <= 0 {
			return res
		}
		if now := time.Now(); now.Sub(said) >= lackSaid {
			said = now
			e.Log.Warn(fmt.Sprintf("the machine does not let '%s' start: it waits, which costs nothing", name), "limit", lack.Limit, "error", lack.Err, "at_most", left.Round(time.Second))
		}
		if again != nil {
			if err := again(); err != nil {
				return result{err: errors.Join(err, res.err)}
			}
		}
		if why := "waits for the machine: " + lack.Limit; r.plan.Alone {
			e.setWhy(name, why) // its peers run
		} else {
			e.setState(name, role.BackOff, why)
		}
		if over, ended := e.pauseFor(r, name, min(pause, left)); ended {
			return over
		}
		pause, waited = min(2*pause, longestPause), true
	}
}

// pauseFor lets time pass between two tries. ended says that there is to be no other.
func (e *Engine) pauseFor(r *run, name role.Name, d time.Duration) (over result, ended bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	part := r.part[name]
	select {
	case <-timer.C:
		return result{}, false
	case <-part.leave:
		return result{detail: leftDetail}, true
	case <-r.boundary.Done():
		return result{err: context.Cause(r.boundary)}, true
	case <-r.waiting.Done():
		return result{err: context.Cause(r.waiting)}, true
	}
}

// lacked notes that the machine lacks something for a role, or does no more, and returns since when it has.
func (e *Engine) lacked(name role.Name, does bool) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.roles[name]
	switch {
	case !does:
		st.lacks = time.Time{}
	case st.lacks.IsZero():
		st.lacks = time.Now()
	}
	return st.lacks
}

// anotherLife takes back what a start that was not complete has begun, and gives the role another incarnation: services
// have seen lives of this one.
func (e *Engine) anotherLife(ctx context.Context, r *run, name role.Name) error {
	res := e.stop(ctx, name, func(ctx context.Context) ([]string, error) {
		return e.Crew.StopWorkers(ctx, name, Stop{Kind: AfterFailure, Incident: r.why.incident})
	})
	if res.err != nil {
		return res.err
	}
	e.mu.Lock()
	e.roles[name].mayRun = false
	e.mu.Unlock()
	_ = e.fence(name) // it cannot fail
	return e.keep(r, e.Memory.Keep(Update{Roles: e.remember(name)}))
}

// anotherAttempt is anotherLife for a single worker.
func (e *Engine) anotherAttempt(ctx context.Context, r *run, w restart.Worker) error {
	res := e.stop(ctx, w.Role, func(ctx context.Context) ([]string, error) {
		return e.Crew.StopWorker(ctx, w.Role, w.Rank, Stop{Kind: AfterFailure, Incident: r.why.incident})
	})
	if res.err != nil {
		return res.err
	}
	e.fenceWorker(r, w)
	return e.keep(r, e.Memory.Keep(Update{Roles: e.remember(w.Role)}))
}

// endForLack ends the job because the machine did not let a role start for as long as a start may take. The run stays
// open: the next controller goes on with it.
func (e *Engine) endForLack(r *run, lack *LackError) {
	why := fmt.Sprintf("the machine did not let %s start: %s", restart.Names(r.plan.Roles), lack.Limit)
	e.Log.Error("Stopping the job: "+why, "error", lack.Err, "exit", restart.ExitLater)
	e.end(Outcome{Exit: restart.ExitLater, Why: why})
	if e.next != nil && e.next.incident == "" {
		e.next.incident = r.why.incident
	}
}
