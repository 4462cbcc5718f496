// Package memory keeps in the journal what the engine and health must know again when their controller has
// died and another goes on with the run.
package memory

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// The keys of what the journal has one of.
const (
	ledgerKey    = "ledger"
	incidentsKey = "incidents"
)

// Memory is the journal as the engine sees it.
type Memory struct{ journal *journal.Journal }

// On returns the memory in a journal.
func On(j *journal.Journal) Memory { return Memory{j} }

// Keep queues an update, and returns what waits until it is durable.
func (m Memory) Keep(u engine.Update) func(context.Context) error {
	return m.journal.Write(entries(u)...).Wait
}

// Note makes an update durable soon. What goes wrong with the disk is said by the journal itself.
func (m Memory) Note(u engine.Update) { m.journal.Write(entries(u)...) }

// Trouble says what keeps the journal from being written.
func (m Memory) Trouble() (string, bool) { return m.journal.Trouble() }

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

// Read returns what an earlier controller of the run has kept for the engine.
func Read(j *journal.Journal) (*engine.Remembered, error) {
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

// healthRecord is what no heartbeat will tell a later controller.
type healthRecord struct {
	Step        int64 `json:"step"`
	Saved       int64 `json:"saved"`
	Quarantined []int `json:"quarantined,omitempty"`

	Rhythm health.Rhythm `json:"rhythm"`
}

// Health keeps what no heartbeat will tell a later controller. It may be used from many goroutines: what is written
// last is what was known last.
type Health struct {
	Journal *journal.Journal
	Job     *job.Job
	Store   *health.Store

	mu   sync.Mutex
	kept map[role.Name]health.Rhythm
}

// Observe writes when an event says that something has changed.
func (h *Health) Observe(e event.Event) {
	r, ok := h.Job.Role(e.Role)
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
	h.mu.Lock()
	defer h.mu.Unlock()
	h.write(r)
}

// Learned writes what has been learned of the roles' rhythms since it was last written, where that is worth it.
func (h *Health) Learned() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.Job.Roles {
		if r := &h.Job.Roles[i]; h.Store.Rhythm(r.Name).Teaches(h.kept[r.Name]) {
			h.write(r)
		}
	}
}

// write queues a role's record. The caller has the lock.
func (h *Health) write(r *job.Role) {
	now := healthRecord{Rhythm: h.Store.Rhythm(r.Name)}
	now.Step, now.Saved = h.Store.Standing(r.Name)
	if r.Restart.Rejoin == job.RejoinManual {
		rec, _ := h.Store.Record(r.Name) // it is a role of the job
		for _, k := range rec.Ranks {
			if k.Held {
				now.Quarantined = append(now.Quarantined, k.Rank)
			}
		}
	}
	if h.kept == nil {
		h.kept = map[role.Name]health.Rhythm{}
	}
	h.kept[r.Name] = now.Rhythm
	h.Journal.Write(journal.Put(journal.Health, string(r.Name), now))
}

// RestoreHealth lets health know what it knew under an earlier controller.
func RestoreHealth(j *journal.Journal, roles *job.Job, store *health.Store, m *engine.Remembered) error {
	known, err := journal.Read[healthRecord](j, journal.Health)
	if err != nil {
		return err
	}
	for _, n := range roles.Names() {
		was, ok := m.Roles[n]
		if !ok || was.Incarnation == 0 {
			continue
		}
		h, ok := known[string(n)]
		if !ok {
			h = healthRecord{Step: was.Step, Saved: -1}
		}
		before := health.Before{Incarnation: was.Incarnation, Attempts: was.Attempts, Quarantined: h.Quarantined, Step: max(h.Step, was.Step), Saved: h.Saved, Was: health.AtWork, Rhythm: h.Rhythm}
		switch {
		case was.Finished:
			before.Was = health.WellDone
		case was.ByHand:
			before.Was = health.Idle
		}
		store.Restore(n, before)
	}
	return nil
}
