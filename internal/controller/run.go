package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"vigil/internal/console"
	"vigil/internal/event"
	"vigil/internal/goodput"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/metrics"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/restart/memory"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/rpc"
)

// keepEvents is how many events the controller remembers.
const keepEvents = 10_000

// Controller is one run of a job. New makes it, Run runs it to its end, Stop asks for that.
type Controller struct {
	opts       Options
	log        *slog.Logger
	uid        string
	began      time.Time
	ground     *ground
	events     *event.Log
	history    *event.History
	kept       *incidents
	hooks      *workerHooks // nil: no role has any
	failures   *console.Failures
	stale      []role.Name        // roles that are defined anew
	remembered *engine.Remembered // by an earlier controller of the run; nil: there was none
	account    *goodput.Account
	store      *health.Store
	keeping    *memory.Health
	checker    *health.Checker
	places     *places
	placed     *placed
	crew       *crew
	engine     *engine.Engine
	hub        *rpc.Hub
	metrics    *metrics.Metrics
	api        *httpapi.API
	endings    endings
	footing    footing

	mu      sync.Mutex
	ended   time.Time
	outcome *engine.Outcome
	state   string // stopping, ended, or empty
	ops     int
}

// New makes everything that a run needs and refuses, with a *UsageError, what cannot be run here: a
// port in use, a state directory that cannot be written or has a controller, a missing command, not
// enough devices. Where a run is open and only the machine keeps it from being gone on with, the error is a
// *StaysOpenError. Nothing has been started when it returns. Run must follow, or Close.
func New(ctx context.Context, o Options) (*Controller, error) {
	if err := o.Check(); err != nil {
		return nil, &UsageError{err}
	}
	out := newOutlet(o.Stderr, o.LogFormat)
	o.Stderr = out
	log, err := NewLogger(out, o.LogFormat, o.LogLevel)
	if err != nil {
		return nil, &UsageError{err}
	}
	if err := o.Job.Check(job.Machine{Environ: o.Environ}); err != nil {
		return nil, &UsageError{err}
	}
	c := &Controller{opts: o, log: log, began: time.Now(), history: event.NewHistory(200)}
	c.failures = newFailures(&c.opts, log)
	c.endings.add("log", out.flush) // at last
	if err := c.lay(ctx); err != nil {
		if open, ended := new(StaysOpenError), new(EndedError); !errors.As(err, &open) && !errors.As(err, &ended) {
			err = &UsageError{err}
		}
		return nil, errors.Join(err, c.endings.run(log))
	}
	c.compose()
	if c.remembered != nil {
		if err := memory.RestoreHealth(c.ground.journal, o.Job, c.store, c.remembered, time.Now()); err != nil {
			return nil, errors.Join(c.ground.notNow(err), c.Close())
		}
	}
	return c, nil
}

// lay opens what the machine must give: directories, locks, devices, the port.
func (c *Controller) lay(ctx context.Context) error {
	g, err := openGround(ctx, &c.opts, c.log, &c.endings)
	if err != nil {
		return err
	}
	c.ground, c.uid = g, g.uid
	g.close = c.closeRun
	gone, err := c.recall()
	if err != nil {
		return err
	}
	if err := c.place(); err != nil {
		return err
	}
	c.forgetRoles(gone) // the start is not refused any more
	if err := g.beginRun(&c.opts); err != nil {
		return g.notNow(err)
	}
	c.placed = newPlaced(g.journal)
	c.places.keep(c.placed.record)
	return nil
}

// place gives every role its place, where it has none.
func (c *Controller) place() error {
	c.places = newPlaces(c.ground.nodes, c.opts.Job)
	was, known, err := placedIn(c.ground.journal)
	if err != nil {
		return err
	}
	if !c.ground.resumed || !known {
		return c.places.reserve(c.opts.Job)
	}
	alive, err := c.ground.alive()
	if err != nil {
		return err
	}
	return c.places.resume(c.opts.Job, &was, alive)
}

