package health

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Sweeper is what the checker sweeps: a Store.
type Sweeper interface {
	Sweep(now time.Time) Findings
	Wake() <-chan struct{}
}

// Checker sweeps once per interval, and at once when it is woken, and hands what was found to a
// callback, in one goroutine. An error or a panic of the callback is logged and ends nothing.
type Checker struct {
	store    Sweeper
	interval time.Duration
	log      *slog.Logger

	mu       sync.Mutex
	stop     chan struct{}
	done     chan struct{}
	lateness atomic.Int64
}

// NewChecker returns a checker that is not started. The interval is one second by default (zero).
func NewChecker(store Sweeper, interval time.Duration, log *slog.Logger) *Checker {
	if interval <= 0 {
		interval = time.Second
	}
	return &Checker{store: store, interval: interval, log: log}
}

// ErrStarted says that the checker runs already, or that its callback has not returned since its stop.
var ErrStarted = errors.New("health checker is started already")

// Start begins sweeping. found is called whenever a sweep found something, one call at a time.
func (c *Checker) Start(found func(Findings) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done != nil {
		select {
		case <-c.done:
		default:
			return ErrStarted
		}
	}
	c.stop, c.done = make(chan struct{}), make(chan struct{})
	go c.loop(found, c.stop, c.done)
	c.log.Info("Health checker started")
	return nil
}

// Stop ends sweeping. It says so if the callback has not returned within the timeout; the checker
// then ends as soon as it does. Stopping one that is not started is no error.
func (c *Checker) Stop(timeout time.Duration) error {
	c.mu.Lock()
	stop, done := c.stop, c.done
	c.stop = nil
	c.mu.Unlock()
	if stop == nil {
		return nil
	}
	close(stop)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return fmt.Errorf("stop health checker: its callback is still running after %s", timeout)
	}
}

// Lateness returns how late the newest tick was.
func (c *Checker) Lateness() time.Duration { return time.Duration(c.lateness.Load()) }

func (c *Checker) loop(found func(Findings) error, stop, done chan struct{}) {
	defer close(done)
	tick := time.NewTicker(c.interval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case due := <-tick.C:
			c.lateness.Store(int64(max(0, time.Since(due))))
		case <-c.store.Wake():
		}
		c.sweep(found)
	}
}

func (c *Checker) sweep(found func(Findings) error) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("health checker: callback panicked", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f := c.store.Sweep(time.Now())
	if f.Blind > 0 {
		c.log.Warn("health checker could not listen; the time is credited to every role", "time", f.Blind.Round(time.Millisecond))
	}
	if f.Empty() {
		return
	}
	if err := found(f); err != nil {
		c.log.Error("health checker: callback", "error", err)
	}
}
