package httpapi

import (
	"net/http"
	"path"
	"slices"
	"strings"

	"vigil/internal/wire/roleapi"
)

// The paths that say nothing but numbers, names of roles and yes or no.
const (
	metricsPath = "/metrics"
	healthPath  = "/healthz"
	readyPath   = "/readyz"
)

// workerOperations is what the secret of VIGIL_CONTROLLER_URL opens: reading where others are and how
// they stand, speaking for a worker, and what a trainer says of the workers that it feeds. A star stands
// for one role.
var workerOperations = []string{
	"GET /api/v1/roles",
	"GET /api/v1/roles/*",
	"GET /api/v1/roles/*/workers",
	"GET /*/get_step",
	"POST /*/heartbeat",
	"POST /*/report_error",
	"POST /*/pause_watch",
	"POST /*/resume_watch",
	"POST /*/admit",
}

// access returns whom the interface serves.
func access(o Options) roleapi.Access {
	a := roleapi.Access{Bound: o.Bound, Token: o.Token}
	switch {
	case o.Private:
	case o.Token != "":
		a.Open = []string{healthPath, readyPath} // a cluster's probes have no token to send
	default:
		a.Open = []string{metricsPath, healthPath, readyPath}
	}
	if o.Secret == "" {
		return a
	}
	a.Life = func(method, secret, rest string) (string, roleapi.Worth) {
		at := "/" + rest
		switch {
		case !roleapi.SameSecret(secret, o.Secret):
			return "", roleapi.WrongSecret
		case slices.ContainsFunc(workerOperations, func(op string) bool { return fits(op, method, at) }):
			return at, roleapi.OpensPath
		}
		return at, roleapi.OnlyAddress
	}
	return a
}

// fits says whether a request is an operation, such as "POST /*/admit".
func fits(operation, method, at string) bool {
	verb, pattern, _ := strings.Cut(operation, " ")
	match, err := path.Match(pattern, at)
	return err == nil && match && verb == method
}

// Harmless returns a handler that serves metrics and probes only, to everybody who reaches the address
// that it is bound to, HOST:PORT.
func (a *API) Harmless(bound string) http.Handler {
	return roleapi.Guard(bound)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open := []string{metricsPath, healthPath, readyPath}; !slices.Contains(open, r.URL.Path) {
			roleapi.WriteProblem(w, roleapi.NewProblem(http.StatusNotFound, "only "+strings.Join(open, ", ")+" are served at this address"))
			return
		}
		a.router.ServeHTTP(w, r)
	}))
}