// compose puts the parts together. Nothing here can fail.
func (c *Controller) compose() {
	o, j := &c.opts, c.opts.Job
	c.metrics = metrics.New(metrics.Options{Source: source{c}, Version: o.Version})
	c.account = goodput.New(c.began, j.Names(), j.StandAlone()...)
	var onIncident *hook
	if o.OnIncident != "" {
		environ := append(slices.Clone(o.Environ), "VIGIL_JOB="+j.Name, "VIGIL_JOB_UID="+c.uid)
		onIncident = newHook(environ, o.HookTimeout, c.commands(incidentHook), c.log)
	}
	c.kept = newIncidents(c.ground.incidents, c.history, onIncident, o.OnIncident, c.log)
	if c.ground.resumed {
		recorded, err := journal.Read[httpapi.Incident](c.ground.journal, journal.Incident)
		if err := errors.Join(err, c.kept.load(recorded, c.remembered)); err != nil {
			c.log.Warn("not all earlier incidents can be shown", "error", err)
		}
	}
	c.kept.record = func(i httpapi.Incident) {
		c.ground.journal.Write(journal.Put(journal.Incident, i.ID, i))
	}
	c.footing.patience = footingPatience
	c.hooks = newWorkerHooks(c, c.commands)
	c.events = event.NewLog(keepEvents, c.observers()...)
	c.store = health.NewStore(c.uid, o.CheckInterval, c.events.Record, c.specs()...)
	c.keeping = &memory.Health{Journal: c.ground.journal, Job: j, Store: c.store}
	c.checker = health.NewChecker(c.store, o.CheckInterval, c.log)
	c.hub = rpc.NewHub(rpc.HubOptions{JobUID: c.uid, Token: c.ground.secret, Epoch: c.ground.epoch, Node: c.ground.host, Ears: ears{c}, Admit: func(r rpc.Registration) error { return c.crew.admit(r) },
		Dropped: newDrops(c.log, c.events.Record).hear, Refused: c.refused(), Log: c.log.With("part", "wire")})
	c.crew = newCrew(c)
	if c.hooks != nil {
		c.hooks.ports = c.crew.portsOf
	}
	c.engine = engine.New(c.engineOptions(c.crew, c.places))
	c.api = httpapi.New(httpapi.Options{Controller: view{c}, Roles: roles{c}, Metrics: c.metrics.Handler(), Bound: c.ground.http.Addr().String(), Token: c.ground.token,
		Secret: c.workerSecret(), Private: o.PrivateMetrics, Streams: c.ground.streams})
}

// specs returns what health must know of each role.
func (c *Controller) specs() []health.Spec {
	var specs []health.Spec
	for i := range c.opts.Job.Roles {
		r := &c.opts.Job.Roles[i]
		l := health.Limits{Start: c.opts.StartTimeout, Heartbeat: c.opts.HeartbeatTimeout, Floor: r.Limits.Floor, Expect: r.Progress.Expect,
			Phases: r.Limits.Phases, WarmUp: r.Limits.WarmUp}
		if r.Limits.Start > 0 {
			l.Start = r.Limits.Start
		}
		if r.Limits.Heartbeat > 0 || r.Limits.Learned {
			l.Heartbeat = r.Limits.Heartbeat
		}
		specs = append(specs, health.Spec{Name: r.Name, Workers: r.Workers, Limits: l, Probed: r.Ready != nil, Asked: r.Alive != nil, Stateful: r.State == job.Checkpointed, SavedBy: r.Checkpoint.By, Rejoin: r.Restart.Rejoin, Source: stepSource(r)})
	}
	return specs
}

// stepSource says in words what a role's steps are read from if it does not say them itself.
func stepSource(r *job.Role) string {
	switch r.Progress.Source {
	case job.FromHook:
		return "an injected optimizer hook, unless the program says them"
	case job.FromPattern:
		return fmt.Sprintf("its output by '%s', unless the program says them", r.Progress.Pattern)
	case job.FromFile:
		return r.Progress.File + ", unless the program says them"
	case job.FromWord:
	}
	return ""
}

