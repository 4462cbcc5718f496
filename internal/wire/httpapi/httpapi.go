// Package httpapi is the controller's HTTP interface: the role endpoints of roleapi, the JSON of
// /api/v1/, the probes /healthz and /readyz, the contract /openapi.yaml and, handed in, /metrics. It
// routes with chi, describes /api/v1/ with huma, and answers errors as problem documents (RFC 9457).
//
// A Controller answers the questions; this package owns no state but the event streams that are open.
// api/openapi.yaml is made from what is routed here, and a test compares the two:
//
//	go generate ./internal/wire/httpapi
package httpapi

//go:generate go test -run TestContract . -update

import (
	"context"
	"net/http"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"vigil/internal/event"
	"vigil/internal/role"
	"vigil/internal/wire/crowd"
	"vigil/internal/wire/roleapi"
)

// Controller is what stands behind /api/v1/ and the probes. Its methods are called from many
// goroutines, return copies and do not wait, but for Restart and StopJob.
type Controller interface {
	// Job returns the job as a whole.
	Job() Job
	// Roles returns all roles, in the order of the job file.
	Roles() []Role
	// Role returns one role; false when the job has none of that name.
	Role(role.Name) (Role, bool)
	// Workers returns where the role's workers can be reached, by rank; false as for Role.
	Workers(role.Name) ([]Peer, bool)
	// Incidents returns what is remembered, newest first.
	Incidents() []Incident
	// Incident returns one of them by its id.
	Incident(id string) (Incident, bool)
	// Since returns the kept events with a number above the cursor, oldest first, and a channel that is
	// closed when there are more. event.Log has it.
	Since(cursor uint64) ([]event.Event, <-chan struct{})
	// PlacementGroups returns every group, by name.
	PlacementGroups() []PlacementGroup
	// Goodput returns what the time went into so far.
	Goodput() Goodput
	// Policy returns what is in force.
	Policy() Policy
	// Foresee says what would be done about a failure now. ErrQuestion where there can be no such failure.
	Foresee(*Question) (Forecast, error)
	// Restart begins the restart of one role and returns an operation id without waiting for its end.
	// It does not spend the budget. ErrConflict where it cannot be begun now.
	Restart(context.Context, role.Name) (operation string, err error)
	// StopJob begins the orderly stop of the job, as Restart does.
	StopJob(context.Context) (operation string, err error)
	// Healthy returns nil while the controller itself works: its loops turn.
	Healthy() error
	// Ready returns nil once the controller takes registrations and all roles have begun.
	Ready() error
}

// Options are what the interface is made of.
type Options struct {
	Controller Controller
	Roles      roleapi.Roles
	Metrics    http.Handler // answers GET /metrics; nil: there is none
	Bound      string       // the address listened on, HOST:PORT
	Token      string       // see roleapi.Access; the probes need none
	// Secret is that of the address that workers have, /life/SECRET; empty: there is no such address.
	Secret string
	// Private keeps metrics and probes from other users too. Without it they are open to every user of
	// the machine, and with a token the probes to everybody.
	Private bool
	// Streams bounds the event streams; nil: 64.
	Streams *crowd.Streams
}

// API is the whole interface as a handler.
type API struct {
	router  *chi.Mux
	handler http.Handler  // the router behind its checks
	doc     *huma.OpenAPI // what is routed, described
	closing chan struct{}
	close   func()
}

// New returns the interface.
func New(o Options) *API {
	closing := make(chan struct{})
	api := &API{closing: closing, close: sync.OnceFunc(func() { close(closing) })}
	if o.Streams == nil {
		o.Streams = &crowd.Streams{Most: 64}
	}
	api.route(o)
	api.handler = access(o).Handler(api.router)
	return api
}

// ServeHTTP answers one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// Close ends the event streams that are open, and every later one at once: they would hold up an
// orderly shutdown of the server for ever. It may be called more than once.
func (a *API) Close() { a.close() }
