package controller

import (
	"fmt"
	"time"

	"vigil/internal/journal"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// journalFile is the journal's name in the state directory.
const journalFile = "journal.db"

// The keys of what the journal has one of.
const (
	groundKey    = "ground"
	placementKey = "table" // of a placement table in one record, as earlier versions kept it
)

// groundRecord is what a run keeps of the machine over the lives of its controller.
type groundRecord struct {
	Secret  string   `json:"secret"`
	HTTP    string   `json:"http"`              // where it listened
	Devices []string `json:"devices"`           // that it has claimed
	Stopped int      `json:"stopped,omitempty"` // exit code of its last controller, if that ended in order and left the run open
}

// serviceRecord is a service that was started.
type serviceRecord struct {
	Role        role.Name `json:"role"`
	Index       int       `json:"index"`
	Incarnation int       `json:"incarnation"`
	PID         int       `json:"pid"`
	Start       uint64    `json:"start"` // in clock ticks since boot
}

func (s serviceRecord) who() proc.Ident { return proc.Ident{PID: s.PID, StartTime: s.Start} }

// leaseRecord is the ports of a role's current life.
type leaseRecord struct {
	Ports []int                  `json:"ports"`
	Named map[int]map[string]int `json:"named"` // of each rank, by name
}

// closeRun records that the run has ended, if its exit ends it, and closes the journal.
func (c *Controller) closeRun() error {
	c.mu.Lock()
	out := c.outcome
	c.mu.Unlock()
	switch {
	case out == nil:
	case journal.Closes(out.Exit):
		if err := willTell(c.ground.home, c.uid); err != nil {
			c.log.Warn("a controller that is killed now is followed by another run", "error", err)
		}
		if err := c.ground.journal.CloseRun(out.Exit, out.Why); err != nil {
			c.log.Error("the end of the run is not recorded: the next start will go on with it", "error", err)
		}
		c.opts.dieIfClosed()
	default:
		kept := c.ground.kept
		kept.Stopped = out.Exit
		c.ground.journal.Write(journal.Put(journal.Ground, groundKey, kept))
	}
	return c.ground.journal.Close()
}

// bootID names the time since the machine's last boot (random(4), proc(5)).
func bootID() (string, error) {
	return readLine("/proc/sys/kernel/random/boot_id")
}

// adoptTime bounds the wait for living services to register with a new controller.
const adoptTime = 10 * time.Second

// otherHostError says that a run is open on another machine.
type otherHostError struct{ uid, host, here string }

func (e *otherHostError) Error() string {
	return fmt.Sprintf("the run %s of this job is open on %s, where its processes may be alive, and this is %s: start it there, or give it up with --forget-state", e.uid, e.host, e.here)
}
