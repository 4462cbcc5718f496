package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	t       *testing.T
	job     *job.Job
	policy  restart.Policy
	store   *health.Store // of the newest controller
	checker *health.Checker
	engine  *engine.Engine
	end     context.CancelCauseFunc // of that controller
	began   time.Time
	outcome chan engine.Outcome
	gone    chan struct{} // closed when that controller has stopped working
	ended   *engine.Outcome
	book    *book // what outlives a controller; nil: nothing does

	mu       sync.Mutex
	reign    int  // counts controllers that have died
	deserted bool // the newest controller has died
	actors   map[role.Name]*player
	gate     chan struct{} // closed while the controller runs
	events   []event.Event
	log      strings.Builder
	failing  map[string]int   // "verb role": how many more times it fails
	fatal    map[string]fatal // by "verb role"
	wrong    []string         // what must never happen, and did
}

func newWorld(t *testing.T) *world {
	return &world{t: t, actors: map[role.Name]*player{}, failing: map[string]int{}, fatal: map[string]fatal{}, job: &job.Job{Name: "story"},
		policy: restart.Policy{HealthCheck: true, MaxGlobal: 3, Roles: map[role.Name]restart.RolePolicy{}}}
}

// leave ends what is left of a story when its engine has.
func (w *world) leave(t *testing.T, cancel context.CancelFunc) {
	t.Helper()
	if err := w.checker.Stop(time.Second); err != nil {
		t.Fatal(err)
	}
	if w.book != nil {
		if err := w.book.journal.Close(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	w.mu.Lock()
	for _, p := range w.actors {
		if p.end != nil {
			p.end()
		}
	}
	w.mu.Unlock()
	synctest.Wait()
}

// kill ends one worker as by SIGKILL, if it is of that incarnation.
func (w *world) kill(name role.Name, incarnation, rank int) {
	life := w.life(name, incarnation, rank)
	w.mu.Lock()
	p, store := w.actors[name], w.store
	ours := p.incarnation == incarnation
	if ours {
		p.ranks[rank] = false
	}
	w.mu.Unlock()
	if ours {
		store.Report(role.Failure{Life: life, Cause: role.Exited, Detail: "SIGKILL", Exit: &role.Exit{Signal: "SIGKILL"}})
	}
}

// player plays the services and workers of one role.
type player struct {
	index       int
	service     bool
	holds       bool // the service has workers of an incarnation, dead or alive
	highest     int  // incarnation that ever ran
	incarnation int
	ranks       []bool         // which run
	finished    []bool         // which have ended well
	attempts    []atomic.Int32 // beyond the first, by rank
	alone       bool           // its workers need no others
	hung        map[int]bool
	saves       time.Duration // that rank 0 takes to end when it is told to
	longer      chan struct{} // closed when stops of this life have the grace of a wanted one
	mood        string        // quiet, stalled or starved; empty: it gets on
	step        int64
	behind      []int64 // steps by which each rank is behind, of those that were restarted alone
	given       int64
	every       time.Duration
	slow        map[string]time.Duration // by verb
	end         context.CancelFunc
	startsAt    int64 // -1: where it was told; else what its checkpoint says
	unready     bool
	byHand      bool // an operator wants it stopped
	doomed      bool // each of its lives dies after a second
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

// record keeps what a controller says, unless it is dead.
func (w *world) record(reign int, e event.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if reign != w.reign {
		return false
	}
	w.events = append(w.events, e)
	return true
}

// health is what the newest controller knows of who is well.
func (w *world) health() *health.Store {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.store
}

// hand is the world in the hand of one controller. What a dead controller begins has no effect.
type hand struct {
	*world
	reign int
	store *health.Store
}

// took makes a call of the crew last a time that no other role's has, so that no two things happen
// at one instant, fails it if the story says so, or kills the controller that makes it.
func (w hand) took(ctx context.Context, verb string, name role.Name) error {
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
	if err := w.survives(key); err != nil {
		return err
	}
	if fails {
		return errors.New("the story wants it to fail")
	}
	return nil
}

func (w hand) ReadStep(ctx context.Context, name role.Name) (engine.Steps, error) {
	if err := w.took(ctx, "read_step", name); err != nil {
		return engine.Steps{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.actors[name]
	if !p.service {
		return engine.Steps{}, errors.New("no service")
	}
	read := engine.Steps{Step: p.given}
	if p.step > 0 { // its workers have been begun
		read.Step, read.Spoken = p.step, map[int]int64{}
		for r := range p.ranks {
			read.Spoken[r] = p.step - p.behind[r]
		}
	}
	return read, nil
}

func (w hand) StopWorkers(ctx context.Context, name role.Name, how engine.Stop) ([]string, error) {
	if err := w.took(ctx, "stop_service", name); err != nil {
		return nil, err
	}
	held := w.ends(name, how.Kind)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead() {
		return nil, errDead
	}
	p := w.actors[name]
	if p.end != nil {
		p.end()
	}
	p.holds = false
	return held, nil
}

// graces are those of a job file's defaults.
var graces = map[engine.StopKind]time.Duration{engine.Wanted: 30 * time.Second, engine.AfterFailure: 3 * time.Second}

// ends lets the workers of a role end: those that hang are killed at the end of the grace, and one that saves its work
// if it has not saved by then. It returns who was killed.
func (w hand) ends(name role.Name, kind engine.StopKind) (held []string) {
	began := time.Now()
	w.mu.Lock()
	p := w.actors[name]
	for r := range p.hung {
		held = append(held, fmt.Sprintf("rank %d pid %d", r, 1000+r))
	}
	slices.Sort(held)
	saves, longer, holds := p.saves, p.longer, p.holds
	w.mu.Unlock()
	if held == nil && saves == 0 || !holds {
		return nil
	}
	var saved <-chan time.Time
	if held == nil {
		saved, held = time.After(saves), []string{"rank 0 pid 1000"}
	}
	if longer == nil {
		kind = engine.Wanted
	}
	over := time.NewTimer(graces[kind])
	defer over.Stop()
	for {
		select {
		case <-saved:
			return nil
		case <-longer:
			longer = nil
			over.Reset(graces[engine.Wanted] - time.Since(began))
		case <-over.C:
			return held
		}
	}
}

// Lengthen gives the role's stop that is under way the grace of a wanted one.
func (w hand) Lengthen(_ context.Context, name role.Name) error {
	w.with(name, (*player).lengthen)
	return nil
}

func (p *player) lengthen() {
	if p.longer != nil {
		close(p.longer)
		p.longer = nil
	}
}

// Delete ends a service that holds something; one that is well is kept.
func (w hand) Delete(ctx context.Context, name role.Name, _ engine.DeleteKind) error {
	if err := w.took(ctx, "delete_service", name); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.actors[name]; p.holds {
		p.service, p.holds = false, false
		p.end()
	}
	return nil
}

func (w hand) Start(ctx context.Context, name role.Name, _ int) error {
	if err := w.took(ctx, "start", name); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.actors[name]
	p.service, p.step, p.given = true, 0, 0
	return nil
}

func (w hand) WriteStep(ctx context.Context, name role.Name, step int64) error {
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

func (w hand) Run(ctx context.Context, name role.Name, inc int, step int64) error {
	if err := w.took(ctx, "run", name); err != nil {
		return err
	}
	w.mu.Lock()
	p := w.actors[name]
	if !p.service {
		w.mu.Unlock()
		return errors.New("no service")
	}
	if inc <= p.highest {
		w.wrong = append(w.wrong, fmt.Sprintf("incarnation %d of %s is begun after %d", inc, name, p.highest))
	}
	if p.holds {
		w.wrong = append(w.wrong, fmt.Sprintf("incarnation %d of %s is begun beside %d", inc, name, p.incarnation))
		p.end()
	}
	life, end := context.WithCancel(context.Background())
	p.end, p.incarnation, p.highest, p.hung, p.holds = end, inc, inc, map[int]bool{}, true
	p.longer = make(chan struct{})
	p.given, p.step, p.mood = step, step, ""
	if p.startsAt >= 0 {
		p.step = p.startsAt
	}
	ranks, brief, doomed := len(p.ranks), p.brief, p.doomed
	for i := range p.ranks {
		p.ranks[i], p.finished[i] = !brief, brief
		p.attempts[i].Store(0)
		p.behind[i] = 0
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
	if doomed {
		time.AfterFunc(time.Second, func() { w.kill(name, inc, 0) })
	}
	return nil
}

func (w hand) StopWorker(ctx context.Context, name role.Name, rank int, _ engine.Stop) ([]string, error) {
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

func (w hand) RunWorker(ctx context.Context, life role.Life, step int64) error {
	name := life.Role
	if err := w.took(ctx, "run", name); err != nil {
		return err
	}
	w.mu.Lock()
	p := w.actors[name]
	p.ranks[life.Rank], p.behind[life.Rank] = true, p.step-step
	p.attempts[life.Rank].Store(int32(life.Attempt - 1))
	inc, doomed := p.incarnation, p.doomed
	w.mu.Unlock()
	life = w.life(name, inc, life.Rank)
	if doomed {
		time.AfterFunc(time.Second, func() { w.kill(name, inc, life.Rank) })
	}
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
		steps, store := make([]int64, len(p.ranks)), w.store
		for r := range steps {
			steps[r] = p.step - p.behind[r]
		}
		var says []int
		for r, runs := range p.ranks {
			if runs && !w.deserted && (len(p.hung) == 0 || p.alone && !p.hung[r]) {
				says = append(says, r)
			}
		}
		w.mu.Unlock()
		for _, r := range says {
			switch mood {
			case "":
				store.Beat(w.life(name, inc, r), &steps[r], time.Now())
			case "stalled": // it says that it lives, and gets nowhere
				store.Beat(w.life(name, inc, r), nil, time.Now())
			case "quiet": // its service has looked, and it does not wait for a CPU
				store.Starved(w.life(name, inc, r), 0)
			case "starved": // its service says so
				store.Starved(w.life(name, inc, r), every)
			}
		}
	}
}

func (w hand) Place(name role.Name) error {
	return w.took(context.Background(), "place", name)
}
func (w hand) Release(role.Name) {}

func (w *world) life(name role.Name, inc, rank int) role.Life {
	return role.Life{Job: jobUID, Role: name, Incarnation: inc, Rank: rank, Attempt: 1 + int(w.actors[name].attempts[rank].Load())}
}
