package controller

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/console"
	"vigil/internal/event"
	"vigil/internal/goodput"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/metrics"
	"vigil/internal/proc"
	"vigil/internal/restart/engine"
	"vigil/internal/restart/memory"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/rpc"
)

// slowCrew is services on a machine where everything takes a second. Their workers run as soon as they
// are told to.
type slowCrew struct{ *Controller }

func (w slowCrew) slow(ctx context.Context) error {
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w slowCrew) ReadStep(ctx context.Context, _ role.Name) (engine.Steps, error) {
	return engine.Steps{Step: 7}, w.slow(ctx)
}
func (w slowCrew) StopWorkers(ctx context.Context, _ role.Name, _ engine.Stop) ([]string, error) {
	return []string{"rank 0"}, w.slow(ctx)
}
func (w slowCrew) Delete(ctx context.Context, _ role.Name, _ engine.DeleteKind) error {
	return w.slow(ctx)
}
func (w slowCrew) Lengthen(ctx context.Context, _ role.Name) error           { return w.slow(ctx) }
func (w slowCrew) Start(ctx context.Context, _ role.Name, _ int) error       { return w.slow(ctx) }
func (w slowCrew) WriteStep(ctx context.Context, _ role.Name, _ int64) error { return w.slow(ctx) }
func (w slowCrew) Lives(context.Context) map[role.Name]map[int]role.Life     { return nil }
func (w slowCrew) StopWorker(ctx context.Context, _ role.Name, _ int, _ engine.Stop) ([]string, error) {
	return nil, w.slow(ctx)
}
func (w slowCrew) RunWorker(ctx context.Context, life role.Life, _ int64) error {
	w.runs(life)
	return w.slow(ctx)
}
func (w slowCrew) Run(ctx context.Context, name role.Name, inc int, _ int64) error {
	r, _ := w.opts.Job.Role(name)
	for rank := range r.Workers {
		w.runs(role.Life{Job: w.uid, Role: name, Incarnation: inc, Rank: rank, Attempt: 1})
	}
	return w.slow(ctx)
}

func (w slowCrew) runs(life role.Life) {
	w.store.Worker(life, 4711, role.WorkerStarting, "")
	w.store.Worker(life, 4711, role.WorkerReady, "")
	step := int64(8)
	w.store.Beat(life, &step, time.Now())
}

func (w slowCrew) Place(role.Name) error { return w.slow(context.Background()) }
func (w slowCrew) Release(role.Name)     {}

// hangs is a terminal that nobody reads.
type hangs struct{ ctx context.Context }

func (h hangs) Write([]byte) (int, error) {
	<-h.ctx.Done()
	return 0, h.ctx.Err()
}

func (h hangs) Run(context.Context, proc.Command) (string, error) {
	<-h.ctx.Done()
	return "", h.ctx.Err()
}

func (hangs) Close(context.Context) {}

