package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"vigil/api"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/roleapi"
)

// keys returns the keys of a JSON object in the order in which they stand.
func keys(t *testing.T, object []byte) []string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(object)))
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for d.More() {
		key, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			t.Fatal(err)
		}
		out = append(out, key.(string))
	}
	return out
}

// shows: R4
func TestARoleInJSONHasTheSeedsFieldsFirstThenOurs(t *testing.T) {
	w := ask(t, newAPI(newFake(), ""), "GET", "/api/v1/roles/actor")
	if w.Code != 200 {
		t.Fatalf("role = %d %s", w.Code, w.Body)
	}
	want := []string{"name", "healthy", "error", "last_heartbeat", "current_step", "task_running", "restart_count", "incarnation", "state", "why", "watched", "given_step", "step_off", "workers"}
	if have := keys(t, w.Body.Bytes()); !slices.Equal(have, want) {
		t.Errorf("role has %v, want %v", have, want)
	}
	var r struct{ Workers []json.RawMessage }
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || len(r.Workers) != 1 {
		t.Fatalf("workers of %s: %v", w.Body, err)
	}
	want = []string{"rank", "pid", "step", "life", "state", "heartbeat_age_seconds", "phases"}
	if have := keys(t, r.Workers[0]); !slices.Equal(have, want) {
		t.Errorf("worker has %v, want %v", have, want)
	}
}

func TestAFailedRoleTellsItsErrorAndAHealthyOneNull(t *testing.T) {
	w := ask(t, newAPI(newFake(), ""), "GET", "/api/v1/roles")
	var list httpapi.RoleList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Roles) != 2 {
		t.Fatalf("roles = %s: %v", w.Body, err)
	}
	actor, critic := list.Roles[0], list.Roles[1]
	if actor.Name != "actor" || actor.Error != nil || critic.Healthy || critic.Error == nil || *critic.Error != "rank 0: out of memory" {
		t.Errorf("roles = %s", w.Body)
	}
	if !strings.Contains(w.Body.String(), `"error":null`) || !strings.Contains(w.Body.String(), `"workers":[]`) {
		t.Errorf("want error null and workers [] in %s", w.Body)
	}
}

// shows: R6
func TestAnUnknownRoleIs404WithTheRolesThatExist(t *testing.T) {
	a := newAPI(newFake(), "")
	for _, request := range []string{"GET /api/v1/roles/nobody", "GET /api/v1/roles/nobody/workers", "POST /api/v1/roles/nobody/restart", "GET /nobody/get_step"} {
		method, path, _ := strings.Cut(request, " ")
		w := ask(t, a, method, path)
		var p roleapi.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		if w.Code != 404 || w.Header().Get("Content-Type") != "application/problem+json" || !slices.Equal(p.Roles, []role.Name{"actor", "critic"}) {
			t.Errorf("%s = %d %s %s, want 404 with the roles", request, w.Code, w.Header().Get("Content-Type"), w.Body)
		}
	}
}

func TestWhatGoesOnAfterTheAnswerIs202WithAnOperation(t *testing.T) {
	f := newFake()
	a := newAPI(f, "")
	for path, want := range map[string]string{"/api/v1/roles/critic/restart": "op-1", "/api/v1/job/stop": "op-2"} {
		w := ask(t, a, "POST", path)
		var o httpapi.Operation
		if err := json.Unmarshal(w.Body.Bytes(), &o); err != nil || w.Code != 202 || o.Operation != want {
			t.Errorf("%s = %d %s, want 202 with %s", path, w.Code, w.Body, want)
		}
	}
	f.refuse = fmt.Errorf("restart critic: the job is ending: %w", httpapi.ErrConflict)
	if w := ask(t, a, "POST", "/api/v1/roles/critic/restart"); w.Code != 409 || !strings.Contains(w.Body.String(), "the job is ending") {
		t.Errorf("restart of an ending job = %d %s, want 409 with why", w.Code, w.Body)
	}
}

