package controller

import (
	"fmt"
	"time"

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
	HTTP    string   `json:"http"`    // where it listened
	Devices []string `json:"devices"` // that it has claimed
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
