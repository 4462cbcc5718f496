package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
	"vigil/internal/wire/caller"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/roleapi"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fake is a job of two roles whose critic has failed.
type fake struct {
	*event.Log
	refuse error // of Restart and StopJob
	unwell error
}

func newFake() *fake { return &fake{Log: event.NewLog(100)} }

func (f *fake) Job() httpapi.Job {
	return httpapi.Job{Name: "tiny", UID: "tiny-1f0c93ab", State: "running", LeadRole: "actor", CurrentStep: 7, MaxGlobalRestarts: 3, Started: began}
}

func (f *fake) Roles() []httpapi.Role {
	failed := "rank 0: out of memory"
	step, age := int64(7), 1.5
	return []httpapi.Role{
		{
			Name: "actor", Healthy: true, LastHeartbeat: began, CurrentStep: 7, TaskRunning: true, Incarnation: 1, State: role.Running,
			Workers: []httpapi.Worker{{Rank: 0, PID: 4711, Step: &step, Life: "tiny-1f0c93ab/actor/1/0/1", State: role.WorkerReady, HeartbeatAgeSeconds: &age, Phases: []httpapi.Phase{{Name: "step", AgeSeconds: 2.5}}}},
		},
		{Name: "critic", Error: &failed, LastHeartbeat: began, Incarnation: 2, RestartCount: 1, State: role.Repairing, Why: "in_place by role_can_stay"},
	}
}

func (f *fake) Role(name role.Name) (httpapi.Role, bool) {
	for _, r := range f.Roles() {
		if r.Name == name {
			return r, true
		}
	}
	return httpapi.Role{}, false
}

func (f *fake) Workers(name role.Name) ([]httpapi.Peer, bool) {
	_, ok := f.Role(name)
	return []httpapi.Peer{{Rank: 0, Address: "127.0.0.1", State: role.WorkerReady, Life: "tiny-1f0c93ab/actor/1/0/1"}}, ok
}

func (f *fake) Incidents() []httpapi.Incident {
	return []httpapi.Incident{{ID: "1", Role: "critic", Incarnation: 1, Cause: role.Reported, Detail: "out of memory", Action: role.InPlace, Open: true, Detected: began, Decided: &began}}
}

func (f *fake) Incident(id string) (httpapi.Incident, bool) {
	i := f.Incidents()[0]
	return i, i.ID == id
}

func (f *fake) Goodput() httpapi.Goodput {
	return httpapi.Goodput{Seconds: 100, ProductiveSeconds: 90, Ratio: 0.9, Lost: []httpapi.Lost{{Cause: role.Silent, Incidents: 1, Seconds: 10}},
		Roles: []httpapi.RoleGoodput{{Name: "critic", ProductiveSeconds: 90, Lives: 2, StepsRedone: 3}}}
}

func (f *fake) PlacementGroups() []httpapi.PlacementGroup {
	return []httpapi.PlacementGroup{{Name: "actor", Roles: []role.Name{"actor"}, Strategy: "PACK", State: "RESERVED", Live: 1, Needed: 1, Bundles: []httpapi.Bundle{{Node: "local", Well: true}}}}
}

func (f *fake) Policy() httpapi.Policy {
	return httpapi.Policy{Settings: []httpapi.Setting{{Name: "max_global_restart", Value: "3", Source: "default"}}}
}

func (f *fake) Foresee(q *httpapi.Question) (httpapi.Forecast, error) {
	if q.Role != "critic" || q.Cause != role.Exited || q.ExitCode != httpapi.NoExitCode || q.Signal != "" {
		return httpapi.Forecast{}, fmt.Errorf("%w: %+v", httpapi.ErrQuestion, q)
	}
	return httpapi.Forecast{Role: q.Role, Cause: q.Cause, Action: role.InPlace, Lines: []httpapi.PolicyLine{{Rule: "role_can_stay", Fits: true}}}, nil
}

func (f *fake) Restart(context.Context, role.Name) (string, error) { return "op-1", f.refuse }
func (f *fake) StopJob(context.Context) (string, error)            { return "op-2", f.refuse }
func (f *fake) Healthy() error                                     { return f.unwell }
func (f *fake) Ready() error                                       { return f.unwell }

// steps are role endpoints that know a step and nothing else.
type steps struct{}

func (steps) Known() []role.Name                                              { return []role.Name{"actor", "critic"} }
func (steps) Step(context.Context, role.Name) (int64, error)                  { return 7, nil }
func (steps) SetStep(context.Context, role.Name, int64) (bool, error)         { return true, nil }
func (steps) StopService(context.Context, role.Name) error                    { return nil }
func (steps) MarkUnhealthy(context.Context, role.Name) error                  { return nil }
func (steps) Heartbeat(context.Context, role.Name, roleapi.Word) error        { return nil }
func (steps) ReportError(context.Context, role.Name, roleapi.Report) error    { return nil }
func (steps) PauseWatch(context.Context, role.Name, int, time.Duration) error { return nil }
func (steps) ResumeWatch(context.Context, role.Name, int) error               { return nil }
func (steps) Admit(context.Context, role.Name, int, string) error             { return nil }

func newAPI(f *fake, token string) *httpapi.API {
	return httpapi.New(httpapi.Options{
		Controller: f, Roles: steps{}, Bound: "127.0.0.1:8000", Token: token,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = w.Write([]byte("up 1\n"))
		}),
	})
}

// ask sends one request to the API without a network.
func ask(t *testing.T, api http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(method, path, nil)
	req.Host = "127.0.0.1:8000"
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	req = req.WithContext(caller.With(req.Context(), caller.Known(os.Geteuid())))
	w := httptest.NewRecorder()
	api.ServeHTTP(w, req)
	return w
}
