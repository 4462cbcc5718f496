package scenario

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/journal"
	"vigil/internal/restart/engine"
	"vigil/internal/restart/memory"
	"vigil/internal/role"
)

// fatal says when a controller dies of a call of the crew.
type fatal int

const (
	whileItIsMade fatal = iota + 1 // it has no effect
	onceItIsMade                   // it has, and the next call is under way
)

// dying is how long a controller outlives the call that it dies of.
const dying = time.Millisecond

var errDead = errors.New("the controller is dead")

// dead says whether the controller is. The caller has the lock.
func (w hand) dead() bool { return w.reign != w.world.reign }

// survives says whether the controller lives to make a call.
func (w hand) survives(call string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead() {
		return errDead
	}
	dies := w.fatal[call]
	delete(w.fatal, call)
	switch dies {
	case whileItIsMade:
		w.dies()
		return errDead
	case onceItIsMade:
		time.AfterFunc(dying, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if !w.dead() {
				w.dies()
			}
		})
	}
	return nil
}

// dies kills the controller. Workers go on. The caller has the lock.
func (w *world) dies() {
	w.reign++
	w.deserted = true
	w.book.mind.die()
	w.end(errDead)
}

func (w *world) isDeserted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.deserted
}

// succeed begins another controller when one has died or has been stopped.
func (w *world) succeed(ctx context.Context) error {
	if !w.isDeserted() && w.ended == nil {
		return errors.New("the controller lives")
	}
	err := w.checker.Stop(time.Second)
	<-w.gone
	w.judgeLoop()
	if err = errors.Join(err, w.book.reopen()); err != nil {
		return err
	}
	remembered, err := memory.Read(w.book.journal)
	if err != nil {
		return err
	}
	w.mu.Lock()
	reign := w.reign
	w.mu.Unlock()
	if w.ended != nil {
		w.record(reign, event.Event{At: time.Now(), Kind: event.JobEnded, Rank: role.NoRank, Detail: fmt.Sprintf("exit %d: %s", w.ended.Exit, w.ended.Why)})
		w.ended = nil
	}
	e := event.New(time.Now(), event.JobStarted)
	e.Detail = "another controller goes on"
	w.record(reign, e)
	return w.begin(ctx, remembered)
}

// Lives lets every service that lives tell of its workers.
func (w hand) Lives(context.Context) map[role.Name]map[int]role.Life {
	out := map[role.Name]map[int]role.Life{}
	for _, name := range w.job.Names() {
		w.mu.Lock()
		p := w.actors[name]
		holds, inc := p.service && p.holds, p.incarnation
		w.mu.Unlock()
		if !holds {
			continue
		}
		out[name] = map[int]role.Life{}
		rec, _ := w.store.Record(name)
		for r := range p.ranks {
			life := w.life(name, inc, r)
			out[name][r] = life
			w.mu.Lock()
			runs, finished := p.ranks[r], p.finished[r]
			w.mu.Unlock()
			switch {
			case runs:
				w.store.Worker(life, 1000+r, role.WorkerStarting, "")
				w.store.Worker(life, 1000+r, role.WorkerReady, "")
			case finished:
				w.store.Worker(life, 1000+r, role.WorkerFinished, "")
			case rec.TaskRunning:
				w.store.Report(role.Failure{Life: life, Cause: role.Exited, Detail: "SIGKILL", Exit: &role.Exit{Signal: "SIGKILL"}})
			}
		}
	}
	return out
}

// book is the journal of a job.
type book struct {
	path    string
	commit  time.Duration // how long a commit takes
	journal *journal.Journal
	mind    *mind // of the newest controller
}

func openBook(t testing.TB, commit time.Duration) (*book, error) {
	b := &book{path: filepath.Join(t.TempDir(), "journal.db"), commit: commit}
	var err error
	if b.journal, err = journal.Open(b.path, journal.Options{Job: "story"}); err != nil {
		return nil, err
	}
	return b, b.journal.BeginRun(journal.Run{UID: jobUID, Job: "story", Began: time.Now(), Epoch: 1})
}

// reopen is what the next controller does.
func (b *book) reopen() (err error) {
	if err := b.journal.Close(); err != nil {
		return err
	}
	b.journal, err = journal.Open(b.path, journal.Options{Job: "story"})
	return err
}

func (b *book) memory() engine.Memory {
	b.mind = &mind{Memory: memory.On(b.journal), commit: b.commit}
	return b.mind
}

// mind is the memory of one controller. What is not on the disk when it dies is lost.
type mind struct {
	memory.Memory
	commit time.Duration

	mu    sync.Mutex
	dead  bool
	queue []thought
}

type thought struct {
	update engine.Update
	kept   chan error // has room for one
}

func (m *mind) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead, m.queue = true, nil
}

func (m *mind) Note(u engine.Update) { m.Keep(u) }

func (m *mind) Keep(u engine.Update) func(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := thought{u, make(chan error, 1)}
	if !m.dead {
		if m.queue = append(m.queue, one); len(m.queue) == 1 {
			time.AfterFunc(m.commit, m.write)
		}
	}
	return func(ctx context.Context) error {
		select {
		case err := <-one.kept:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// write puts what is queued on the disk.
func (m *mind) write() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.queue {
		one.kept <- m.Memory.Keep(one.update)(context.Background())
	}
	m.queue = nil
}
