package memory

import (
	"maps"
	"sync"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// stepsKey is that of the one record with the newest steps of all roles.
const stepsKey = "newest"

// healthRecord is what no heartbeat will tell a later controller.
type healthRecord struct {
	Incarnation int           `json:"incarnation,omitempty"` // that Step was reached in; 0: not known
	Step        int64         `json:"step"`
	Saved       int64         `json:"saved"`
	SavedBy     map[int]int64 `json:"saved_by,omitempty"`    // by rank
	SavedAgain  bool          `json:"saved_again,omitempty"` // one of them has saved a second step
	Quarantined []int         `json:"quarantined,omitempty"`

	Rhythm health.Rhythm `json:"rhythm"`
}

// Health keeps what no heartbeat will tell a later controller. It may be used from many goroutines: what is written
// last is what was known last.
type Health struct {
	Journal *journal.Journal
	Job     *job.Job
	Store   *health.Store

	mu    sync.Mutex
	kept  map[role.Name]health.Rhythm
	steps map[role.Name]health.Reach // as they were written last
	saved map[role.Name]int64        // the same: of each role the newest whole checkpoint
	due   map[role.Name]bool         // ranks have saved more since
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
	_, whole := h.Store.Standing(r.Name)
	if was, written := h.saved[r.Name]; e.Kind == event.Checkpoint && written && was == whole {
		h.due[r.Name] = true // many ranks may say so at once; their services know it too
		return
	}
	h.write(r)
}

// Learned writes what has been learned of the roles' rhythms since it was last written, where that is worth it, and
// what single ranks have saved.
func (h *Health) Learned() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.Job.Roles {
		if r := &h.Job.Roles[i]; h.due[r.Name] || h.Store.Rhythm(r.Name).Teaches(h.kept[r.Name]) {
			h.write(r)
		}
	}
}

// Steps writes the newest steps of all roles, in one record, if they have changed. Heartbeats themselves are
// written nowhere.
func (h *Health) Steps() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, changed := h.newest(); changed {
		h.Journal.Write(e)
	}
}

// SetStep writes that a role's step was set, before anything is written that takes it for settled: what is known of
// the line that was given up is replaced.
func (h *Health) SetStep(name role.Name) {
	r, ok := h.Job.Role(name)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e, _ := h.newest()
	h.Journal.Write(e, h.entry(r))
}

// newest is the record of all steps. The caller has the lock.
func (h *Health) newest() (e journal.Entry, changed bool) {
	now := h.Store.Reaches()
	changed = !maps.Equal(now, h.steps)
	h.steps = now
	return journal.Put(journal.Steps, stepsKey, now), changed
}

// write queues a role's record. The caller has the lock.
func (h *Health) write(r *job.Role) { h.Journal.Write(h.entry(r)) }

// entry is a role's record. The caller has the lock.
func (h *Health) entry(r *job.Role) journal.Entry {
	saved, reach := h.Store.Saved(r.Name), h.Store.Reach(r.Name)
	now := healthRecord{Incarnation: reach.Incarnation, Step: reach.Step, Saved: saved.Whole, SavedBy: saved.Ranks, SavedAgain: saved.Again, Rhythm: h.Store.Rhythm(r.Name)}
	if r.Restart.Rejoin == job.RejoinManual {
		rec, _ := h.Store.Record(r.Name) // it is a role of the job
		for _, k := range rec.Ranks {
			if k.Held {
				now.Quarantined = append(now.Quarantined, k.Rank)
			}
		}
	}
	if h.kept == nil {
		h.kept, h.saved, h.due = map[role.Name]health.Rhythm{}, map[role.Name]int64{}, map[role.Name]bool{}
	}
	h.kept[r.Name], h.saved[r.Name] = now.Rhythm, saved.Whole
	delete(h.due, r.Name)
	return journal.Put(journal.Health, string(r.Name), now)
}

// RestoreHealth lets health know what it knew under an earlier controller.
func RestoreHealth(j *journal.Journal, roles *job.Job, store *health.Store, m *engine.Remembered, now time.Time) error {
	known, err := journal.Read[healthRecord](j, journal.Health)
	if err != nil {
		return err
	}
	newest, _, err := journal.ReadOne[map[role.Name]health.Reach](j, journal.Steps, stepsKey)
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
			h = healthRecord{Saved: -1}
		}
		before := health.Before{Incarnation: was.Incarnation, Attempts: was.Attempts, Quarantined: h.Quarantined, Was: health.AtWork, Rhythm: h.Rhythm}
		before.Step, before.Saved = h.goesOnFrom(was, newest[n])
		switch {
		case was.Finished:
			before.Was = health.WellDone
		case was.ByHand:
			before.Was = health.Idle
		}
		store.Restore(n, before)
	}
	return restorePauses(j, roles.Names(), store, m, now)
}

// goesOnFrom is the step that a role had reached, and what it had saved. What was reached in an earlier life than the
// newest, or before a step was assigned to the next, is of no account: that step stands, and what was saved beyond it
// is of a line that was given up.
func (h healthRecord) goesOnFrom(was engine.RoleMemory, newest health.Reach) (int64, health.Saved) {
	saved := health.Saved{Whole: h.Saved, Ranks: h.SavedBy, Again: h.SavedAgain}
	if was.Assigned {
		return was.Step, saved.Beyond(was.Step)
	}
	step, current := was.Step, false
	if h.Incarnation == was.Incarnation {
		step, current = h.Step, true
	}
	if newest.Incarnation == was.Incarnation {
		if !current || newest.Step > step {
			step = newest.Step
		}
	}
	switch {
	case current:
	case h.Incarnation == 0: // written by a version that did not say in which life
		step = max(step, h.Step)
	default:
		saved = saved.Beyond(was.Step)
	}
	return step, saved
}
