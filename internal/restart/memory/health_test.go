package memory_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/restart/engine"
	"vigil/internal/restart/memory"
	"vigil/internal/role"
)

const uid = "test-00000001"

// house is a job of one role under a journal.
type house struct {
	*testing.T
	job     *job.Job
	path    string
	journal *journal.Journal
	store   *health.Store
	keeping *memory.Health
}

func newHouse(t *testing.T) *house {
	h := &house{T: t, job: &job.Job{Name: "test", Roles: []job.Role{{Name: "critic", Workers: 2, State: job.Checkpointed}}}, path: filepath.Join(t.TempDir(), "journal.db")}
	h.open()
	if err := h.journal.BeginRun(journal.Run{UID: uid, Job: "test", Began: time.Now(), Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.journal.Close() })
	return h
}

func (h *house) open() {
	h.Helper()
	var err error
	if h.journal, err = journal.Open(h.path, journal.Options{Job: "test"}); err != nil {
		h.Fatal(err)
	}
	h.store = health.NewStore(uid, time.Second, nil, health.Spec{Name: "critic", Workers: 2, Stateful: true})
	h.keeping = &memory.Health{Journal: h.journal, Job: h.job, Store: h.store}
}

// begin begins the role's next life, as the engine does, and remembers it.
func (h *house) begin(step int64) {
	inc := h.store.Fence("critic")
	h.store.Begin("critic", step)
	h.remember(engine.RoleMemory{Incarnation: inc, Begun: true, Step: step})
}

func (h *house) remember(r engine.RoleMemory) {
	h.Helper()
	if err := memory.On(h.journal).Keep(engine.Update{Roles: map[role.Name]engine.RoleMemory{"critic": r}})(context.Background()); err != nil {
		h.Fatal(err)
	}
}

func (h *house) life(rank int) role.Life {
	rec, err := h.store.Record("critic")
	if err != nil {
		h.Fatal(err)
	}
	return rec.Ranks[rank].Life
}

// says has both ranks say a step; the first of a life is an event.
func (h *house) says(step int64) {
	for rank := range 2 {
		h.store.Beat(h.life(rank), &step, time.Now())
	}
}

func (h *house) saves(step int64) {
	for rank := range 2 {
		h.store.Checkpoint(h.life(rank), step)
	}
	h.keeping.Observe(event.Event{Kind: event.Checkpoint, Role: "critic"})
}

// next is what the next controller knows.
func (h *house) next() (step, saved int64) {
	h.Helper()
	if err := h.journal.Close(); err != nil {
		h.Fatal(err)
	}
	h.open()
	m, err := memory.Read(h.journal)
	if err != nil {
		h.Fatal(err)
	}
	if err := memory.RestoreHealth(h.journal, h.job, h.store, m, time.Now()); err != nil {
		h.Fatal(err)
	}
	return h.store.Standing("critic")
}

// What the next controller knows of a role is of its newest life and line, whatever was written of the ones before.
// shows: FAULT-B3 FAULT-B8
func TestTheNextControllerGoesOnFromTheNewestLine(t *testing.T) {
	for name, c := range map[string]struct {
		play        func(*house)
		step, saved int64
	}{
		"a life that has said no step": {func(h *house) { h.begin(20) }, 20, -1},
		"the newest steps, as they were written last": {func(h *house) {
			h.begin(20)
			h.says(21)
			h.keeping.Observe(event.Event{Kind: event.FirstStep, Role: "critic"})
			h.says(95)
			h.keeping.Steps()
			h.says(99)
		}, 95, -1},
		"a checkpoint after them": {func(h *house) {
			h.begin(20)
			h.says(95)
			h.keeping.Steps()
			h.says(100)
			h.saves(100)
		}, 100, 100},
		"a life that began below the step that it was given": {func(h *house) {
			h.begin(20)
			h.says(3)
			h.keeping.Observe(event.Event{Kind: event.FirstStep, Role: "critic"})
		}, 3, -1},
		"a life from an earlier step": {func(h *house) {
			h.begin(20)
			h.says(105)
			h.saves(100)
			h.keeping.Steps()
			h.begin(50)
		}, 50, 50},
		"and what that has saved": {func(h *house) {
			h.begin(20)
			h.says(105)
			h.saves(100)
			h.keeping.Steps()
			h.begin(50)
			h.says(60)
			h.saves(60)
		}, 60, 60},
		"a step assigned to the next life": {func(h *house) {
			h.begin(20)
			h.says(105)
			h.saves(100)
			h.keeping.Steps()
			h.remember(engine.RoleMemory{Incarnation: 1, Begun: true, Step: 50, Assigned: true})
		}, 50, 50},
		"a step that the workers have taken": {func(h *house) {
			h.begin(20)
			h.says(105)
			h.saves(100)
			h.keeping.Steps()
			h.store.SetStep("critic", 50)
			h.keeping.SetStep("critic")
			h.remember(engine.RoleMemory{Incarnation: 1, Begun: true, Step: 50})
		}, 50, 50},
		"records of a version that did not say of which life they were": {func(h *house) {
			h.remember(engine.RoleMemory{Incarnation: 3, Begun: true, Step: 20})
			h.journal.Write(journal.Put(journal.Health, "critic", map[string]any{"step": 40, "saved": 30}))
		}, 40, 30},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			c.play(h)
			step, saved := h.next()
			if step != c.step || saved != c.saved {
				t.Errorf("step %d, checkpoint %d; want %d and %d", step, saved, c.step, c.saved)
			}
		})
	}
}

