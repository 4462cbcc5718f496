package controller

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/event"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

func TestIncidentsOfEarlierControllersAreShownToo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const decided = `"decided":"2026-01-02T03:04:05Z"`
	for name, text := range map[string]string{
		"9.json":  `{"id":"9","role":"reward","rank":1,"cause":"silent","detail":"no word","open":true,` + decided + `,"events":[{"kind":"failed"}]}`,
		"10.json": `{"id":"10","role":"actor","cause":"exited","open":false,` + decided + `}`,
		"12.json": `{"id":"12","role":"actor","cause":"exited","open":true}`, "13.json": `{"id":"13","role":"critic","cause":"silent","open":true,` + decided + `,"events":[{"kind":"failed"}]}`,
		"14.json": `{"id":"14","role":"actor","cause":"exited","open":true}`,
		"8.json":  `{"id":"8",`, "x.json": `{}`, "9.json.new": `{}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	history := event.NewHistory(10)
	n := newIncidents(dir, history, nil, "", slog.New(slog.DiscardHandler))
	now := time.Now()
	recorded := map[string]httpapi.Incident{"11": {ID: "11", Role: "engine", Cause: role.Operator, Open: true, Decided: &now}, "10": {ID: "10", Role: "nobody"}}
	m := &engine.Remembered{Incidents: 11, Plans: []engine.PlanMemory{{ID: 7, Incident: "13", Roles: []role.Name{"critic"}}}}
	if err := n.load(recorded, m); err == nil {
		t.Error("a broken file is not said")
	}
	var shown []string
	for _, i := range n.before() {
		shown = append(shown, fmt.Sprintf("%s %s %t %q %d", i.ID, i.Role, i.Open, i.Error, len(i.Events)))
	}
	want := []string{fmt.Sprintf("12 actor false %q 0", leftUndecided), fmt.Sprintf("11 engine false %q 0", leftOpen), `10 actor false "" 0`, fmt.Sprintf("9 reward false %q 0", leftOpen)}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	if one, ok := n.one("9"); !ok || len(one.Events) != 1 {
		t.Errorf("shown: %+v", one)
	}
	if i := readIncident(t, dir, "9"); i.Open || i.Error != leftOpen {
		t.Errorf("its file: %+v", i)
	}
	if _, ok := n.one("8"); ok {
		t.Error("what cannot be read is shown")
	}
	var failed []string
	for _, f := range m.Failures {
		failed = append(failed, fmt.Sprintf("%s %s %s", f.Subject(), f.Cause, f.Detail))
	}
	if diff := cmp.Diff([]string{"reward rank 1 silent no word", "actor rank 0 exited ", "critic rank 0 silent "}, failed); diff != "" || m.Incidents != 13 {
		t.Errorf("remembered %d incidents, and the failures (-want +got):\n%s", m.Incidents, diff)
	}
	// The repair of 13 goes on: what ends it is in the same incident.
	ended := event.New(time.Now(), event.PlanEnded)
	ended.Incident, ended.Roles = "13", []role.Name{"critic"}
	history.Observe(ended)
	n.write()
	if i := readIncident(t, dir, "13"); i.Open || i.Error != "" || len(i.Events) != 2 {
		t.Errorf("its file: %+v", i)
	}
}

// The file of an incident is written a moment after its record: what a controller that was killed in between has not come
// to write is not lost.
func TestAnIncidentOfAKilledControllerIsAsItsRecordSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"1.json": `{"id":"1","role":"critic","cause":"exited","open":true,"decided":"2026-01-02T03:04:05Z","action":"in_place","events":[{"kind":"failed"}]}`,
		"2.json": `{"id":"2","role":"actor","cause":"silent","open":true,"events":[{"kind":"failed"}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	history := event.NewHistory(10)
	n := newIncidents(dir, history, nil, "", slog.New(slog.DiscardHandler))
	log := event.NewLog(100, history.Observe, n.Observe)
	var first httpapi.Incident
	n.record = func(i httpapi.Incident) { first = i }
	for _, e := range []event.Event{{Kind: event.Failure}, {Kind: event.Decided, Action: role.InPlace, Roles: []role.Name{"critic"}}, {Kind: event.Moved, Verb: "stop_service"}} {
		e.At, e.Role, e.Incident, e.Incarnation = time.Now(), "critic", "1", 1
		log.Record(e)
	}
	if first.Stopped == nil {
		t.Fatalf("that its workers have been stopped is not recorded: %+v", first)
	}
	next := newIncidents(dir, event.NewHistory(10), nil, "", slog.New(slog.DiscardHandler))
	m := &engine.Remembered{Incidents: 2, Plans: []engine.PlanMemory{{ID: 1, Incident: "1", Roles: []role.Name{"critic"}}, {ID: 2, Incident: "2", Roles: []role.Name{"actor"}}}}
	second := httpapi.Incident{ID: "2", Role: "actor", Cause: role.Silent, Action: role.Global, Open: true, Decided: first.Decided}
	if err := next.load(map[string]httpapi.Incident{"1": first, "2": second}, m); err != nil {
		t.Fatal(err)
	}
	if i, ok := next.one("1"); !ok || i.Stopped == nil || i.Clean == nil || len(i.Events) != 1 {
		t.Errorf("shown: %+v", i)
	}
	if i, ok := next.one("2"); !ok || i.Decided == nil || i.Action != role.Global || len(i.Events) != 1 {
		t.Errorf("shown: %+v", i)
	}
}
