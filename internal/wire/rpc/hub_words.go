package rpc

import (
	"fmt"
	"math"
	"time"

	"vigil/api"
)

// hearHello hands on what a session begins with. Of the words that it repeats, those are handed on that this hub
// has not heard of the service's process: a failure before the state of its worker, so that its reason is known first.
func (h *Hub) hearHello(of *service, hello *api.Hello) {
	now := time.Now()
	heard := h.count(of, 0)
	isNew := func(number uint64) bool {
		h.count(of, number)
		return number > heard
	}
	if hello.Dropped > 0 {
		h.o.Dropped(of.reg.ID, fmt.Sprintf("%d words were dropped by the service: too many of one kind and worker waited", hello.Dropped))
	}
	if e := hello.Ending; e != nil {
		h.o.Ears.Ending(of.reg, e.Signal)
	}
	if a := hello.Asked; a != nil && isNew(a.Number) {
		h.o.Ears.Asked(of.reg, a.What)
	}
	for _, f := range hello.Failures {
		if isNew(f.Number) {
			h.hearFailure(of, f, now)
		}
	}
	h.hearStepSet(of, hello.StepSet, now)
	for _, w := range hello.Workers {
		past := w.GetPast()
		for _, f := range past.GetFailures() {
			if isNew(f.Number) {
				h.hearFailure(of, f, now)
			}
		}
		h.hearWorker(of, w, again)
		if c := past.GetCheckpoint(); c != nil && isNew(c.Number) {
			h.hearCheckpoint(of, c, now)
		}
		for _, n := range past.GetNotices() {
			if isNew(n.Number) {
				h.hearNotice(of, n)
			}
		}
	}
}

// count notes the number of a word that is heard, and returns the highest one heard before.
func (h *Hub) count(of *service, number uint64) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := of.heard
	of.heard = max(of.heard, number)
	return before
}

func (h *Hub) hearFailure(of *service, w *api.Failure, now time.Time) {
	f, err := readFailure(h.o.JobUID, of.reg.ID.Role, w, now)
	if err != nil {
		h.o.Dropped(of.reg.ID, err.Error())
		return
	}
	h.o.Ears.Failed(f, of.reg.ID)
}

func (h *Hub) hearCheckpoint(of *service, c *api.Checkpoint, now time.Time) {
	life, err := readLife(h.o.JobUID, of.reg.ID.Role, c.GetLife())
	if err != nil {
		h.o.Dropped(of.reg.ID, err.Error())
		return
	}
	h.o.Ears.Checkpoint(life, c.Step, before(now, c.AgeMs))
}

func (h *Hub) hearNotice(of *service, n *api.Notice) {
	life, err := readLife(h.o.JobUID, of.reg.ID.Role, n.GetLife())
	if err != nil {
		h.o.Dropped(of.reg.ID, err.Error())
		return
	}
	if n.Text != "" {
		h.o.Ears.Notice(life, n.Text)
	}
	if n.Foreign > 0 {
		h.o.Ears.Foreign(life, n.Foreign)
	}
	if n.Unreadable {
		h.o.Ears.Unreadable(life)
	}
}

// hearStepSet hands on a step that was set at the service's own endpoint; nil: none was.
func (h *Hub) hearStepSet(of *service, s *api.StepSet, now time.Time) {
	switch {
	case s == nil:
	case s.Step < 0 || s.Number == 0 || s.Incarnation > math.MaxInt32:
		h.o.Dropped(of.reg.ID, "a set step that nobody could have set")
	default:
		h.o.Ears.StepSet(of.reg.ID, StepSet{Number: s.Number, Step: s.Step, Taken: s.Taken, Incarnation: int(s.Incarnation), At: before(now, s.AgeMs)})
	}
}