// A rank's share of a checkpoint is remembered as that rank's.
// shows: FAULT-B7
func TestAnIncompleteCheckpointIsNoneForTheNextController(t *testing.T) {
	h := newHouse(t)
	h.begin(0)
	h.says(105)
	h.store.Checkpoint(h.life(0), 100)
	h.keeping.Observe(event.Event{Kind: event.Checkpoint, Role: "critic"})
	h.keeping.Learned()
	if _, saved := h.next(); saved != -1 {
		t.Errorf("one of two ranks has saved 100, and the next controller takes %d for saved", saved)
	}
	h.store.Checkpoint(h.life(1), 100)
	if _, saved := h.store.Standing("critic"); saved != 100 {
		t.Errorf("now both have: %d", saved)
	}
}

// A controller that takes over before anything was saved waits for all ranks as the one before did.
// shows: FAULT-B7
func TestTheFirstCheckpointAfterATakeoverCountsWhenAllRanksHaveSavedIt(t *testing.T) {
	h := newHouse(t)
	h.begin(0)
	h.says(5)
	h.keeping.Observe(event.Event{Kind: event.FirstStep, Role: "critic"})
	h.next()
	h.store.Checkpoint(h.life(0), 10)
	if _, saved := h.store.Standing("critic"); saved != -1 {
		t.Errorf("one of two ranks has saved 10, which counts as %d", saved)
	}
	h.store.Checkpoint(h.life(1), 10)
	if _, saved := h.store.Standing("critic"); saved != 10 {
		t.Errorf("both have saved 10, which counts as %d", saved)
	}
}

// Heartbeats are not written, and the newest steps only when they have changed.
// shows: FAULT-C9
func TestTheNewestStepsAreOneRecordThatIsWrittenWhenTheyHaveChanged(t *testing.T) {
	h := newHouse(t)
	h.begin(0)
	commits := func(act func()) int {
		t.Helper()
		if err := h.journal.Close(); err != nil {
			t.Fatal(err)
		}
		n := 0
		var err error
		if h.journal, err = journal.Open(h.path, journal.Options{Job: "test", Fault: func(_ int, when journal.When) {
			if when == journal.After {
				n++
			}
		}}); err != nil {
			t.Fatal(err)
		}
		h.keeping.Journal = h.journal
		act()
		if err := h.journal.Close(); err != nil { // what is queued is written
			t.Fatal(err)
		}
		h.journal, err = journal.Open(h.path, journal.Options{Job: "test"})
		h.keeping.Journal = h.journal
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := commits(func() {
		for step := range int64(1000) {
			h.says(step)
		}
	}); n != 0 {
		t.Errorf("heartbeats were written in %d commits", n)
	}
	if n := commits(h.keeping.Steps); n != 1 {
		t.Errorf("new steps: %d commits, want 1", n)
	}
	if n := commits(h.keeping.Steps); n != 0 {
		t.Errorf("the same steps: %d commits, want none", n)
	}
	h.says(2000)
	if n := commits(h.keeping.Steps); n != 1 {
		t.Errorf("newer steps: %d commits, want 1", n)
	}
	if step, _ := h.next(); step != 2000 {
		t.Errorf("the next controller knows step %d, want 2000", step)
	}
}
