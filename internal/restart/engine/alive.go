package engine

import (
	"context"
	"fmt"
	"time"
)

// Alive asks the repair loop whether it gets on. The error says that it has not answered before ctx ended.
// A loop that has ended because the job has is well.
func (e *Engine) Alive(ctx context.Context) error {
	select {
	case e.pings <- struct{}{}:
		return nil
	case <-e.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the repair loop does not answer: %w", ctx.Err())
	}
}

// LongestAct returns the longest time that the repair loop has spent on one thing that it was told and on
// what followed from it, since it began. Whoever waits for it waits that long: for a repair, or a stop. The
// loop reads no file and asks no process, so milliseconds are what a starved machine makes of it, and
// seconds are a fault.
func (e *Engine) LongestAct() time.Duration { return time.Duration(e.longest.Load()) }

// took takes in for how long the loop was busy.
func (e *Engine) took(d time.Duration) {
	if int64(d) > e.longest.Load() { // the loop alone writes it
		e.longest.Store(int64(d))
	}
}
