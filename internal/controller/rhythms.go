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

// stepsEvery is how often the newest steps are written: a controller that finds no service alive goes on from there.
const stepsEvery = 10 * time.Second

// followSteps keeps for the next controller the newest steps, and again a placement that the journal has refused. It
// returns what ends that.
func (c *Controller) followSteps() func(context.Context) error {
	return every(stepsEvery, func() {
		c.keeping.Steps()
		c.placed.again()
	})
}
