package restart

import (
	"fmt"
	"time"

	"vigil/internal/role"
)

// Worker names a worker over all its lives.
type Worker struct {
	Role role.Name
	Rank int
}

// SpentAlone is what a worker that is restarted alone has spent and how it has fared, since its role
// last began as a whole.
type SpentAlone struct {
	Restarts int
	InARow   int       // restarts since it was last well for its role's reset_after
	Running  time.Time // when its newest life began to run, if that was one begun alone; zero while it does not
}

// ofWorker reports whether a failure concerns one worker and nothing that its peers share. A device or
// node that is ill or taken away needs another place, and places are the role's.
func ofWorker(f role.Failure) bool {
	switch f.Cause {
	case role.Hardware, role.Preempted, role.Unreachable, role.Unrepaired, role.Operator:
		return false
	default:
		return f.Life.Rank != role.NoRank
	}
}

// worker judges a failure of a worker that needs no others: restarted alone while enough of them are
// there and its own budget lasts, else its role has failed.
func (p Policy) worker(l Ledger, at Standing, f role.Failure) verdict {
	rp, s := p.Roles[f.Life.Role], l.Workers[Worker{f.Life.Role, f.Life.Rank}]
	why := ""
	switch {
	case at.Available < rp.MinAvailable:
		why = fmt.Sprintf("%s cannot be restarted alone: %s available, restart.min_available is %d", f.Subject(), others(at.Available), rp.MinAvailable)
	case rp.EscalateAt > 0 && s.Restarts+1 >= rp.EscalateAt && f.Cause != role.PortTaken:
		why = fmt.Sprintf("this would be restart %d of %s alone", s.Restarts+1, f.Subject())
	default:
		return verdict{action: role.InPlace, rule: WorkerCanRestart, alone: true,
			why: fmt.Sprintf("%s can be restarted alone (%d of %s before), %s available", f.Subject(), s.Restarts, atMost(rp.EscalateAt), others(at.Available))}
	}
	v := p.whole(l, at, f)
	v.why = why + "; " + v.why
	return v
}

func others(n int) string {
	if n == 1 {
		return "1 other is"
	}
	return fmt.Sprintf("%d others are", n)
}

// spendAlone charges a worker that is restarted alone. The ledger is the caller's own.
func (l Ledger) spendAlone(p Policy, f role.Failure, now time.Time) Ledger {
	key := Worker{f.Life.Role, f.Life.Rank}
	s := l.Workers[key]
	if !s.Running.IsZero() && now.Sub(s.Running) >= p.Roles[key.Role].BackOff.ResetAfter {
		s.InARow = 0
	}
	s.InARow++
	s.Running = time.Time{}
	if f.Cause != role.PortTaken {
		s.Restarts++
	}
	l.Workers[key] = s
	return l
}

// forgiveWorkers forgets what the role's workers have spent alone. The ledger is the caller's own.
func (l Ledger) forgiveWorkers(name role.Name) {
	for key := range l.Workers {
		if key.Role == name {
			delete(l.Workers, key)
		}
	}
}

// BeganAlone returns the ledger after a worker that was restarted alone has begun to run.
func (l Ledger) BeganAlone(w Worker, now time.Time) Ledger {
	l = l.Clone()
	s := l.Workers[w]
	s.Running = now
	l.Workers[w] = s
	return l
}

// WaitAlone is Wait for a worker that is restarted alone.
func (p Policy) WaitAlone(l Ledger, w Worker, jitter float64) time.Duration {
	return p.wait(w.Role, l.Workers[w].InARow, jitter)
}

// WorkerPlan restarts one worker and leaves its role's others, its service and its place as they are.
func WorkerPlan(w Worker) Plan {
	b := builder{plan: Plan{Action: role.InPlace, Roles: []role.Name{w.Role}, Alone: true, Rank: w.Rank}}
	b.all(Fence, b.plan.Roles)
	b.all(StopService, b.plan.Roles)
	b.all(BackOff, b.plan.Roles)
	b.all(Run, b.plan.Roles)
	return b.plan
}
