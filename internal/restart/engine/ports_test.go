package engine_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// heldUntil is a port that is held until some time; never where it is zero.
type heldUntil struct {
	until atomic.Pointer[time.Time]
	asked atomic.Int64
}

func (h *heldUntil) Held(name role.Name, rank int) string {
	h.asked.Add(1)
	if t := h.until.Load(); name == "critic" && (t == nil || time.Now().Before(*t)) {
		return "port 21151 (http), held by earlier connections (TIME_WAIT)"
	}
	return ""
}

func (h *heldUntil) in(d time.Duration) {
	at := time.Now().Add(d)
	h.until.Store(&at)
}

// A role that could not bind its port, because the kernel keeps earlier connections there, waits for it, for a minute at
// most, and spends nothing. One that never said so is not kept waiting: most servers bind such a port. An end of the job
// is not kept waiting either.
// shows: FAULT-F4
func TestARoleThatCouldNotBindItsPortWaitsForIt(t *testing.T) {
	fails := func(s *stage, cause role.Cause) {
		s.engine.Found([]role.Failure{{Life: role.Life{Role: "critic", Incarnation: s.engine.Status("critic").Incarnation, Attempt: 1}, Cause: cause, Detail: "address already in use", At: time.Now()}}, nil)
	}
	for name, c := range map[string]struct {
		cause   role.Cause
		held    time.Duration // 0: for ever
		waits   time.Duration // about
		spent   int           // restarts in place
		ordered bool          // the job is stopped meanwhile
	}{
		"until it is free":               {cause: role.PortTaken, held: 40 * time.Second, waits: 40 * time.Second},
		"a minute at most":               {cause: role.PortTaken, waits: time.Minute},
		"not for another cause":          {cause: role.Exited, held: 40 * time.Second, spent: 1},
		"not while the job is to be end": {cause: role.PortTaken, ordered: true},
	} {
		t.Run(name, func(t *testing.T) {
			held := &heldUntil{}
			held.until.Store(&time.Time{})
			roles := []job.Role{roleOf("actor"), roleOf("critic")}
			playPorts(t, held, roles, func(t *testing.T, s *stage) {
				if c.held > 0 {
					held.in(c.held)
				} else {
					held.until.Store(nil)
				}
				began := time.Now()
				fails(s, c.cause)
				time.Sleep(5 * time.Second)
				if c.waits > 0 {
					if st := s.engine.Status("critic"); !strings.Contains(st.Why, "port 21151") {
						t.Errorf("critic is %+v, want that it waits for its port", st)
					}
				}
				if c.ordered {
					s.engine.StopJob("stopped by SIGTERM", 143)
					time.Sleep(5 * time.Second)
					select {
					case out := <-s.outcome:
						s.outcome <- out
					default:
						t.Error("the job goes on to wait")
					}
					return
				}
				for s.engine.Status("critic").State != role.Running && time.Since(began) < 5*time.Minute {
					time.Sleep(time.Second)
				}
				if took := time.Since(began); took < c.waits || took > c.waits+10*time.Second {
					t.Errorf("it runs after %s, want %s", took, c.waits)
				}
				if spent := s.engine.Ledger(); spent.Roles["critic"].InPlace != c.spent || spent.Global != 0 {
					t.Errorf("spent %+v, want %d in place", spent, c.spent)
				}
				if c.cause != role.PortTaken && held.asked.Load() > 0 {
					t.Error("it was asked for ports although the role has never failed for one")
				}
			})
		})
	}
}

func playPorts(t *testing.T, ports engine.Ports, roles []job.Role, test func(*testing.T, *stage)) {
	t.Helper()
	s := newStage(roles, restart.HealthCheckOn, 1)
	s.options.Ports = ports
	playStage(t, s, test)
}
