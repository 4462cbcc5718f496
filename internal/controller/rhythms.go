package controller

import (
	"context"
	"time"
)

// rhythmsEvery is how often it is looked whether more has been learned of the roles' rhythms. Heartbeats
// themselves are not written down.
const rhythmsEvery = 2 * time.Second

// followRhythms keeps what is learned for the next controller, and returns what ends that.
func (c *Controller) followRhythms() func(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(rhythmsEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.keeping.Learned()
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
