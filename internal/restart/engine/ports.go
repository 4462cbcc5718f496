package engine

import (
	"context"
	"time"

	"vigil/internal/role"
)

// Ports says which ports of a role cannot be bound yet because the kernel keeps earlier connections there.
type Ports interface {
	// Held says which of the ports that the next life has again is held, and by what; empty: none. Rank is NoRank for
	// a whole role, of which those are the ports that the job file chooses.
	Held(name role.Name, rank int) string
}

// portWait is how long a life waits for its ports at most: the kernel keeps a closed connection for 60 s (TCP_TIMEWAIT_LEN,
// include/net/tcp.h).
const portWait = 60 * time.Second

// portPoll is how often it is looked whether they are free.
const portPoll = 500 * time.Millisecond

// needsPorts takes in that a life could not bind a port. From then on the role waits for its ports; others do not: most
// servers bind a port that earlier connections hold (SO_REUSEADDR), and would wait a minute for nothing.
func (e *Engine) needsPorts(f role.Failure) {
	if f.Cause != role.PortTaken {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.roles[f.Life.Role].waitsForPorts = true
}

// awaitPorts waits until the ports of a role's next life can be bound, or a stronger decision ends the plan. The life is
// begun in any case when the time is over, or an operator does not wait: then it fails for a reason of its own. over is
// true if it is not to begin: the plan ends, or an operator has taken the role out of it.
func (e *Engine) awaitPorts(r *run, name role.Name, rank int) (res result, over bool) {
	if e.Ports == nil || !e.state(name).waitsForPorts {
		return result{}, false
	}
	part := r.part[name]
	began, said := time.Now(), false
	for {
		held := e.Ports.Held(name, rank)
		if held == "" || time.Since(began) >= portWait {
			return result{}, false
		}
		if !said {
			e.Log.Info("waits for a port of '"+string(name)+"', which costs nothing", "port", held, "limit", portWait)
			said = true
		}
		e.setWhy(name, "waits, at most "+portWait.String()+", for "+held)
		look := time.NewTimer(portPoll)
		select {
		case <-look.C:
		case <-part.hurry:
			look.Stop()
			return result{}, false
		case <-part.leave:
			look.Stop()
			return result{detail: leftDetail}, true
		case <-r.boundary.Done():
			look.Stop()
			return result{err: context.Cause(r.boundary)}, true
		}
	}
}
