package controller

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/retention"
)

// thinEvery is how often it is looked whether the run has left too much of earlier lives and incidents, and
// measureEvery how often how much room it takes.
const (
	thinEvery    = 10 * time.Second
	measureEvery = 10 * time.Minute
)

// retention is how much is kept.
func (o *Options) retention() (retention.Policy, error) {
	p := retention.Policy{Runs: o.KeepRuns, Incidents: o.KeepIncidents, Lives: o.KeepLives, Kept: journal.KeptIncidents}
	if o.KeepSize == "" { // not given by a flag
		return p, nil
	}
	size, err := job.ParseSize(o.KeepSize)
	if err != nil {
		return p, fmt.Errorf("--keep-size %w", err)
	}
	p.Bytes = size
	return p, nil
}

// followRetention removes what is too much of earlier runs, once, and of earlier lives and incidents of this one, now and
// again. It returns what ends that. Nothing waits for it.
func (c *Controller) followRetention() func(context.Context) error {
	policy, err := c.opts.retention()
	if err != nil { // Check has refused it
		return func(context.Context) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.thinRuns(ctx, policy)
		tick := time.NewTicker(thinEvery)
		defer tick.Stop()
		measured := time.Now()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				c.thinLives(context.Background(), policy) // what the last seconds have left
				return
			}
			c.thinLives(ctx, policy)
			if time.Since(measured) >= measureEvery {
				measured = time.Now()
				c.remove(ctx, policy.ThinLarge(c.ground.state, c.ground.logs, c.incarnations()))
			}
		}
	}()
	return func(bounded context.Context) error {
		cancel()
		select {
		case <-done:
		case <-bounded.Done(): // a disk that does not answer
		}
		return nil
	}
}

// thinRuns removes earlier runs of the job that are over: not this one, and none of which something may live.
func (c *Controller) thinRuns(ctx context.Context, policy retention.Policy) {
	g := c.ground
	runs, err := retention.Runs(g.home, func(name string) bool { return isUID(name, c.opts.Job.Name) },
		func(uid string) bool { return uid == g.uid || len(g.living[uid]) > 0 || len(g.owed) > 0 })
	if err != nil {
		c.log.Warn("earlier runs are not looked at", "error", err)
		return
	}
	c.remove(ctx, policy.Thin(runs, time.Now()))
}

// thinLives removes the logs of lives, and incidents, of this run that are too many.
func (c *Controller) thinLives(ctx context.Context, policy retention.Policy) {
	var all []retention.Removal
	least := 0
	for name, inc := range c.incarnations() {
		all = append(all, policy.ThinLives(filepath.Join(c.ground.logs, name), inc)...)
	}
	for _, i := range c.history.Incidents() {
		if n, err := strconv.Atoi(i.ID); err == nil && i.Open() && (least == 0 || n < least) {
			least = n
		}
	}
	if least == 0 {
		least = int(^uint(0) >> 1)
	}
	all = append(all, policy.ThinIncidents(c.ground.incidents, least)...)
	c.remove(ctx, all)
}

// incarnations are those that the roles have come to, by name.
func (c *Controller) incarnations() map[string]int {
	out := map[string]int{}
	for _, n := range c.opts.Job.Names() {
		out[string(n)] = c.engine.Status(n).Incarnation
	}
	return out
}

// remove removes and says it.
func (c *Controller) remove(ctx context.Context, all []retention.Removal) {
	if len(all) == 0 {
		return
	}
	gone, err := retention.Remove(ctx, all, time.Now())
	if err != nil {
		c.log.Warn("not everything that is too old could be removed", "error", err)
	}
	if len(gone) == 0 {
		return
	}
	bytes := int64(0)
	for _, r := range gone {
		bytes += r.Bytes
	}
	args := []any{"removed", len(gone), "first", gone[0].What, "why", gone[0].Why, "noted_in", filepath.Join(filepath.Dir(gone[0].Path), retention.NoteFile)}
	if bytes > 0 {
		args = append(args, "mib", bytes>>20)
	}
	c.log.Info("old logs are removed", args...)
}

// placeExample has the workers of the built-in job keep their checkpoints in the run's folder.
func placeExample(j *job.Job, state string) {
	for i := range j.Roles {
		if dir, is := j.Roles[i].Env[job.ExampleDir]; is && dir == "" {
			j.Roles[i].Env[job.ExampleDir] = filepath.Join(state, "example")
		}
	}
}
