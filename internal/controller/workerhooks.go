package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// workerHooks runs the commands by which a role's workers leave and enter what is outside the job's
// sight: a router, a group that shares weights. It is told of workers by events; one that was told to be
// ready is told to be down once.
type workerHooks struct {
	job     *job.Job
	uid     string
	environ []string
	ports   func(role.Name, int) map[string]uint32
	log     *slog.Logger

	mu     sync.Mutex
	of     map[role.Name]*hook
	up     map[role.Name]map[int]ready
	closed bool
}

// ready is a worker that is ready: what the hooks are told when it no longer is.
type ready struct {
	life  role.Life
	ports map[string]uint32
}

// newWorkerHooks returns nil where no role has hooks. commands makes what runs those of a role.
func newWorkerHooks(c *Controller, commands func(name string) runner) *workerHooks {
	h := &workerHooks{job: c.opts.Job, uid: c.uid, environ: c.opts.Environ, log: c.log,
		of: map[role.Name]*hook{}, up: map[role.Name]map[int]ready{}}
	for i := range h.job.Roles {
		r := &h.job.Roles[i]
		if len(r.Hooks.WorkerDown)+len(r.Hooks.WorkerReady) > 0 {
			h.of[r.Name], h.up[r.Name] = newHook(nil, c.opts.HookTimeout, commands(string(r.Name)), h.log), map[int]ready{}
		}
	}
	if len(h.of) == 0 {
		return nil
	}
	return h
}

// follow begins to carry out what is told, and returns what ends that.
func (h *workerHooks) follow() func(context.Context) error {
	for _, one := range h.of {
		one.begin()
	}
	return func(context.Context) error {
		h.mu.Lock()
		h.closed = true
		h.mu.Unlock()
		var ending sync.WaitGroup
		for _, one := range h.of {
			ending.Go(one.close)
		}
		ending.Wait()
		return nil
	}
}

// Observe is a hook of the event log.
func (h *workerHooks) Observe(e event.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	up := h.up[e.Role]
	if h.closed {
		return
	}
	switch {
	case e.Kind == event.PlanBegan && e.Action == role.Stop && len(e.Roles) == len(h.job.Roles):
		for _, one := range h.of { // what is to be told may be ending too
			one.hurry()
		}
	case e.Kind == event.WorkerReady:
		if up == nil {
			return
		}
		life := role.Life{Job: h.uid, Role: e.Role, Incarnation: e.Incarnation, Rank: e.Rank, Attempt: e.Attempt}
		up[e.Rank] = ready{life, h.ports(e.Role, e.Rank)}
		h.tell("worker_ready", up[e.Rank], role.WorkerReady)
	case e.Kind == event.Failure, e.Kind == event.WorkerFinished, e.Kind == event.Moved && (e.Verb == "fence" || e.Verb == "stop_heartbeats"):
		for rank, was := range up {
			if e.Rank == role.NoRank || e.Rank == rank {
				delete(up, rank)
				h.tell("worker_down", was, role.WorkerDown)
			}
		}
	}
}

// tell queues the role's command of that name, where it has one. The lock is held.
func (h *workerHooks) tell(name string, about ready, state role.WorkerState) {
	r, _ := h.job.Role(about.life.Role)
	words := r.Hooks.WorkerReady
	if name == "worker_down" {
		words = r.Hooks.WorkerDown
	}
	if len(words) == 0 {
		return
	}
	h.of[r.Name].tell(errand{
		name: "hooks." + name, dir: r.Workdir, argv: words,
		about:   []any{"role", r.Name, "rank", about.life.Rank, "attempt", about.life.Attempt},
		compose: func(e *errand) error { return h.compose(e, r, about, state) },
	})
}

// compose expands an errand's words and makes its environment. It reads the role's env_file.
func (h *workerHooks) compose(e *errand, r *job.Role, about ready, state role.WorkerState) error {
	var errs []error
	expand := func(text string) string {
		text, err := job.ExpandPorts(text, about.ports)
		errs = append(errs, err)
		return text
	}
	words := e.argv
	e.argv = make([]string, len(words))
	for i, word := range words {
		e.argv[i] = expand(word)
	}
	environ, err := r.Environ(h.environ)
	errs = append(errs, err)
	for _, pair := range environ {
		e.environ = append(e.environ, expand(pair))
	}
	e.environ = append(e.environ, "VIGIL_JOB="+h.job.Name, "VIGIL_ROLE="+string(r.Name), "VIGIL_RANK="+strconv.Itoa(about.life.Rank),
		"VIGIL_WORKER_LIFE="+about.life.String(), "VIGIL_WORKER_STATE="+string(state))
	numbers := map[string]int{}
	for name, port := range about.ports {
		numbers[name] = int(port)
	}
	if address := mainAddress(proc.Loopback(), numbers); address != "" {
		e.environ = append(e.environ, "VIGIL_WORKER_ADDR="+address)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("compose command: %w", err)
	}
	return nil
}
