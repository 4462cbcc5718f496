package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/crowd"
	"vigil/internal/wire/notify"
	"vigil/internal/wire/roleapi"
)

// endpoints is the service as its HTTP endpoints see it. It knows one role, and of that the workers of
// this service.
type endpoints struct{ s *Service }

var _ roleapi.Speaker = endpoints{}

// serveHTTP serves the role's endpoints, and to every user who knows the secret of a life those of that
// life, until the service is closed.
func (s *Service) serveHTTP(l net.Listener) {
	server := roleapi.NewServer(s.access(l.Addr().String()).Handler(s.routes()), s.log)
	s.atEnd(func() { server.Close() })
	s.running.Go(func() {
		if err := server.Serve(crowd.Listen(l, connections(s.opts.Role.Workers))); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("HTTP endpoints are gone", "err", err)
		}
	})
}

// routes are the endpoints of the service.
func (s *Service) routes() *chi.Mux {
	router := roleapi.NewRouter()
	roleapi.Mount(router, endpoints{s})
	roleapi.MountLives(router, endpoints{s})
	roleapi.MountSpeech(router, endpoints{s})
	return router
}

// access says whom the endpoints at an address serve: whoever knows the secret of a life, that life's; its own
// user and root, all.
func (s *Service) access(bound string) roleapi.Access {
	return roleapi.Access{Bound: bound, Life: func(_, secret, rest string) (string, roleapi.Worth) {
		life, _ := path.Split(rest)
		if !roleapi.SameSecret(secret, s.secretOf(strings.TrimSuffix(life, "/"))) {
			return "", roleapi.WrongSecret
		}
		return "/life/" + rest, roleapi.OpensPath
	}}
}

// urlOf returns a life's VIGIL_SERVICE_URL. The secret in it is known to that life only, and to nobody who cannot
// read its environment.
func (s *Service) urlOf(life role.Life) string {
	return "http://" + s.httpAddress + "/life/" + s.secretOf(life.String()) + "/" + life.String()
}

func (s *Service) secretOf(life string) string { return roleapi.Secret(s.key[:], life) }

// What a service needs of its descriptors for itself and for each worker, and how many connections of clients it keeps.
const (
	ownFiles         = 24
	workerFiles      = 10
	leastConnections = 8
	mostConnections  = 1024
)

// heldBack is how many descriptors a service holds back for workers that must be started.
func heldBack(workers int) int {
	return min(max(proc.FileLimit()/16, 8), 8+workerFiles*workers, 64)
}

// connections is how many clients of its endpoints a service with that many workers keeps.
func connections(workers int) int {
	return min(max(proc.FileLimit()-ownFiles-workerFiles*workers-heldBack(workers), leastConnections), mostConnections)
}

// Known returns the one role of this service.
func (e endpoints) Known() []role.Name { return []role.Name{e.s.id.Role} }

// Step returns the role's step on this service.
func (e endpoints) Step(context.Context, role.Name) (int64, error) { return e.s.Step(), nil }

// SetStep sets the role's step on this service, and for the controller.
func (e endpoints) SetStep(ctx context.Context, _ role.Name, step int64) (bool, error) {
	return e.s.setOwnStep(ctx, step)
}

// StopService ends the workers of this service in order, and tells the controller that an operator has asked for
// that, so that it stops the role's other services too and leaves the role stopped. The service stays, idle.
func (e endpoints) StopService(ctx context.Context, _ role.Name) error {
	return e.s.askStop(ctx)
}

// MarkUnhealthy reports the role unhealthy.
func (e endpoints) MarkUnhealthy(context.Context, role.Name) error {
	e.s.change(func(out *words) {
		out.failure(role.Failure{
			Life:  role.Life{Job: e.s.opts.JobUID, Role: e.s.id.Role, Incarnation: e.s.incarnation, Rank: role.NoRank},
			Cause: role.Reported, Detail: "marked unhealthy for testing", At: time.Now(),
		})
	})
	return nil
}

// Heartbeat takes a worker's word.
func (e endpoints) Heartbeat(_ context.Context, _ role.Name, word roleapi.Word) error {
	return e.s.heard(word.Rank, word.Life, func(w *worker, out *words) {
		if word.Step != nil {
			w.saysSteps = true
			e.s.steps.said(w.life.Rank, *word.Step)
		}
		out.beat(w.life, word.Step)
	})
}

// Say takes what a worker says by HTTP as if it had come by its notify socket, from a process that has ended since: the
// kernel does not say who it is.
func (e endpoints) Say(_ context.Context, _ role.Name, speech roleapi.Speech) error {
	said, junk := notify.Parse(speech.Lines)
	err := e.s.heard(speech.Rank, speech.Life, func(w *worker, out *words) { e.s.takeAll(w, explicit(said), out) })
	if err == nil && junk != nil {
		return roleapi.NewProblem(http.StatusBadRequest, junk.Error())
	}
	return err
}

// ReportError takes a worker's report.
func (e endpoints) ReportError(_ context.Context, _ role.Name, report roleapi.Report) error {
	return e.s.heard(report.Rank, report.Life, func(w *worker, out *words) {
		w.fatal = w.fatal || report.Fatal
		e.s.report(w, report.Text, out)
	})
}

// PauseWatch is refused: silence is judged by the controller.
func (e endpoints) PauseWatch(_ context.Context, name role.Name, _ int, _ time.Duration) error {
	return notHere("pause_watch", name)
}

// ResumeWatch is refused, as PauseWatch is.
func (e endpoints) ResumeWatch(_ context.Context, name role.Name, _ int) error {
	return notHere("resume_watch", name)
}

// Admit is refused, as PauseWatch is.
func (e endpoints) Admit(_ context.Context, name role.Name, _ int, _ string) error {
	return notHere("admit", name)
}

func notHere(what string, name role.Name) error {
	return roleapi.NewProblem(http.StatusNotImplemented,
		fmt.Sprintf("%s of %s: the controller judges who is well, ask it there (VIGIL_CONTROLLER_URL)", what, name))
}
