package scenario

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/restart/engine"
	"vigil/internal/restart/memory"
	"vigil/internal/role"
)

// sweeper lets the story stop the controller.
type sweeper struct {
	w     *world
	store *health.Store
}

func (s sweeper) Wake() <-chan struct{} { return s.store.Wake() }
func (s sweeper) Sweep(now time.Time) health.Findings {
	<-s.w.open()
	return s.store.Sweep(time.Now())
}

// ears adapts the store to what the engine asks of health.
type ears struct{ *health.Store }

func (e ears) Report(f role.Failure) { e.Store.Report(f) }

// start begins the job.
func (w *world) start(ctx context.Context) {
	w.began = time.Now()
	w.shut()()
	for i := range w.job.Roles {
		r, p := &w.job.Roles[i], w.actors[w.job.Roles[i].Name]
		p.ranks, p.finished = make([]bool, r.Workers), make([]bool, r.Workers)
		p.attempts, p.behind = make([]atomic.Int32, r.Workers), make([]int64, r.Workers)
		p.alone = r.Restart.Unit == job.UnitWorker
	}
	if err := w.begin(ctx, nil); err != nil {
		panic(err)
	}
}

// begin begins a controller, with what an earlier one has kept.
func (w *world) begin(ctx context.Context, remembered *engine.Remembered) error {
	var specs []health.Spec
	for i := range w.job.Roles {
		r := &w.job.Roles[i]
		specs = append(specs, health.Spec{Name: r.Name, Workers: r.Workers, Probed: r.Ready != nil, Stateful: r.State == job.Checkpointed, SavedBy: r.Checkpoint.By, Rejoin: r.Restart.Rejoin,
			Limits: health.Limits{Start: r.Limits.Start, Heartbeat: r.Limits.Heartbeat, Floor: r.Limits.Floor, Expect: r.Progress.Expect, Phases: r.Limits.Phases}})
	}
	w.mu.Lock()
	me := recorder{w, w.reign}
	w.mu.Unlock()
	store := health.NewStore(jobUID, time.Second, me.Record, specs...)
	o := engine.Options{Job: w.job, Policy: w.policy, Health: ears{store}, Recorder: me, Remembered: remembered, StartLimit: 30 * time.Minute, Jitter: func() float64 { return 0.5 }}
	if w.book != nil {
		o.Memory = w.book.memory()
	}
	if remembered != nil {
		if err := memory.RestoreHealth(w.book.journal, w.job, store, remembered, time.Now()); err != nil {
			return err
		}
	}
	o.Log = slog.New(slog.NewTextHandler(&lockedWriter{me}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" {
			return slog.Attr{}
		}
		return a
	}}))
	it := hand{w, me.reign, store}
	o.Crew, o.Places = it, it
	begun := engine.New(o)
	checker := health.NewChecker(sweeper{w, store}, time.Second, o.Log)
	ctx, end := context.WithCancelCause(ctx)
	outcome, gone := make(chan engine.Outcome, 1), make(chan struct{})
	w.mu.Lock()
	w.store, w.engine, w.checker, w.end, w.outcome, w.gone, w.deserted = store, begun, checker, end, outcome, gone, false
	w.mu.Unlock()
	if err := checker.Start(func(f health.Findings) error { begun.Found(f.Failures, f.Finished); return nil }); err != nil {
		return err
	}
	if w.book != nil {
		go keepSteps(ctx, &memory.Health{Journal: w.book.journal, Job: w.job, Store: store})
	}
	go func() {
		defer close(gone)
		out := begun.Run(ctx)
		<-time.After(dying) // what it has noted is on the disk
		if err := it.survives("end"); err == nil {
			outcome <- out
		}
	}()
	return nil
}

// keepSteps writes the newest steps every ten seconds, as a controller does, at an instant of its own.
func keepSteps(ctx context.Context, keeping *memory.Health) {
	for wait := 10*time.Second + 500*time.Microsecond; ; wait = 10 * time.Second {
		select {
		case <-time.After(wait):
			keeping.Steps()
		case <-ctx.Done():
			return
		}
	}
}

// recorder takes in what one controller records.
type recorder struct {
	w     *world
	reign int
}

func (r recorder) Record(e event.Event) {
	if r.w.record(r.reign, e) && r.w.book != nil {
		r.w.keeping().Observe(e)
	}
}

// keeping is what keeps in the journal what health knows.
func (w *world) keeping() *memory.Health {
	return &memory.Health{Journal: w.book.journal, Job: w.job, Store: w.health()}
}

type lockedWriter struct{ recorder }

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.reign != l.w.reign {
		return len(b), nil
	}
	return l.w.log.Write(b)
}

var _ io.Writer = (*lockedWriter)(nil)
