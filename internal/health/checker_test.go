package health_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/role"
)

// watch is a store with one running critic and a checker over it, in fake time.
type watch struct {
	*testing.T
	store   *health.Store
	checker *health.Checker
	log     *lockedBuffer
	heard   heard

	mu    sync.Mutex
	found []role.Failure
	at    []time.Duration
	began time.Time
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// watching runs the test in a bubble; the checker is stopped at its end.
func watching(t *testing.T, test func(*watch)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &watch{T: t, log: &lockedBuffer{}, began: time.Now()}
		w.store = health.NewStore(uid, time.Second, w.heard.record, critic(1, explicit))
		w.store.Fence("critic")
		w.store.Begin("critic", 0)
		w.checker = health.NewChecker(w.store, 0, slog.New(slog.NewTextHandler(w.log, nil)))
		test(w)
		if err := w.checker.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	})
}

// keep is a callback that keeps what was found.
func (w *watch) keep(f health.Findings) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range f.Failures {
		w.found = append(w.found, x)
		w.at = append(w.at, time.Since(w.began))
	}
	return nil
}

func (w *watch) start(found func(health.Findings) error) {
	w.Helper()
	if err := w.checker.Start(found); err != nil {
		w.Fatal(err)
	}
}

func (w *watch) life() role.Life {
	return role.Life{Job: uid, Role: "critic", Incarnation: 1, Rank: 0, Attempt: 1}
}

func (w *watch) beat() {
	step := int64(1)
	w.store.Beat(w.life(), &step, time.Now())
}

func (w *watch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.found)
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// shows: R9 R10 CARD3
func TestTwoMinutesOfSilenceAreFoundAt121SecondsAndNotAt119(t *testing.T) {
	watching(t, func(w *watch) {
		pass(3 * time.Millisecond) // so that no word falls on a tick
		w.beat()
		w.start(w.keep)
		pass(119 * time.Second)
		if w.count() != 0 {
			w.Fatalf("found after 119 s: %v", w.found)
		}
		pass(2 * time.Second)
		if w.count() != 1 || w.found[0].Cause != role.Silent {
			w.Errorf("found after 121 s: %v", w.found)
		}
	})
}

// shows: R42 R7
func TestAReportIsHandedOnAtOnceAndNotAtTheNextTick(t *testing.T) {
	watching(t, func(w *watch) {
		w.start(w.keep)
		pass(1300 * time.Millisecond)
		w.store.Report(role.Failure{Life: w.life(), Cause: role.Reported, Detail: "x"})
		synctest.Wait() // no time passes
		if w.count() != 1 || w.at[0] != 1300*time.Millisecond {
			w.Errorf("found at %v", w.at)
		}
	})
}

// shows: R43
func TestACheckerIsNotStartedTwiceAndCanBeStartedAgainAfterItsStop(t *testing.T) {
	watching(t, func(w *watch) {
		w.start(w.keep)
		if err := w.checker.Start(w.keep); !errors.Is(err, health.ErrStarted) {
			w.Errorf("a second start said %v", err)
		}
		if err := w.checker.Stop(time.Second); err != nil {
			w.Error(err)
		}
		if err := w.checker.Stop(time.Second); err != nil {
			w.Errorf("a second stop said %v", err)
		}
		w.start(w.keep)
		w.store.Report(role.Failure{Life: w.life(), Cause: role.Reported})
		synctest.Wait()
		if w.count() != 1 {
			w.Errorf("found %d after the second start", w.count())
		}
	})
}

// shows: R45
func TestAnErrorOrAPanicOfTheCallbackDoesNotEndTheChecker(t *testing.T) {
	watching(t, func(w *watch) {
		calls := 0
		w.start(func(f health.Findings) error {
			calls++
			switch calls {
			case 1:
				return errors.New("disk full")
			case 2:
				panic("nil map")
			}
			return w.keep(f)
		})
		for range 3 {
			w.store.Report(role.Failure{Life: role.Life{Role: "critic", Rank: role.NoRank}, Cause: role.Unreachable})
			pass(2 * time.Second)
		}
		if w.count() != 1 {
			w.Errorf("found %d after an error and a panic, want the third", w.count())
		}
		for _, want := range []string{"disk full", "nil map"} {
			if !strings.Contains(w.log.String(), want) {
				w.Errorf("the log does not say %q", want)
			}
		}
	})
}

// shows: R44
func TestAStopSaysWhenTheCallbackStillRunsAndNoSecondLoopBeginsUntilItReturns(t *testing.T) {
	watching(t, func(w *watch) {
		release := make(chan struct{})
		w.start(func(health.Findings) error { <-release; return nil })
		w.store.Report(role.Failure{Life: w.life(), Cause: role.Reported})
		pass(time.Second)
		began := time.Now()
		if err := w.checker.Stop(5 * time.Second); err == nil || !strings.Contains(err.Error(), "still running after 5s") {
			w.Errorf("the stop said %v", err)
		}
		if took := time.Since(began); took != 5*time.Second {
			w.Errorf("the stop took %s", took)
		}
		if err := w.checker.Start(w.keep); !errors.Is(err, health.ErrStarted) {
			w.Errorf("a start beside the old loop said %v", err)
		}
		close(release)
		synctest.Wait()
		w.start(w.keep)
	})
}

// shows: R9
func TestTenMinutesInWhichTheCheckerWasHeldUpAreNobodysSilence(t *testing.T) {
	watching(t, func(w *watch) {
		pass(3 * time.Millisecond)
		w.beat()
		hold := true
		w.start(func(f health.Findings) error {
			if hold { // the first finding holds it up
				hold = false
				time.Sleep(10 * time.Minute)
				return nil
			}
			return w.keep(f)
		})
		w.store.Report(role.Failure{Life: role.Life{Role: "critic", Rank: role.NoRank}, Cause: role.Reported})
		pass(10*time.Minute + 100*time.Second)
		if w.count() != 0 {
			w.Fatalf("found %v", w.found)
		}
		if !strings.Contains(w.log.String(), "could not listen") {
			w.Error("the log does not say that it could not listen")
		}
		if kinds := w.heard.kinds(); len(kinds) != 2 || kinds[1] != event.Blind {
			w.Errorf("recorded %v, want a first step and one blind time", kinds)
		}
		pass(25 * time.Second)
		if w.count() != 1 {
			w.Errorf("a worker that went on to be silent was found %d times", w.count())
		}
	})
}

func TestTheCheckerSaysHowLateItsNewestTickWas(t *testing.T) {
	watching(t, func(w *watch) {
		w.start(func(health.Findings) error { time.Sleep(3500 * time.Millisecond); return nil })
		pass(1500 * time.Millisecond)
		if got := w.checker.Lateness(); got != 0 {
			w.Errorf("late by %s", got)
		}
		w.store.Report(role.Failure{Life: w.life(), Cause: role.Reported})
		pass(3600 * time.Millisecond) // back at 5 s; the tick of 2 s was waiting
		if got := w.checker.Lateness(); got < 2900*time.Millisecond || got > 3100*time.Millisecond {
			w.Errorf("late by %s, want 3s", got)
		}
	})
}

// shows: R54
func TestARoleThatEndsWellIsToldAtOnce(t *testing.T) {
	watching(t, func(w *watch) {
		var ended []role.Name
		w.start(func(f health.Findings) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			ended = append(ended, f.Finished...)
			return nil
		})
		pass(100 * time.Millisecond)
		w.store.Worker(w.life(), 1, role.WorkerFinished, "")
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(ended) != 1 {
			w.Errorf("told %v", ended)
		}
	})
}