func TestTheProbesAre503WithWhyWhileUnwell(t *testing.T) {
	f := newFake()
	a := newAPI(f, "")
	for _, path := range []string{"/healthz", "/readyz"} {
		if w := ask(t, a, "GET", path); w.Code != 200 {
			t.Errorf("%s = %d %s", path, w.Code, w.Body)
		}
	}
	f.unwell = errors.New("checker is 30s late")
	for _, path := range []string{"/healthz", "/readyz"} {
		if w := ask(t, a, "GET", path); w.Code != 503 || !strings.Contains(w.Body.String(), "30s late") {
			t.Errorf("%s = %d %s, want 503 with why", path, w.Code, w.Body)
		}
	}
}

func TestMistakesAreProblemDocuments(t *testing.T) {
	a := newAPI(newFake(), "")
	for request, want := range map[string]int{
		"GET /api/v1/nothing": 404, "GET /api/v1/incidents/99": 404, "GET /api/get_step": 404, "DELETE /api/v1/job": 405,
		"GET /api/v1/events?after=x": 422, "GET /api/v1/events?limit=0": 422, "GET /api/v1/events?limit=10001": 422,
		"GET /api/v1/policy/explain": 422, "GET /api/v1/policy/explain?role=critic&cause=exited&rank=x": 422, "GET /api/v1/policy/explain?role=critic&cause=exited&exit_code=3": 422,
	} {
		method, path, _ := strings.Cut(request, " ")
		w := ask(t, a, method, path)
		var p roleapi.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != want || p.Status != want || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s = %d %s %s, want a problem of %d", request, w.Code, w.Header().Get("Content-Type"), w.Body, want)
		}
	}
	if allow := ask(t, a, "DELETE", "/api/v1/job").Header().Get("Allow"); allow != "GET" {
		t.Errorf("Allow = %q, want GET", allow)
	}
}

func TestATokenIsAskedForEverywhereButAtTheProbes(t *testing.T) {
	a := newAPI(newFake(), "sesame")
	for path, want := range map[string]int{"/api/v1/job": 401, "/critic/get_step": 401, "/metrics": 401, "/nothing": 401, "/healthz": 200, "/readyz": 200} {
		for _, sent := range []string{"", "Bearer wrong", "Bearer ", "Basic sesame", "sesame", "Bearer sesame2"} {
			if w := ask(t, a, "GET", path, "Authorization", sent); w.Code != want {
				t.Errorf("%s with %q = %d, want %d", path, sent, w.Code, want)
			}
		}
	}
	w := ask(t, a, "GET", "/api/v1/job")
	if w.Header().Get("WWW-Authenticate") == "" || strings.Contains(w.Body.String(), "sesame") {
		t.Errorf("401 with %v: %s", w.Header(), w.Body)
	}
	for _, path := range []string{"/api/v1/job", "/critic/get_step", "/metrics"} {
		for _, sent := range []string{"Bearer sesame", "bearer sesame"} {
			if w := ask(t, a, "GET", path, "Authorization", sent); w.Code != 200 {
				t.Errorf("%s with the token = %d %s", path, w.Code, w.Body)
			}
		}
	}
}

func TestAWebPageOfAnotherOriginStopsNoJob(t *testing.T) {
	w := ask(t, newAPI(newFake(), ""), "POST", "/api/v1/job/stop", "Origin", "https://evil.example")
	if w.Code != http.StatusForbidden {
		t.Errorf("stop for a foreign page = %d %s, want 403", w.Code, w.Body)
	}
}

func TestTheContractIsServedAsItStands(t *testing.T) {
	w := ask(t, newAPI(newFake(), ""), "GET", "/openapi.yaml")
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/yaml" || w.Body.String() != string(api.OpenAPI) {
		t.Errorf("/openapi.yaml = %d %s, %d bytes; want the %d of api/openapi.yaml", w.Code, w.Header().Get("Content-Type"), w.Body.Len(), len(api.OpenAPI))
	}
}

func TestEveryAnswerIsWhatTheContractSays(t *testing.T) {
	f := newFake()
	record(f, 3)
	httpapi.CheckAnswers(t, newAPI(f, ""), strings.NewReplacer("{role}", "actor", "{id}", "1"))
}
