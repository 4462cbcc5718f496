package roleapi

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
)

// NewRouter returns an empty router, which Access.Handler puts behind its checks. Paths and methods that
// nobody routes are answered with problem documents, a wrong method with Allow.
func NewRouter() *chi.Mux {
	r := chi.NewRouter()
	r.NotFound(func(w http.ResponseWriter, req *http.Request) {
		WriteProblem(w, NewProblem(http.StatusNotFound, "path "+req.URL.Path+" does not exist"))
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		allowed := allowedMethods(r, req.URL.Path)
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		WriteProblem(w, NewProblem(http.StatusMethodNotAllowed,
			req.Method+" "+req.URL.Path+": want "+strings.Join(allowed, " or ")))
	})
	return r
}

func allowedMethods(routes chi.Routes, path string) []string {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if routes.Match(chi.NewRouteContext(), m, path) {
			allowed = append(allowed, m)
		}
	}
	return allowed
}

// Mount adds the endpoints of every known role, /{role}/get_step and so on.
func Mount(r chi.Router, roles Roles) {
	h := handlers{roles}
	r.Get("/{role}/get_step", h.getStep)
	r.Post("/{role}/set_step", h.setStep)
	r.Post("/{role}/stop_service", h.stopService)
	r.Get("/{role}/mark_unhealthy_for_testing", h.markUnhealthy)
	r.Post("/{role}/mark_unhealthy_for_testing", h.markUnhealthy)
	r.Post("/{role}/heartbeat", h.heartbeat)
	r.Post("/{role}/report_error", h.reportError)
	r.Post("/{role}/pause_watch", h.pauseWatch)
	r.Post("/{role}/resume_watch", h.resumeWatch)
	r.Post("/{role}/admit", h.admit)
}

// MountLives adds heartbeat and report_error of one worker life, below
// /life/UID/ROLE/INC/RANK/ATTEMPT: rank and life come from the path. VIGIL_SERVICE_URL points there, with
// a secret before UID that Access takes out.
func MountLives(r chi.Router, roles Roles) {
	h := handlers{roles}
	r.Post("/life/{uid}/{role}/{inc}/{rank}/{attempt}/heartbeat", h.heartbeat)
	r.Post("/life/{uid}/{role}/{inc}/{rank}/{attempt}/report_error", h.reportError)
}
