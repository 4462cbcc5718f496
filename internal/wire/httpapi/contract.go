package httpapi

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"vigil/internal/wire/roleapi"
)

// The operations that chi routes without huma are described here; those of huma describe themselves.

const description = `The HTTP interface of a vigil controller. The endpoints below /{role}/ stand on each service too.

Without a token, on a loopback address, it serves the user of the job and root only, by what the kernel says of each connection; /metrics, /healthz and /readyz serve every user of the machine unless --private-metrics is given. With --token-file everything but the two probes wants the token. Anything else is refused: 403, or 401 where a token is wanted. So is whatever a browser asks for on behalf of a page of another origin.`

// describeServers names the two addresses of the interface.
func describeServers(doc *huma.OpenAPI) {
	doc.Servers = []*huma.Server{
		{URL: "/", Description: "What the user of the job asks, or who has the token."},
		{
			URL:         "/life/{secret}",
			Description: "What workers have in VIGIL_CONTROLLER_URL. Of any user and without a token it serves: " + strings.Join(workerOperations, ", ") + ".",
			Variables:   map[string]*huma.ServerVariable{"secret": {Default: "SECRET", Description: "The run's; in the environment of its workers only."}},
		},
	}
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

func problemResponse() *huma.Response {
	return &huma.Response{
		Description: "What could not be done, to whom, why (RFC 9457).",
		Content: map[string]*huma.MediaType{
			"application/problem+json": {Schema: &huma.Schema{Ref: "#/components/schemas/Problem"}},
		},
	}
}

func jsonResponse[T any](doc *huma.OpenAPI, description string) *huma.Response {
	t := typeOf[T]()
	return &huma.Response{
		Description: description,
		Content:     map[string]*huma.MediaType{"application/json": {Schema: doc.Components.Schemas.Schema(t, true, t.Name())}},
	}
}

func query(name, description, example string, schema *huma.Schema) *huma.Param {
	return &huma.Param{Name: name, In: "query", Description: description, Example: example, Schema: schema}
}

func required(p *huma.Param) *huma.Param {
	p.Required = true
	return p
}

func text() *huma.Schema { return &huma.Schema{Type: huma.TypeString} }

func number() *huma.Schema {
	zero := 0.0
	return &huma.Schema{Type: huma.TypeInteger, Format: "int64", Minimum: &zero}
}

// describe adds one operation on a role.
func describe(doc *huma.OpenAPI, method, verb, summary string, responses map[string]*huma.Response, params ...*huma.Param) *huma.Operation {
	id := "role-" + verb
	if method == http.MethodGet && verb == "mark_unhealthy_for_testing" {
		id += "-get"
	}
	responses["404"] = problemResponse()
	responses["404"].Description = "The job has no such role; the problem's roles are those that it has."
	responses["default"] = problemResponse()
	op := &huma.Operation{
		OperationID: id, Method: method, Path: "/{role}/" + verb, Summary: summary, Responses: responses,
		Parameters: append([]*huma.Param{{Name: "role", In: "path", Required: true, Description: "The role's name.", Example: "critic", Schema: text()}}, params...),
	}
	doc.AddOperation(op)
	return op
}

func problemOf(description string) *huma.Response {
	r := problemResponse()
	r.Description = description
	return r
}

func describeRoles(doc *huma.OpenAPI) {
	type responses = map[string]*huma.Response
	ok := func() *huma.Response { return jsonResponse[roleapi.StatusAnswer](doc, "Done.") }
	stale := func() *huma.Response { return problemOf("Word of an earlier life: nothing was changed.") }
	rank := query("rank", "Whose word it is, from 0.", "0", number())
	one := query("worker", "One worker's rank, from 0; absent: all of the role.", "1", number())
	life := query("life", "The worker's life, UID/ROLE/INC/RANK/ATTEMPT, as VIGIL_LIFE has it; absent: the current one.", "tiny-rl-1f0c93ab/critic/1/0/1", text())

	describe(doc, http.MethodGet, "get_step", "The role's current step",
		responses{"200": jsonResponse[roleapi.StepAnswer](doc, "OK")})
	describe(doc, http.MethodPost, "set_step", "Set the role's step", responses{
		"200": jsonResponse[roleapi.SetStepAnswer](doc, "The running worker has acknowledged the step."),
		"202": jsonResponse[roleapi.SetStepAnswer](doc, "The step is taken at the next start."),
		"400": problemOf("The step is missing, negative, not a decimal integer or beyond 63 bits."),
	}, required(query("step", "The step: a decimal integer.", "100", number())))
	describe(doc, http.MethodPost, "stop_service", "Stop the role's workers; answered when nothing of them is left", responses{
		"200": ok(),
		"504": problemOf("Something is still there; the problem's held says what."),
	})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		describe(doc, method, "mark_unhealthy_for_testing", "Make the role report unhealthy; the repair follows", responses{"200": ok()})
	}
	describe(doc, http.MethodPost, "heartbeat", "Say that a worker gets on", responses{"200": ok(), "409": stale()},
		query("step", "Its step; absent: the word says nothing of it.", "100", number()), rank, life)
	report := describe(doc, http.MethodPost, "report_error", "Say that something failed", responses{
		"200": ok(),
		"409": stale(),
		"413": problemOf("The body is larger than 64 KiB."),
	}, rank, life)
	report.RequestBody = &huma.RequestBody{
		Description: "What failed: application/json with a mark whether restarting can help, anything else is taken as plain text.",
		Content: map[string]*huma.MediaType{
			"application/json": {Schema: doc.Components.Schemas.Schema(typeOf[roleapi.ReportBody](), true, "ReportBody")},
			"text/plain":       {Schema: text()},
		},
	}
	describe(doc, http.MethodPost, "pause_watch", "Hold back probes and the verdict on silence for a while", responses{"200": ok()},
		required(query("for", "How long, as a Go duration.", "10m", text())), one)
	describe(doc, http.MethodPost, "resume_watch", "End a pause early", responses{"200": ok()}, one)
	describe(doc, http.MethodPost, "admit", "End the quarantine of a worker that was restarted alone", responses{
		"200": ok(),
		"409": problemOf("The worker is not ready, or has another life by now."),
	}, required(query("worker", "Its rank, from 0.", "1", number())), life)
}

func describeMetrics(doc *huma.OpenAPI) {
	doc.AddOperation(textOperation("metrics", "/metrics", "The metrics, in Prometheus' text format", "text/plain"))
}

func describeContract(doc *huma.OpenAPI) {
	doc.AddOperation(textOperation("openapi", "/openapi.yaml", "This document", "application/yaml"))
}

func textOperation(id, path, summary, kind string) *huma.Operation {
	op := get(id, path, summary)
	op.Responses = map[string]*huma.Response{
		"200":     {Description: "OK", Content: map[string]*huma.MediaType{kind: {Schema: text()}}},
		"default": problemResponse(),
	}
	return &op
}
