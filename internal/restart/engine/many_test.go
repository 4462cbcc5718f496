package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// counted is the stage with counts of what grows with the job: looks at a role's standing, and ledgers that
// are written.
type counted struct {
	*stage
	looks, ledgers atomic.Int64
}

func (c *counted) Standing(name role.Name) (int64, int64) {
	c.looks.Add(1)
	return c.stage.Standing(name)
}

func (c *counted) Keep(u engine.Update) func(context.Context) error {
	c.Note(u)
	return func(context.Context) error { return nil }
}

func (c *counted) Note(u engine.Update) {
	if u.Ledger != nil {
		c.ledgers.Add(1)
	}
}

func (c *counted) Trouble() (string, bool) { return "", false }

// Many roles that fail at once cost each role the same few looks, however many there are, and the ledger, which has
// all of them, is not written for each of their plans.
func TestTheCostOfManyRolesThatFailAtOnceGrowsWithTheirNumberOnly(t *testing.T) {
	const n = 300
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var roles []job.Role
		for i := range n {
			roles = append(roles, roleOf(role.Name(fmt.Sprintf("r%d", i))))
		}
		c := &counted{stage: newStage(roles, restart.HealthCheckOn, 3)}
		o := c.options
		o.Health, o.Memory = c, c
		c.engine = engine.New(o)
		go func() { c.outcome <- c.engine.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		var failures []role.Failure
		for _, r := range roles {
			failures = append(failures, c.failure(r.Name, role.Exited))
		}
		c.looks.Store(0)
		c.ledgers.Store(0)
		c.engine.Found(failures, nil)
		synctest.Wait() // decided, and every plan is under way
		if got := c.ledgers.Load(); got > 2 {
			t.Errorf("%d plans of one decision: the ledger was written %d times before their first moves", n, got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(c.of(event.PlanEnded)); got != n+1 {
			t.Fatalf("%d plans have ended, want %d and the begin", got, n)
		}
		if got := c.looks.Load(); got > 20*n {
			t.Errorf("%d roles failed at once, and health was asked for a role's standing %d times", n, got)
		}
		cancel(nil)
		<-c.outcome
	})
}
