package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

const jobUID = "story-00000001"

// world is one job played in fake time.
type world struct {
	job     *job.Job
	policy  restart.Policy
	store   *health.Store
	checker *health.Checker
	engine  *engine.Engine
	began   time.Time
	outcome chan engine.Outcome
	ended   *engine.Outcome

	mu      sync.Mutex
	actors  map[role.Name]*player
	gate    chan struct{} // closed while the controller runs
	events  []event.Event
	log     strings.Builder
	failing map[string]int // "verb role": how many more times it fails
}

// player plays the services and workers of one role.
type player struct {
	index       int
	service     bool
	incarnation int
	ranks       []bool         // which run
	attempts    []atomic.Int32 // beyond the first, by rank
	alone       bool           // its workers need no others
	hung        map[int]bool
	mood        string // quiet, stalled or starved; empty: it gets on
	step        int64
	given       int64
	every       time.Duration
	slow        map[string]time.Duration // by verb
	end         context.CancelFunc
	startsAt    int64 // -1: where it was told; else what its checkpoint says
	unready     bool
	brief       bool // its workers end well before the order to run is answered
}

// open is closed while the controller runs.
func (w *world) open() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gate
}

// shut stops the controller and returns what lets it run again.
func (w *world) shut() (open func()) {
	gate := make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gate = gate
	return func() { close(gate) }
}

