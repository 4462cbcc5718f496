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
	return every(rhythmsEvery, c.keeping.Learned)
}

// every does something again and again, for the first time after d, and returns what ends that.
func every(d time.Duration, do func()) (end func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				do()
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
