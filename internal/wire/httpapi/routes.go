package httpapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"vigil/api"
	"vigil/internal/role"
	"vigil/internal/wire/crowd"
	"vigil/internal/wire/roleapi"
)

// route makes the router: every endpoint, each with its line in the contract.
func (a *API) route(o Options) {
	a.router = roleapi.NewRouter()
	config := huma.DefaultConfig("vigil controller", "1")
	config.OpenAPIPath, config.DocsPath, config.SchemasPath, config.CreateHooks = "", "", "", nil
	config.Info.Description = description
	h := humachi.New(a.router, config)
	a.doc = h.OpenAPI()
	describeServers(a.doc)
	// The documents of what huma does not route, and the errors of all, name this schema.
	a.doc.Components.Schemas.Schema(typeOf[roleapi.Problem](), true, "Problem")

	e := endpoints{controller: o.Controller, streams: o.Streams, closing: a.closing}
	e.registerJob(h)
	e.registerRoles(h)
	e.registerHistory(h)
	e.registerProbes(h)

	roleapi.Mount(a.router, o.Roles)
	describeRoles(a.doc)
	if o.Metrics != nil {
		a.router.Get("/metrics", o.Metrics.ServeHTTP)
		describeMetrics(a.doc)
	}
	a.router.Get("/openapi.yaml", serveContract)
	describeContract(a.doc)
	// Huma's own error schemas: nothing refers to them, its errors have the form of Problem too.
	delete(a.doc.Components.Schemas.Map(), "ErrorModel")
	delete(a.doc.Components.Schemas.Map(), "ErrorDetail")
}

type endpoints struct {
	controller Controller
	streams    *crowd.Streams
	closing    <-chan struct{}
}

type nothing struct{}

type rolePath struct {
	Role role.Name `path:"role" doc:"The role's name." example:"critic"`
}

type incidentPath struct {
	ID string `path:"id" doc:"The incident's id." example:"7"`
}

// answer is a JSON answer as huma wants it.
type answer[T any] struct{ Body T }

// register routes one operation whose answer is a JSON document, and whose errors are problems.
func register[I, O any](h huma.API, op huma.Operation, do func(context.Context, *I) (O, error)) {
	op.Responses = map[string]*huma.Response{"default": problemResponse()}
	huma.Register(h, op, func(ctx context.Context, in *I) (*answer[O], error) {
		body, err := do(ctx, in)
		if err != nil {
			return nil, asProblem(err)
		}
		return &answer[O]{body}, nil
	})
}

func (e endpoints) registerJob(h huma.API) {
	register(h, get("job", "/api/v1/job", "The job as a whole"), func(context.Context, *nothing) (Job, error) {
		return e.controller.Job().whole(), nil
	})
	register(h, get("goodput", "/api/v1/goodput", "What the job's time went into"),
		func(context.Context, *nothing) (Goodput, error) { return e.controller.Goodput(), nil })
	register(h, get("placement-groups", "/api/v1/placement_groups", "The resources reserved for the roles"),
		func(context.Context, *nothing) (GroupList, error) {
			return GroupList{each(e.controller.PlacementGroups(), PlacementGroup.whole)}, nil
		})
	register(h, get("policy", "/api/v1/policy", "The policy in force, and where each line of it came from"),
		func(context.Context, *nothing) (Policy, error) {
			return Policy{list(e.controller.Policy().Settings)}, nil
		})
	register(h, get("explain-policy", "/api/v1/policy/explain", "What would be done about a failure now, and why; nothing is done"),
		func(_ context.Context, q *Question) (Forecast, error) {
			f, err := e.controller.Foresee(q)
			return f.whole(), err
		})
	register(h, post("stop-job", "/api/v1/job/stop", "Begin the orderly stop of the job"),
		func(ctx context.Context, _ *nothing) (Operation, error) {
			id, err := e.controller.StopJob(ctx)
			return Operation{id}, err
		})
}

func (e endpoints) registerRoles(h huma.API) {
	register(h, get("roles", "/api/v1/roles", "All roles"), func(context.Context, *nothing) (RoleList, error) {
		return RoleList{each(e.controller.Roles(), Role.whole)}, nil
	})
	register(h, get("role", "/api/v1/roles/{role}", "One role"), func(_ context.Context, in *rolePath) (Role, error) {
		r, ok := e.controller.Role(in.Role)
		if !ok {
			return Role{}, e.unknown(in.Role)
		}
		return r.whole(), nil
	})
	register(h, get("role-workers", "/api/v1/roles/{role}/workers", "Where a role's workers can be reached"),
		func(_ context.Context, in *rolePath) (PeerList, error) {
			peers, ok := e.controller.Workers(in.Role)
			if !ok {
				return PeerList{}, e.unknown(in.Role)
			}
			return PeerList{each(peers, Peer.whole)}, nil
		})
	register(h, post("restart-role", "/api/v1/roles/{role}/restart", "Begin the restart of a role; it does not spend the budget"),
		func(ctx context.Context, in *rolePath) (Operation, error) {
			if _, ok := e.controller.Role(in.Role); !ok {
				return Operation{}, e.unknown(in.Role)
			}
			id, err := e.controller.Restart(ctx, in.Role)
			return Operation{id}, err
		})
}

func (e endpoints) registerHistory(h huma.API) {
	register(h, get("incidents", "/api/v1/incidents", "What failed and what was done about it"),
		func(context.Context, *nothing) (IncidentList, error) {
			return IncidentList{each(e.controller.Incidents(), Incident.whole)}, nil
		})
	register(h, get("incident", "/api/v1/incidents/{id}", "One incident with its events"),
		func(_ context.Context, in *incidentPath) (Incident, error) {
			i, ok := e.controller.Incident(in.ID)
			if !ok {
				return Incident{}, roleapi.NewProblem(http.StatusNotFound, "incident "+in.ID+" does not exist or is no longer kept")
			}
			return i.whole(), nil
		})
	e.registerEvents(h)
}

func (e endpoints) registerProbes(h huma.API) {
	probe := func(ask func() error) func(context.Context, *nothing) (roleapi.StatusAnswer, error) {
		return func(context.Context, *nothing) (roleapi.StatusAnswer, error) {
			if err := ask(); err != nil {
				return roleapi.StatusAnswer{}, roleapi.NewProblem(http.StatusServiceUnavailable, err.Error())
			}
			return roleapi.StatusAnswer{Status: "ok"}, nil
		}
	}
	register(h, get("healthz", "/healthz", "Whether the controller itself works"), probe(e.controller.Healthy))
	register(h, get("readyz", "/readyz", "Whether the controller is ready"), probe(e.controller.Ready))
}

func (e endpoints) unknown(name role.Name) error {
	var known []role.Name
	for _, r := range e.controller.Roles() {
		known = append(known, r.Name)
	}
	return &roleapi.UnknownError{Name: string(name), Known: known}
}

// asProblem adds to roleapi's rules those of this package.
func asProblem(err error) error {
	switch {
	case errors.Is(err, ErrConflict):
		return roleapi.NewProblem(http.StatusConflict, err.Error())
	case errors.Is(err, ErrQuestion):
		return roleapi.NewProblem(http.StatusUnprocessableEntity, err.Error())
	}
	return roleapi.AsProblem(err)
}

func get(id, path, summary string) huma.Operation {
	return huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary}
}

func post(id, path, summary string) huma.Operation {
	return huma.Operation{OperationID: id, Method: http.MethodPost, Path: path, Summary: summary, DefaultStatus: http.StatusAccepted}
}

func serveContract(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	// An error means that the client has gone.
	_, _ = w.Write(api.OpenAPI)
}
