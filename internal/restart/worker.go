package restart

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"vigil/internal/role"
)

// Worker names a worker over all its lives.
type Worker struct {
	Role role.Name
	Rank int
}

// MarshalText writes ROLE/RANK, for maps that are kept.
func (w Worker) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%s/%d", w.Role, w.Rank), nil
}

// UnmarshalText reads what MarshalText wrote.
func (w *Worker) UnmarshalText(text []byte) error {
	name, rank, ok := strings.Cut(string(text), "/")
	n, err := strconv.Atoi(rank)
	if !ok || err != nil {
		return fmt.Errorf("worker %q: want ROLE/RANK", text)
	}
	w.Role, w.Rank = role.Name(name), n
	return nil
}

// SpentAlone is what a worker that is restarted alone has spent and how it has fared, since its role
// last began as a whole.
type SpentAlone struct {
	Restarts int
	InARow   int       // restarts since it was last well for its role's reset_after
	Running  time.Time // when its newest life began to run, if that was one begun alone; zero while it does not
}

// ofWorker reports whether a failure concerns one worker and nothing that its peers share. A device or
// node that is ill or taken away needs another place, a port that a stranger has needs another, and places and
// ports are the role's.
func ofWorker(f role.Failure) bool {
	switch f.Cause {
	case role.Hardware, role.Preempted, role.PortTaken, role.Unreachable, role.Unrepaired, role.Operator:
		return false
	default:
		return f.Life.Rank != role.NoRank
	}
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
	s.Restarts++
	rp := p.Roles[key.Role]
	l.Times.Workers[key] = charged(l.Times.Workers[key], rp.Window, rp.EscalateAt, now)
	l.Workers[key] = s
	return l
}

// forgiveWorkers forgets what the role's workers have spent alone. The ledger is the caller's own.
func (l Ledger) forgiveWorkers(name role.Name) {
	for key := range l.Workers {
		if key.Role == name {
			delete(l.Workers, key)
			delete(l.Times.Workers, key)
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