// slowWorld is a controller where everything beside the repair loop hangs: the terminal, the disk that logs
// are read from, the commands of the user's.
func slowWorld(t *testing.T, ctx context.Context, roles int) *Controller {
	t.Helper()
	dir := t.TempDir()
	var file strings.Builder
	file.WriteString("name: slow\nroles:\n")
	for i := range roles {
		unit := []string{"role", "worker"}[i%2]
		fmt.Fprintf(&file, "  r%d: {command: [w], workers: 2, completion: daemon, restart: {unit: %s, on_failure: in_place, escalate_at: 3}, hooks: {worker_ready: [notify], worker_down: [notify]}}\n", i, unit)
	}
	file.WriteString("  last: {command: [w]}\n")
	j, err := job.Parse("job.yaml", []byte(file.String()), dir)
	if err != nil {
		t.Fatal(err)
	}
	out := newOutlet(hangs{ctx}, "text")
	log, err := NewLogger(out, "text", "debug")
	if err != nil {
		t.Fatal(err)
	}
	book, err := journal.Open(filepath.Join(dir, "journal.db"), journal.Options{Job: "slow"})
	if err != nil {
		t.Fatal(err)
	}
	if err := book.BeginRun(journal.Run{UID: "slow-1", Job: "slow", Began: time.Now(), Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	c := &Controller{opts: Options{Job: j, UseHealthCheck: true, MaxGlobalRestart: 100, StartTimeout: time.Minute, CheckInterval: time.Second, LogFormat: "text", Stderr: out},
		log: log, uid: "slow-1", began: time.Now(), history: event.NewHistory(200), ground: &ground{journal: book, logs: dir, incidents: dir}}
	c.failures = console.NewFailures(console.Options{To: out, Tail: func(string, int) []string { <-ctx.Done(); return nil }})
	c.metrics = metrics.New(metrics.Options{Source: source{c}})
	c.account = goodput.New(c.began, j.Names())
	c.kept = newIncidents(dir, c.history, nil, "", log)
	c.kept.record = func(i httpapi.Incident) { book.Write(journal.Put(journal.Incident, i.ID, i)) }
	c.hooks = newWorkerHooks(c, func(string) runner { return hangs{ctx} })
	c.hooks.ports = func(role.Name, int) map[string]uint32 { return nil }
	c.events = event.NewLog(keepEvents, c.observers()...)
	c.store = health.NewStore(c.uid, c.opts.CheckInterval, c.events.Record, c.specs()...)
	c.keeping = &memory.Health{Journal: book, Job: j, Store: c.store}
	c.checker = health.NewChecker(c.store, c.opts.CheckInterval, log)
	c.engine = engine.New(c.engineOptions(slowCrew{c}, slowCrew{c}))
	return c
}

// Everything that the repair loop calls itself is there as the controller puts it together, and everything
// that those hand on to hangs. Time passes only where somebody waits, so that none has passed in the loop, in
// whoever records an event, and in the health checker, says that they wait for nothing. The kind: logs, the
// terminal, hooks, the journal, observers of events, the records of incidents, an order that takes long.
// shows: FAULT-H1 FAULT-H2
func TestTheRepairLoopWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		const roles = 30
		c := slowWorld(t, ctx, roles)
		endHooks := c.hooks.follow()
		checked := time.Duration(0)
		if err := c.checker.Start(func(f health.Findings) error {
			began := time.Now()
			defer func() { checked = max(checked, time.Since(began)) }()
			return c.found(f)
		}); err != nil {
			t.Fatal(err)
		}
		outcome := make(chan engine.Outcome)
		go func() { outcome <- c.engine.Run(ctx) }()
		<-time.After(time.Minute)
		began := time.Now()
		for round := range 20 {
			for i := range roles {
				name := role.Name(fmt.Sprintf("r%d", i))
				life := role.Life{Job: c.uid, Role: name, Incarnation: c.engine.Status(name).Incarnation, Rank: round % 2, Attempt: 1}
				if rec, err := c.store.Record(name); err == nil {
					life = rec.Ranks[life.Rank].Life
				}
				before := time.Now()
				ears{c}.Failed(role.Failure{Life: life, Cause: role.Reported, Detail: "no data"}, rpc.ServiceID{Role: name})
				ears{c}.Notice(life, "a word")
				if waited := time.Since(before); waited > 0 {
					t.Fatalf("whoever reads the words of a service waited for %s", waited)
				}
			}
			<-time.After(90 * time.Second)
		}
		decided := 0
		for _, i := range c.history.Incidents() {
			if !i.Decided.IsZero() {
				decided++
			}
		}
		if decided < 150 {
			t.Errorf("only %d incidents were decided: the loop has had little to do", decided)
		}
		if d := c.engine.LongestAct(); d > 0 {
			t.Errorf("the repair loop was busy with one thing for %s", d)
		}
		if checked > 0 {
			t.Errorf("the health checker's callback has taken %s", checked)
		}
		stopped := time.Now()
		c.engine.StopJob("stopped by SIGTERM", 143)
		if out := <-outcome; out.Exit != 143 {
			t.Errorf("exit %d: %s", out.Exit, out.Why)
		}
		if d := c.engine.LongestAct(); d > 0 {
			t.Errorf("the repair loop was busy with one thing for %s when it stopped the job", d)
		}
		t.Logf("%d incidents decided in %s, stopped in %s", decided, stopped.Sub(began), time.Since(stopped))
		end()
		if err := c.checker.Stop(time.Minute); err != nil {
			t.Error(err)
		}
		if err := endHooks(t.Context()); err != nil {
			t.Error(err)
		}
		if err := c.ground.journal.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}
