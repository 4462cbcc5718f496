package engine

import (
	"context"
	"fmt"
)

// Alive asks the repair loop whether it gets on. The error says that it has not answered before ctx ended.
// A loop that has ended because the job has is well.
func (e *Engine) Alive(ctx context.Context) error {
	answered := make(chan struct{})
	go func() { // the queue may be full
		if !e.tell(func() { close(answered) }) {
			close(answered)
		}
	}()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the repair loop does not answer: %w", ctx.Err())
	}
}
