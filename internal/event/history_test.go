package event_test

import (
	"fmt"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// tale tells a history what happened, one second after the other.
type tale struct {
	*testing.T
	*event.History
	now time.Time
}

func newTale(t *testing.T) *tale { return &tale{t, event.NewHistory(10), noon} }

func (h *tale) tell(kind event.Kind, incident string, change func(*event.Event)) {
	h.now = h.now.Add(time.Second)
	e := event.New(h.now, kind)
	e.Incident = incident
	if change != nil {
		change(&e)
	}
	h.Observe(e)
}

func (h *tale) failed(incident string, name role.Name, inc int) {
	h.tell(event.Failure, incident, func(e *event.Event) { e.Role, e.Incarnation, e.Rank, e.Cause = name, inc, 0, role.Exited })
}

func (h *tale) decided(incident string, action role.Action, roles ...role.Name) {
	h.tell(event.Decided, incident, func(e *event.Event) { e.Action, e.Rule, e.Roles = action, "rule_"+incident, roles })
}

func (h *tale) moved(incident, verb string, name role.Name, failure string) {
	h.tell(event.Moved, incident, func(e *event.Event) { e.Verb, e.Role, e.Error = verb, name, failure })
}

func (h *tale) planEnded(incident, failure string, roles ...role.Name) {
	h.tell(event.PlanEnded, incident, func(e *event.Event) { e.Roles, e.Error = roles, failure })
}

func (h *tale) firstStep(name role.Name, inc int) {
	h.tell(event.FirstStep, "", func(e *event.Event) { e.Role, e.Incarnation = name, inc })
}

func (h *tale) incident(id string) event.Incident {
	h.Helper()
	i, ok := h.Incident(id)
	if !ok {
		h.Fatalf("incident %s is not remembered", id)
	}
	return i
}

// times checks the seconds at which an incident's marks were set; 0: not reached.
func (h *tale) times(id string, detected, decided, stopped, started, first, ended int) {
	h.Helper()
	i := h.incident(id)
	second := func(t time.Time) int {
		if t.IsZero() {
			return 0
		}
		return int(t.Sub(noon) / time.Second)
	}
	got := fmt.Sprint(second(i.Detected), second(i.Decided), second(i.Stopped), second(i.Started), second(i.FirstStep), second(i.Ended))
	if want := fmt.Sprint(detected, decided, stopped, started, first, ended); got != want {
		h.Errorf("incident %s: detected, decided, stopped, started, first step, ended at %s, want %s", id, got, want)
	}
	if !i.Clean.Equal(i.Stopped) {
		h.Errorf("incident %s: clean at %s", id, i.Clean)
	}
}

func TestAnIncidentKnowsTheLogThatItsFailureNames(t *testing.T) {
	h := newTale(t)
	h.tell(event.Failure, "1", func(e *event.Event) { e.Role, e.Log = "critic", "/logs/critic/1/0.1/stderr.log" })
	h.tell(event.Folded, "1", func(e *event.Event) { e.Role, e.Log = "critic", "/logs/critic/1/1.1/stderr.log" })
	if got := h.incident("1").Log; got != "/logs/critic/1/0.1/stderr.log" {
		t.Errorf("log %q", got)
	}
}

func TestAnIncidentCarriesTheTimesOfItsRepair(t *testing.T) {
	h := newTale(t)
	h.failed("1", "critic", 1)                                                                                                // 1
	h.decided("1", role.InPlace, "critic")                                                                                    // 2
	h.tell(event.Moved, "1", func(e *event.Event) { e.Verb, e.Role, e.Detail = "stop_service", "critic", "held on: rank 1" }) // 3
	h.moved("1", "start", "critic", "")                                                                                       // 4
	h.moved("1", "run", "critic", "")                                                                                         // 5
	h.planEnded("1", "", "critic")                                                                                            // 6
	h.firstStep("critic", 2)                                                                                                  // 7
	h.firstStep("critic", 3)                                                                                                  // 8: of a later life
	h.tell(event.Folded, "1", func(e *event.Event) { e.Role, e.Rank, e.Incarnation, e.Cause = "critic", 1, 1, role.Exited })  // 9
	h.tell(event.Moved, "", func(e *event.Event) { e.Verb, e.Role = "run", "actor" })                                         // 10: of no incident
	h.times("1", 1, 2, 3, 5, 7, 6)
	i := h.incident("1")
	if i.Action != role.InPlace || i.Rule != "rule_1" || i.Open() || i.Error != "" || len(i.Held) != 1 || i.Role != "critic" || i.Rank != 0 || i.Cause != role.Exited {
		t.Errorf("the incident is %+v", i)
	}
	if len(i.Events) != 8 {
		t.Errorf("it has %d events: %v", len(i.Events), i.Events)
	}
}

func TestAFirstStepOfTheLifeThatFailedIsNotTheOneOfTheRepair(t *testing.T) {
	h := newTale(t)
	h.failed("1", "critic", 2)
	h.decided("1", role.InPlace, "critic")
	h.moved("1", "run", "critic", "")
	h.firstStep("critic", 2)
	h.firstStep("actor", 3)
	h.times("1", 1, 2, 0, 3, 0, 0)
}

func TestOneDecisionAboutTwoFailuresMendsBothIncidents(t *testing.T) {
	h := newTale(t)
	h.failed("1", "critic", 1)
	h.failed("2", "advantages", 1)
	h.decided("1", role.InPlace, "critic", "advantages")
	h.moved("1", "run", "advantages", "")
	h.moved("1", "run", "critic", "")
	h.planEnded("1", "", "critic")
	h.planEnded("1", "", "advantages")
	h.times("1", 1, 3, 0, 5, 0, 6)
	h.times("2", 2, 3, 0, 4, 0, 7)
	if got := h.incident("2"); got.Rule != "rule_1" {
		t.Errorf("the second was settled by %s", got.Rule)
	}
}

func TestARepairThatDoesNotSucceedSaysWhy(t *testing.T) {
	h := newTale(t)
	h.failed("1", "critic", 1)
	h.decided("1", role.InPlace, "critic")
	h.moved("1", "stop_service", "critic", "still there")
	h.planEnded("1", "stop_service critic: still there", "critic")
	h.times("1", 1, 2, 0, 0, 0, 4)
	if i := h.incident("1"); i.Error != "stop_service critic: still there" {
		t.Errorf("error %q", i.Error)
	}
}

func TestAnIncidentWhoseRepairIsOverruledIsMendedByTheStrongerDecision(t *testing.T) {
	h := newTale(t)
	h.failed("1", "critic", 1)                     // 1
	h.decided("1", role.InPlace, "critic")         // 2
	h.failed("2", "actor", 1)                      // 3
	h.decided("2", role.Global, "critic", "actor") // 4
	h.planEnded("1", "overruled", "critic")        // 5
	if i := h.incident("1"); !i.Open() || i.Error != "" {
		t.Errorf("it is over with its first plan: %+v", i)
	}
	h.moved("2", "stop_service", "critic", "") // 6
	h.moved("2", "run", "critic", "")          // 7
	h.planEnded("2", "", "critic", "actor")    // 8
	h.firstStep("critic", 3)                   // 9
	h.times("1", 1, 2, 6, 7, 9, 8)
	if i := h.incident("1"); i.Error != "" || i.Action != role.Global || i.Rule != "rule_2" {
		t.Errorf("the incident is %s by %s, error %q", i.Action, i.Rule, i.Error)
	}
}

func TestAnIncidentThatIsOverIsNotTouchedByLaterOnes(t *testing.T) {
	h := newTale(t)
	h.failed("1", "critic", 1)
	h.decided("1", role.InPlace, "critic")
	h.moved("1", "run", "critic", "")
	h.planEnded("1", "", "critic")
	h.failed("2", "critic", 2)
	h.decided("2", role.Global, "critic", "actor")
	h.moved("2", "run", "critic", "")
	h.planEnded("2", "", "critic", "actor")
	h.times("1", 1, 2, 0, 3, 0, 4)
	h.times("2", 5, 6, 0, 7, 0, 8)
	if i := h.incident("1"); i.Action != role.InPlace {
		t.Errorf("its action has become %s", i.Action)
	}
}

func TestTheEndOfTheJobEndsWhatIsOpen(t *testing.T) {
	h := newTale(t)
	h.failed("1", "critic", 1)
	h.tell(event.JobEnded, "", nil)
	h.tell(event.JobEnded, "", nil)
	h.times("1", 1, 0, 0, 0, 0, 2)
}

func TestAHistoryKeepsTheNewestIncidentsAndGivesCopies(t *testing.T) {
	h := newTale(t)
	for n := range 15 {
		h.failed(fmt.Sprint(n+1), "critic", n+1)
	}
	all := h.Incidents()
	if len(all) != 10 || all[0].ID != "15" || all[9].ID != "6" {
		t.Fatalf("%d incidents, from %s", len(all), all[0].ID)
	}
	for _, id := range []string{"5", "16", "x", ""} {
		if _, ok := h.Incident(id); ok {
			t.Errorf("incident %q is remembered", id)
		}
	}
	one := h.incident("15")
	one.Events[0].Detail = "changed"
	if h.incident("15").Events[0].Detail != "" {
		t.Error("a reader has changed the history")
	}
}

func TestAnIncidentKeepsABoundedNumberOfEvents(t *testing.T) {
	h := newTale(t)
	h.failed("1", "critic", 1)
	for range 1000 {
		h.tell(event.Folded, "1", nil)
	}
	if n := len(h.incident("1").Events); n != 200 {
		t.Errorf("%d events", n)
	}
}
