package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// lone is what the engine knows of a worker whose role can do without it for a while.
type lone struct {
	decided  int        // newest attempt that a decision was made about
	incident string     // of that decision
	cause    role.Cause // of its failure; empty while it is well
}

// standsAlone reports whether a failure is of one worker of a role whose workers need no others.
func (e *Engine) standsAlone(f role.Failure) bool {
	return e.Policy.Roles[f.Life.Role].Unit == job.UnitWorker && f.Life.Rank != role.NoRank
}

// covers reports whether what is done about the first failure mends the second of the same role.
func (e *Engine) covers(first, second role.Failure) bool {
	return !e.standsAlone(first) || first.Life.Rank == second.Life.Rank
}

// blocked reports whether a decision in place must wait for a plan under way. Where that is only for
// workers that are restarted alone, these are given up for the restart of their role.
func (e *Engine) blocked(d restart.Decision) bool {
	if d.Alone {
		for r := range e.running {
			if slices.Contains(r.plan.Roles, d.Roles[0]) && (!r.plan.Alone || r.plan.Rank == d.Rank) {
				return true
			}
		}
		return false
	}
	e.cancelAlone(d.Roles)
	return e.busy(d.Roles)
}

// cancelAlone ends the plans for single workers of the roles.
func (e *Engine) cancelAlone(roles []role.Name) {
	for r := range e.running {
		if r.plan.Alone && slices.Contains(roles, r.plan.Roles[0]) {
			r.cancel(errOverruled)
		}
	}
}

// makeAlone makes one move of a plan for a single worker.
func (e *Engine) makeAlone(ctx context.Context, r *run, m restart.Move) result {
	w := restart.Worker{Role: m.Role, Rank: r.plan.Rank}
	switch m.Verb {
	case restart.Fence:
		e.fenceWorker(r, w)
		return result{}
	case restart.StopService:
		return e.stopWorker(ctx, r, w)
	case restart.BackOff:
		d := e.left(r, w.Role, e.Policy.WaitAlone(e.spent(), w, e.Jitter()))
		if d <= 0 {
			return result{}
		}
		e.setWhy(w.Role, fmt.Sprintf("rank %d waits %s before restart %d in a row", w.Rank, d.Round(time.Millisecond), e.spent().Workers[w].InARow))
		return r.wait(d, nil)
	case restart.Run:
		return e.whileLacking(r, w.Role, func() result { return e.runWorker(ctx, r, w) }, func() error { return e.anotherAttempt(ctx, r, w) })
	default:
		return result{err: fmt.Errorf("verb %q is not for a single worker", m.Verb)}
	}
}

// fenceWorker gives a worker its next attempt.
func (e *Engine) fenceWorker(r *run, w restart.Worker) {
	r.attempt = e.Health.FenceWorker(w.Role, w.Rank)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.roles[w.Role].attempts[w.Rank] = r.attempt
}

func (e *Engine) stopWorker(ctx context.Context, r *run, w restart.Worker) result {
	how := Stop{Kind: Wanted, Incident: r.why.incident, Cause: r.why.cause()}
	done := e.hurry(r, w.Role, true, &how)
	defer done()
	return e.stop(ctx, w.Role, func(ctx context.Context) ([]string, error) {
		return e.Crew.StopWorker(ctx, w.Role, w.Rank, how)
	})
}

func (e *Engine) runWorker(ctx context.Context, r *run, w restart.Worker) result {
	if res, over := e.awaitPorts(r, w.Role, w.Rank); over {
		return res
	}
	step := e.workerStep(w)
	life := role.Life{Role: w.Role, Incarnation: e.state(w.Role).incarnation, Rank: w.Rank, Attempt: r.attempt}
	e.Health.BeginWorker(w.Role, w.Rank, step)
	res := bounded(ctx, e.runLimit(w.Role), func(ctx context.Context) error { return e.Crew.RunWorker(ctx, life, step) })
	res.step = &step
	if res.err == nil {
		e.workerHad(w, step)
		e.charge(func(l restart.Ledger) restart.Ledger { return l.BeganAlone(w, time.Now()) })
	}
	return res
}

// wellAgain notes that a worker runs again, unless that life has failed already.
func (e *Engine) wellAgain(name role.Name, rank int) {
	if slices.ContainsFunc(e.pending, func(s suspect) bool { return s.Life.Role == name && s.Life.Rank == rank }) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if l, ok := e.roles[name].alone[rank]; ok {
		l.cause = ""
		e.roles[name].alone[rank] = l
	}
}

// oneFailed reports whether a single worker of the role has failed, and has the stop say why.
func (e *Engine) oneFailed(name role.Name, how *Stop) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.roles[name].alone {
		if l.cause != "" {
			how.Cause = l.cause
			return true
		}
	}
	return false
}

// setWhy says what goes on in a role that runs.
func (e *Engine) setWhy(name role.Name, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.roles[name].why = why
}
