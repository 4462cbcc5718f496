package controller

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"vigil/internal/event"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// mostEarlier is how many incidents of earlier controllers are shown.
const mostEarlier = 200

// leftOpen is what is said of an incident whose controller died before it could record how the repair had ended.
const leftOpen = "its controller died before it recorded how the repair ended"

// leftUndecided is what is said of one about which nothing had been decided.
const leftUndecided = "its controller died before it decided; what was unwell is another incident"

// load takes in the incidents that earlier controllers of the run have kept: their files, and what was recorded
// of those whose file was not written in time. Those whose repair this controller goes on with are its own
// from here on. What was found and not decided is found anew, perhaps with the same number. The error says which
// files cannot be understood. It completes what is remembered: m.Incidents and m.Failures.
func (n *incidents) load(recorded map[string]httpapi.Incident, m *engine.Remembered) error {
	files, err := os.ReadDir(n.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	type numbered struct {
		number int
		path   string
	}
	var all []numbered
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".json")
		if number, err := strconv.Atoi(name); ok && err == nil {
			all = append(all, numbered{number, filepath.Join(n.dir, f.Name())})
		}
	}
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(b.number, a.number) })
	var wrong []error
	for _, one := range all[:min(len(all), mostEarlier)] {
		var i httpapi.Incident
		src, err := os.ReadFile(one.path)
		if err == nil {
			err = json.Unmarshal(src, &i)
		}
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		n.earlier = append(n.earlier, i)
	}
	n.addRecorded(recorded)
	slices.SortFunc(n.earlier, func(a, b httpapi.Incident) int { return cmp.Compare(numberOf(&b), numberOf(&a)) })
	for at := range n.earlier {
		if i := &n.earlier[at]; i.Decided != nil { // also one that was ignored
			m.Incidents = max(m.Incidents, numberOf(i))
		}
	}
	n.earlier = slices.DeleteFunc(n.earlier, func(i httpapi.Incident) bool { return numberOf(&i) > m.Incidents }) // the number is another's
	m.Failures = failuresOf(n.earlier)
	n.earlier = slices.DeleteFunc(n.earlier, func(i httpapi.Incident) bool { return i.Open && n.goOn(&i, m.Plans) })
	for at := range n.earlier {
		if i := &n.earlier[at]; i.Open {
			i.Open, i.Error = false, leftOpen
			if i.Decided == nil {
				i.Error = leftUndecided
			}
			_, err := n.encode(i)
			wrong = append(wrong, err)
		}
	}
	return errors.Join(wrong...)
}

// addRecorded adds what the journal has of incidents beyond their files, which are written a moment later.
func (n *incidents) addRecorded(recorded map[string]httpapi.Incident) {
	for id, i := range recorded {
		at := slices.IndexFunc(n.earlier, func(known httpapi.Incident) bool { return known.ID == id })
		if at < 0 {
			n.earlier = append(n.earlier, i)
			continue
		}
		known := &n.earlier[at]
		if known.Decided == nil && i.Decided != nil {
			i.Events = known.Events
			*known = i
			continue
		}
		known.Stopped, known.Clean = cmp.Or(known.Stopped, i.Stopped), cmp.Or(known.Clean, i.Clean)
	}
}

// goOn has an incident go on whose repair has not ended, and reports whether there is one.
func (n *incidents) goOn(i *httpapi.Incident, plans []engine.PlanMemory) bool {
	at := slices.IndexFunc(plans, func(p engine.PlanMemory) bool { return p.Incident == i.ID })
	if at < 0 { // another's plan may mend it too
		at = slices.IndexFunc(plans, func(p engine.PlanMemory) bool {
			return p.Incident != "" && slices.Contains(p.Roles, i.Role) && !p.Alone
		})
	}
	if at < 0 {
		return false
	}
	n.history.GoOn(incidentOf(i), plans[at].Incident, plans[at].Alone)
	n.kept[i.ID] = keptIncident{decided: i.Decided != nil}
	return true
}

// incidentOf is the incident of which incident made what is shown.
func incidentOf(i *httpapi.Incident) event.Incident {
	at := func(t *time.Time) time.Time {
		if t == nil {
			return time.Time{}
		}
		return *t
	}
	out := event.Incident{
		ID: i.ID, Role: i.Role, Rank: i.Rank, Incarnation: i.Incarnation, Cause: i.Cause, Detail: i.Detail, Log: i.Log, Action: i.Action, Rule: i.Rule, Why: i.Why,
		Roles: i.Roles, Detected: i.Detected, Decided: at(i.Decided), Stopped: at(i.Stopped), Clean: at(i.Clean), Started: at(i.Started), FirstStep: at(i.FirstStep),
		Held: i.Held, Error: i.Error, Events: i.Events,
	}
	if len(i.Events) > 0 {
		out.Attempt = i.Events[0].Attempt
	}
	return out
}

// failuresOf are the failures that incidents were, oldest first.
func failuresOf(newestFirst []httpapi.Incident) []role.Failure {
	var out []role.Failure
	for at := range slices.Backward(newestFirst) {
		i := &newestFirst[at]
		if i.Cause != role.Operator && i.Decided != nil {
			out = append(out, role.Failure{Life: role.Life{Role: i.Role, Incarnation: i.Incarnation, Rank: i.Rank, Attempt: 1}, Cause: i.Cause, Detail: i.Detail, At: i.Detected, Log: i.Log})
		}
	}
	return out
}

func numberOf(i *httpapi.Incident) int {
	n, _ := strconv.Atoi(i.ID) // ours are numbers
	return n
}

// before returns the incidents of earlier controllers, newest first, without their events.
func (n *incidents) before() []httpapi.Incident {
	out := slices.Clone(n.earlier)
	for i := range out {
		out[i].Events = nil
	}
	return out
}
