package service

import (
	"strings"
	"testing"

	"vigil/api"
	"vigil/internal/role"
)

// A script that starts its program in the background and ends has ended well, and the program is ended with the role. That
// is said, once, of whatever outlives the worker: a child, a daemon, several; not of what ends by itself, and not where
// the worker has failed.
// shows: FAULT-C6
func TestWhatAWorkerThatEndsWellLeavesRunningIsSaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		waits  bool // for the notice, before the stop
		fails  bool
		says   []string // nil: nothing
	}{
		"a child, at the stop":         {script: `sleep 1000 & exit 0`, says: []string{"sleep: it is ended now"}},
		"a child, while the role goes": {script: `sleep 1000 & exit 0`, waits: true, says: []string{"sleep: it goes on only until the role is stopped"}},
		"a daemon and a child":         {script: `setsid sleep 1000 & sleep 1000 & exit 0`, says: []string{"sleep, pid ", "sleep: it is ended now"}},
		"what ends by itself":          {script: `sleep 0.05 & exit 0`},
		"nothing is left":              {script: `exit 0`},
		"the worker has failed":        {script: `sleep 1000 & exit 3`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := workerOf(c.script)
			r.Workers = 1
			s := enter(t, r)
			order := runOrder(1)
			order.WorldSize, order.Workers = 1, order.Workers[:1]
			s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
			if c.fails {
				s.ears.awaitFailure(t, 1)
			} else {
				s.ears.awaitState(t, 0, role.WorkerFinished)
			}
			if c.waits {
				s.ears.await(t, "the notice", func() bool { return len(s.ears.notices) == 1 })
			}
			s.must(stop(&api.Stop{}))
			var said []string
			for _, n := range s.ears.said() {
				if strings.Contains(n, "has left behind pid ") {
					said = append(said, n)
				}
			}
			if (len(said) == 1) != (c.says != nil) || len(said) > 1 {
				t.Fatalf("said %q", said)
			}
			for _, want := range c.says {
				if !strings.Contains(said[0], want) {
					t.Errorf("said %q, want %q in it", said[0], want)
				}
			}
		})
	}
}

// said are the notices that were told.
func (e *ears) said() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.notices...)
}