// Run runs the job to its end and returns how it ended. Everything of it is stopped then. When ctx
// ends, everything is killed instead.
func (c *Controller) Run(ctx context.Context) (engine.Outcome, error) {
	c.endings.add("incidents", c.kept.follow())
	if c.hooks != nil {
		c.endings.add("worker hooks", c.hooks.follow())
	}
	if err := c.takeOver(ctx); err != nil { // before services can register
		return engine.Outcome{}, errors.Join(c.ground.notNow(err), c.Close())
	}
	c.serve()
	started := event.New(c.began, event.JobStarted)
	started.Detail = c.uid
	c.events.Record(started)
	if c.opts.UseHealthCheck {
		c.log.Info("Global health check system enabled")
	}
	if err := c.checker.Start(c.found); err != nil {
		return engine.Outcome{}, errors.Join(err, c.Close())
	}
	c.endings.add("health checker", func(context.Context) error { return c.checker.Stop(2 * time.Second) })
	if c.opts.UseHealthCheck {
		c.log.Info("HealthManager initialized")
	}
	c.sayBegins()
	c.log.Info("job started", "job", c.uid, "roles", restart.Names(c.opts.Job.Names()), "http", c.url(), "logs", c.ground.logs)
	c.warnOfOurPort()
	c.endings.add("peers", c.crew.followPeers())
	c.endings.add("supervisor", c.followSupervisor())
	c.endings.add("rhythms", c.followRhythms())
	c.endings.add("steps", c.followSteps())
	c.endings.add("runtime directory", c.followFooting())
	c.endings.add("state directory", every(lookAtFooting, func() { _ = c.ground.folder.regain() })) // what fails has been said
	c.endings.add("retention", c.followRetention())
	if c.opts.StatusEvery > 0 {
		c.endings.add("status lines", c.sayStatus())
	}
	if of, err := selectOutput(c.opts.Job, c.opts.Tee); err == nil && len(c.opts.Tee) > 0 && c.opts.Output != nil {
		c.endings.add("output", c.showOutput(of))
	}
	out := c.engine.Run(ctx)
	if ctx.Err() != nil {
		c.crew.hurry()
	}
	c.settle(out)
	return out, c.Close()
}

// serve lets the wires answer.
func (c *Controller) serve() {
	go func() {
		if err := c.hub.Serve(c.ground.socket); err != nil {
			c.log.Error("serve services", "error", err)
		}
	}()
	c.serveHTTP()
	c.endings.add("services", func(ctx context.Context) error { return c.crew.close(ctx) })
}

// found hands to the engine what the checker found.
func (c *Controller) found(f health.Findings) error {
	c.engine.Found(withLogs(c.ground.logs, f.Failures), f.Finished)
	return nil
}

// failuresTime bounds the wait, at the end, for failures that are still to be shown.
const failuresTime = 3 * time.Second

// settle records how the job ended.
func (c *Controller) settle(out engine.Outcome) {
	c.mu.Lock()
	c.ended, c.outcome, c.state = time.Now(), &out, "ended"
	c.mu.Unlock()
	e := event.New(time.Now(), event.JobEnded)
	e.Detail, e.Rule = out.Why, string(out.Rule)
	c.events.Record(e)
	ctx, cancel := context.WithTimeout(context.Background(), failuresTime)
	defer cancel()
	_ = c.failures.Flush(ctx) // whatever its logs do, the end is told
	c.report(out)
}

// Close takes everything apart that stands, newest first. It may be called more than once.
func (c *Controller) Close() error { return c.endings.run(c.log) }

// Stop ends the job in order; its exit code is 128 and the signal's number.
func (c *Controller) Stop(sig syscall.Signal) {
	c.mu.Lock()
	c.state = "stopping"
	c.mu.Unlock()
	c.log.Info("stopping the job; once more to kill everything at once", "signal", signalName(sig))
	c.engine.StopJob("stopped by "+signalName(sig), 128+int(sig))
}

// healthOf is the store as the engine sees it.
type healthOf struct{ *health.Store }

// Report hands on a failed repair; what the store makes of it comes back by the next sweep.
func (h healthOf) Report(f role.Failure) { h.Store.Report(f) }

// endings is the stack of what must be undone, by name.
type endings struct {
	mu    sync.Mutex
	stack []ending
}

type ending struct {
	name string
	end  func(context.Context) error
}

// add puts an ending on the stack.
func (e *endings) add(name string, end func(context.Context) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stack = append(e.stack, ending{name, end})
}

// run runs the endings, newest first, each bounded, and joins their errors.
func (e *endings) run(log *slog.Logger) error {
	var errs []error
	for {
		e.mu.Lock()
		if len(e.stack) == 0 {
			e.mu.Unlock()
			return errors.Join(errs...)
		}
		last := e.stack[len(e.stack)-1]
		e.stack = e.stack[:len(e.stack)-1]
		e.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if err := last.end(ctx); err != nil {
			log.Error("end "+last.name, "error", err)
			errs = append(errs, fmt.Errorf("end %s: %w", last.name, err))
		}
		cancel()
	}
}

// every does something again and again, for the first time after d, and returns what ends that.
func every(d time.Duration, do func()) (end func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(context.Context) error {
		cancel()
		<-done
		return nil
	}
}
