package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/proc"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// The keys of what the journal has one of.
const (
	ledgerKey    = "ledger"
	incidentsKey = "incidents"
	groundKey    = "ground"
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

// healthRecord is what no heartbeat will tell a later controller.
type healthRecord struct {
	Step        int64 `json:"step"`
	Saved       int64 `json:"saved"`
	Quarantined []int `json:"quarantined,omitempty"`
}

// memory is the journal as the engine sees it.
type memory struct{ journal *journal.Journal }

// Keep queues an update, and returns what waits until it is durable.
func (m memory) Keep(u engine.Update) func(context.Context) error {
	return m.journal.Write(entries(u)...).Wait
}

// Note makes an update durable soon. What goes wrong with the disk is said by the journal itself.
func (m memory) Note(u engine.Update) { m.journal.Write(entries(u)...) }

// Trouble says what keeps the journal from being written.
func (m memory) Trouble() (string, bool) { return m.journal.Trouble() }

// entries are an update's records: all of them are kept, or none.
func entries(u engine.Update) []journal.Entry {
	var all []journal.Entry
	if u.Ledger != nil {
		all = append(all, journal.Put(journal.Ledger, ledgerKey, u.Ledger))
	}
	if u.Incidents > 0 {
		all = append(all, journal.Put(journal.Ledger, incidentsKey, u.Incidents))
	}
	for name, r := range u.Roles {
		all = append(all, journal.Put(journal.Role, string(name), r))
	}
	if u.Ended > 0 {
		all = append(all, journal.Delete(journal.Plan, strconv.Itoa(u.Ended)))
	}
	if u.Began != nil {
		all = append(all, journal.Put(journal.Plan, strconv.Itoa(u.Began.ID), u.Began))
	}
	return all
}

// remembered reads what an earlier controller of the run has kept for the engine.
func remembered(j *journal.Journal) (*engine.Remembered, error) {
	m := &engine.Remembered{Ledger: restart.NewLedger(), Roles: map[role.Name]engine.RoleMemory{}}
	roles, err := journal.Read[engine.RoleMemory](j, journal.Role)
	if err != nil {
		return nil, err
	}
	for name, r := range roles {
		m.Roles[role.Name(name)] = r
	}
	plans, err := journal.Read[engine.PlanMemory](j, journal.Plan)
	if err != nil {
		return nil, err
	}
	for _, p := range plans {
		m.Plans = append(m.Plans, p)
	}
	slices.SortFunc(m.Plans, func(a, b engine.PlanMemory) int { return cmp.Compare(a.ID, b.ID) })
	if ledger, ok, err := journal.ReadOne[restart.Ledger](j, journal.Ledger, ledgerKey); err != nil {
		return nil, err
	} else if ok {
		m.Ledger = ledger.Clone()
	}
	m.Incidents, _, err = journal.ReadOne[int](j, journal.Ledger, incidentsKey)
	return m, err
}

// restore lets health know what it knew in an earlier controller.
func (c *Controller) restore(m *engine.Remembered) error {
	if m == nil {
		return nil
	}
	known, err := journal.Read[healthRecord](c.ground.journal, journal.Health)
	if err != nil {
		return err
	}
	for _, n := range c.opts.Job.Names() {
		was, ok := m.Roles[n]
		if !ok || was.Incarnation == 0 {
			continue
		}
		h, ok := known[string(n)]
		if !ok {
			h = healthRecord{Step: was.Step, Saved: -1}
		}
		before := health.Before{Incarnation: was.Incarnation, Attempts: was.Attempts, Quarantined: h.Quarantined, Step: max(h.Step, was.Step), Saved: h.Saved, Was: health.AtWork}
		switch {
		case was.Finished:
			before.Was = health.WellDone
		case was.ByHand:
			before.Was = health.Idle
		}
		c.store.Restore(n, before)
	}
	return nil
}

// keepHealth is a hook of the event log: it keeps what no heartbeat will tell a later controller.
func (c *Controller) keepHealth(e event.Event) {
	r, ok := c.opts.Job.Role(e.Role)
	if !ok {
		return
	}
	admitted := r.Restart.Rejoin == job.RejoinManual
	switch e.Kind {
	case event.Checkpoint, event.FirstStep:
	case event.WorkerStarted, event.WorkerQuarantined, event.WorkerReady:
		if !admitted {
			return
		}
	default:
		return
	}
	var h healthRecord
	h.Step, h.Saved = c.store.Standing(e.Role)
	if admitted {
		rec, _ := c.store.Record(e.Role) // it is a role of the job
		for _, k := range rec.Ranks {
			if k.Held {
				h.Quarantined = append(h.Quarantined, k.Rank)
			}
		}
	}
	c.ground.journal.Write(journal.Put(journal.Health, string(e.Role), h))
}

// closeRun records that the run has ended, if its exit ends it, and closes the journal.
func (c *Controller) closeRun() error {
	c.mu.Lock()
	out := c.outcome
	c.mu.Unlock()
	switch {
	case out == nil:
	case journal.Closes(out.Exit):
		if err := c.ground.journal.CloseRun(out.Exit, out.Why); err != nil {
			c.log.Error("the end of the run is not recorded: the next start will go on with it", "error", err)
		}
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
