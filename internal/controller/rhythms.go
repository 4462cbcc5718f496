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
