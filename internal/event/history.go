package event

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"vigil/internal/role"
)

// Incident is one failure with everything that followed. Times that were not reached are zero.
type Incident struct {
	ID          string
	Role        role.Name
	Rank        int // role.NoRank for the whole role
	Incarnation int // the life that failed
	Attempt     int // the same; 0 for the whole role
	Cause       role.Cause
	Detail      string
	Log         string // path of the log that tells more; may be empty
	Action      role.Action
	Rule        string
	Why         string
	Roles       []role.Name // that the decision touches
	Detected    time.Time
	Decided     time.Time
	Stopped     time.Time // the old life had ended
	Clean       time.Time // nothing of it was left, proved
	Started     time.Time // the new workers ran
	FirstStep   time.Time // the new life first spoke
	Ended       time.Time // of the plan, or of the job
	Error       string    // why the repair did not succeed
	Held        []string  // who held on when it was stopped
	Events      []Event

	led   string // the incident whose plan mends this one too
	alone bool   // only its worker is restarted
}

// Open reports whether the repair is still under way.
func (i *Incident) Open() bool { return i.Ended.IsZero() }

// mostEvents is how many events one incident keeps.
const mostEvents = 200

// History adds events up to incidents and keeps the newest. Its methods may be called from any
// goroutine; Observe is a hook of Log.
type History struct {
	mu   sync.Mutex
	size int
	kept []*Incident // oldest first
}

// NewHistory returns a history of the newest size incidents.
func NewHistory(size int) *History { return &History{size: size} }

// GoOn remembers an incident of an earlier controller whose repair goes on: led is the incident whose plan mends
// it, its own or another, and alone says that only its worker is restarted.
func (h *History) GoOn(i Incident, led string, alone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i.led, i.alone = led, alone
	h.kept = append(h.kept, &i)
}

// Observe takes in what happened.
func (h *History) Observe(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch e.Kind {
	case Failure:
		h.kept = append(h.kept, &Incident{ID: e.Incident, Role: e.Role, Rank: e.Rank, Incarnation: e.Incarnation, Attempt: e.Attempt, Cause: e.Cause, Detail: e.Detail, Log: e.Log, Detected: e.At, Events: []Event{e}, led: e.Incident})
		if len(h.kept) > h.size {
			h.kept = slices.Delete(h.kept, 0, 1)
		}
		return
	case Decided:
		for _, i := range h.kept {
			if i.ID == e.Incident || i.answeredBy(e) {
				i.Action, i.Rule, i.Why, i.Roles, i.led = e.Action, e.Rule, e.Detail, e.Roles, e.Incident
				i.alone, i.Ended, i.Error = e.Rank != role.NoRank, time.Time{}, ""
				if i.Decided.IsZero() {
					i.Decided = e.At
				}
			}
		}
	case FirstStep:
		for _, i := range h.kept {
			if i.FirstStep.IsZero() && i.isBefore(e) { // perhaps before it is known that the workers were started
				i.FirstStep = e.At
				i.add(e)
			}
		}
		return
	case WorkerReady, WorkerQuarantined:
		for _, i := range h.kept {
			if i.alone && i.isBefore(e) && !i.Started.IsZero() {
				i.add(e)
			}
		}
		return
	case JobEnded:
		for _, i := range h.kept {
			i.Ended = cmp.Or(i.Ended, e.At)
		}
		return
	default: // what belongs to an incident says so
	}
	if e.Incident == "" {
		return
	}
	for _, i := range h.kept {
		if i.ID == e.Incident || i.led == e.Incident {
			i.follow(e)
		}
	}
}

// isBefore reports whether an event is of a life that follows the one that failed.
func (i *Incident) isBefore(e Event) bool {
	next := e.Incarnation > i.Incarnation
	if i.alone {
		next = next || e.Incarnation == i.Incarnation && e.Rank == i.Rank && e.Attempt > i.Attempt
	}
	return next && i.Role == e.Role
}

// answeredBy reports whether a decision about another incident mends this one too: because nothing has
// been decided about it yet, or because its own repair, still under way, is overruled, or was one of its
// worker alone and did not succeed.
func (i *Incident) answeredBy(e Event) bool {
	if e.Rank != role.NoRank {
		return false // it is about one other worker
	}
	overrules := i.Open() && e.Action != role.InPlace || i.alone && (i.Open() || i.Error != "")
	return (i.Decided.IsZero() || overrules) && slices.Contains(e.Roles, i.Role)
}

// follow takes in an event of the plan that mends the incident, or of one that was overruled. Only
// moves on the incident's own role set its times, since the plan may mend others beside it.
func (i *Incident) follow(e Event) {
	i.add(e)
	switch {
	case e.Incident != i.led: // an overruled plan sets none
	case e.Rank != role.NoRank && e.Rank != i.Rank: // of another worker
	case e.Kind == PlanEnded && (len(e.Roles) == 0 || slices.Contains(e.Roles, i.Role)):
		i.Ended, i.Error = e.At, e.Error
	case e.Kind == Moved && e.Role == i.Role && e.Error == "":
		switch e.Verb {
		case "stop_service":
			i.Stopped, i.Clean = e.At, e.At // it ends with the proof
			if e.Detail != "" {
				i.Held = append(i.Held, e.Detail)
			}
		case "run":
			i.Started = e.At
			if !i.FirstStep.IsZero() && i.FirstStep.Before(e.At) {
				i.Started = i.FirstStep
			}
		}
	}
}

func (i *Incident) add(e Event) {
	if len(i.Events) < mostEvents {
		i.Events = append(i.Events, e)
	}
}

// Incidents returns copies of what is remembered, newest first, without their events.
func (h *History) Incidents() []Incident {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Incident, 0, len(h.kept))
	for _, i := range slices.Backward(h.kept) {
		c := *i
		c.Events, c.Held = nil, slices.Clone(i.Held)
		out = append(out, c)
	}
	return out
}

// Incident returns a copy of one, with its events; false when it is not remembered.
func (h *History) Incident(id string) (Incident, bool) {
	if _, err := strconv.Atoi(id); err != nil {
		return Incident{}, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, i := range h.kept {
		if i.ID == id {
			c := *i
			c.Events, c.Held = slices.Clone(i.Events), slices.Clone(i.Held)
			return c, true
		}
	}
	return Incident{}, false
}