func (w *world) record(e event.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// took makes a call of the crew last a time that no other role's has, so that no two things happen
// at one instant, and fails it if the story says so.
func (w *world) took(ctx context.Context, verb string, name role.Name) error {
	w.mu.Lock()
	p := w.actors[name]
	d := 10*time.Millisecond + time.Duration(p.index)*time.Millisecond + p.slow[verb]
	key := verb + " " + string(name)
	fails := w.failing[key] > 0
	if fails {
		w.failing[key]--
	}
	w.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if fails {
		return errors.New("the story wants it to fail")
	}
	return nil
}

func (w *world) ReadStep(ctx context.Context, name role.Name) (int64, error) {
	if err := w.took(ctx, "read_step", name); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.actors[name]
	if !p.service {
		return 0, errors.New("no service")
	}
	return max(p.step, p.given), nil
}

func (w *world) StopWorkers(ctx context.Context, name role.Name, how engine.Stop) ([]string, error) {
	if err := w.took(ctx, "stop_service", name); err != nil {
		return nil, err
	}
	w.mu.Lock()
	p := w.actors[name]
	end := p.end
	var held []string
	for r := range p.hung {
		held = append(held, fmt.Sprintf("rank %d pid %d", r, 1000+r))
	}
	slices.Sort(held)
	w.mu.Unlock()
	if held != nil {
		<-time.After(map[engine.StopKind]time.Duration{engine.Wanted: 30 * time.Second, engine.AfterFailure: 3 * time.Second}[how.Kind])
	}
	if end != nil {
		end()
	}
	return held, nil
}

func (w *world) Delete(ctx context.Context, name role.Name, _ engine.DeleteKind) error {
	return w.took(ctx, "delete_service", name)
}

func (w *world) Start(ctx context.Context, name role.Name, _ int) error {
	if err := w.took(ctx, "start", name); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.actors[name]
	p.service, p.step, p.given = true, 0, 0
	return nil
}

func (w *world) WriteStep(ctx context.Context, name role.Name, step int64) error {
	if err := w.took(ctx, "write_step", name); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.actors[name]
	if !p.service {
		return errors.New("no service")
	}
	p.given, p.step = step, 0
	return nil
}

func (w *world) Run(ctx context.Context, name role.Name, inc int, step int64) error {
	if err := w.took(ctx, "run", name); err != nil {
		return err
	}
	w.mu.Lock()
	p := w.actors[name]
	if !p.service {
		w.mu.Unlock()
		return errors.New("no service")
	}
	if p.end != nil {
		p.end() // whatever a failed stop has left
	}
	life, end := context.WithCancel(context.Background())
	p.end, p.incarnation, p.hung = end, inc, map[int]bool{}
	p.given, p.step, p.mood = step, step, ""
	if p.startsAt >= 0 {
		p.step = p.startsAt
	}
	ranks, brief := len(p.ranks), p.brief
	for i := range p.ranks {
		p.ranks[i] = !brief
		p.attempts[i].Store(0)
	}
	ready := role.WorkerReady
	if p.unready {
		ready = role.WorkerStarting
	}
	w.mu.Unlock()
	for r := range ranks {
		w.store.Worker(w.life(name, inc, r), 1000+r, role.WorkerStarting, "")
		w.store.Worker(w.life(name, inc, r), 1000+r, ready, "")
		if brief {
			w.store.Worker(w.life(name, inc, r), 1000+r, role.WorkerFinished, "")
		}
	}
	if brief {
		return w.took(ctx, "answer", name)
	}
	go w.train(life, name, inc)
	return nil
}

func (w *world) Lives(context.Context) map[role.Name]map[int]role.Life { return nil }

func (w *world) StopWorker(ctx context.Context, name role.Name, rank int, _ engine.Stop) ([]string, error) {
	if err := w.took(ctx, "stop_service", name); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.actors[name]
	p.ranks[rank] = false
	delete(p.hung, rank)
	return nil, nil
}

func (w *world) RunWorker(ctx context.Context, life role.Life, _ int64) error {
	name := life.Role
	if err := w.took(ctx, "run", name); err != nil {
		return err
	}
	w.mu.Lock()
	p := w.actors[name]
	p.ranks[life.Rank] = true
	p.attempts[life.Rank].Store(int32(life.Attempt - 1))
	life = w.life(name, p.incarnation, life.Rank)
	w.mu.Unlock()
	w.store.Worker(life, 2000+life.Rank, role.WorkerStarting, "")
	w.store.Worker(life, 2000+life.Rank, role.WorkerReady, "")
	return nil
}

// train sends the heartbeats of one life.
func (w *world) train(life context.Context, name role.Name, inc int) {
	w.mu.Lock()
	p := w.actors[name]
	every, offset := p.every, time.Duration(p.index)*7*time.Millisecond+3*time.Millisecond
	w.mu.Unlock()
	for wait := offset + every; ; wait = every {
		select {
		case <-life.Done():
			return
		case <-time.After(wait):
		}
		<-w.open()
		w.mu.Lock()
		mood := p.mood
		if (len(p.hung) == 0 || p.alone) && mood == "" { // a rank that hangs holds up its peers
			p.step++
		}
		step := p.step
		var says []int
		for r, runs := range p.ranks {
			if runs && (len(p.hung) == 0 || p.alone && !p.hung[r]) {
				says = append(says, r)
			}
		}
		w.mu.Unlock()
		for _, r := range says {
			switch mood {
			case "":
				w.store.Beat(w.life(name, inc, r), &step, time.Now())
			case "stalled": // it says that it lives, and gets nowhere
				w.store.Beat(w.life(name, inc, r), nil, time.Now())
			case "quiet": // its service has looked, and it does not wait for a CPU
				w.store.Starved(w.life(name, inc, r), 0)
			case "starved": // its service says so
				w.store.Starved(w.life(name, inc, r), every)
			}
		}
	}
}

func (w *world) Place(name role.Name) error {
	return w.took(context.Background(), "place", name)
}
func (w *world) Release(role.Name) {}

func (w *world) life(name role.Name, inc, rank int) role.Life {
	return role.Life{Job: jobUID, Role: name, Incarnation: inc, Rank: rank, Attempt: 1 + int(w.actors[name].attempts[rank].Load())}
}

// sweeper lets the story stop the controller.
type sweeper struct{ w *world }

func (s sweeper) Wake() <-chan struct{} { return s.w.store.Wake() }
func (s sweeper) Sweep(now time.Time) health.Findings {
	<-s.w.open()
	return s.w.store.Sweep(time.Now())
}

// ears adapts the store to what the engine asks of health.
type ears struct{ *health.Store }

func (e ears) Report(f role.Failure) { e.Store.Report(f) }

// start begins the job.
func (w *world) start(ctx context.Context) {
	w.began = time.Now()
	w.shut()()
	var specs []health.Spec
	for i := range w.job.Roles {
		r := &w.job.Roles[i]
		specs = append(specs, health.Spec{Name: r.Name, Workers: r.Workers, Probed: r.Ready != nil, Stateful: r.State == job.Checkpointed, Rejoin: r.Restart.Rejoin,
			Limits: health.Limits{Start: r.Limits.Start, Heartbeat: r.Limits.Heartbeat, Floor: r.Limits.Floor, Expect: r.Progress.Expect, Phases: r.Limits.Phases}})
		w.actors[r.Name].ranks = make([]bool, r.Workers)
		w.actors[r.Name].attempts = make([]atomic.Int32, r.Workers)
		w.actors[r.Name].alone = r.Restart.Unit == job.UnitWorker
	}
	w.store = health.NewStore(jobUID, time.Second, w.record, specs...)
	log := slog.New(slog.NewTextHandler(&lockedWriter{w: w}, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" {
			return slog.Attr{}
		}
		return a
	}}))
	w.engine = engine.New(engine.Options{Job: w.job, Policy: w.policy, Crew: w, Places: w, Health: ears{w.store}, Recorder: recorder{w}, Log: log, StartLimit: 30 * time.Minute, Jitter: func() float64 { return 0.5 }})
	w.checker = health.NewChecker(sweeper{w}, time.Second, log)
	if err := w.checker.Start(func(f health.Findings) error { w.engine.Found(f.Failures, f.Finished); return nil }); err != nil {
		panic(err)
	}
	w.outcome = make(chan engine.Outcome, 1)
	go func() { w.outcome <- w.engine.Run(ctx) }()
}

type recorder struct{ w *world }

func (r recorder) Record(e event.Event) { r.w.record(e) }

type lockedWriter struct{ w *world }

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.log.Write(b)
}

var _ io.Writer = (*lockedWriter)(nil)
