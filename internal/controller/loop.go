package controller

import (
	"vigil/internal/console"
	"vigil/internal/event"
	"vigil/internal/fleet"
	"vigil/internal/restart/engine"
	"vigil/internal/restart/memory"
	"vigil/internal/role"
)

// observers are those who are told of every event, in the goroutine that records it, which may be the repair
// loop's or that of a session: none of them waits for anything.
func (c *Controller) observers() []func(event.Event) {
	keepHealth := func(e event.Event) { c.keeping.Observe(e) } // which has the store soon
	all := []func(event.Event){c.metrics.Observe, c.history.Observe, c.account.Observe, c.kept.Observe, keepHealth, console.WarnOffStep(c.log)}
	if c.hooks != nil {
		all = append(all, c.hooks.Observe)
	}
	return all
}

// engineOptions are those of the repair loop. Nothing of it that the loop calls itself waits.
func (c *Controller) engineOptions(crew engine.Crew, places engine.Places) engine.Options {
	return engine.Options{
		Job: c.opts.Job, Policy: PolicyIn(&c.opts),
		Crew: crew, Places: places, Health: healthOf{c.store}, Recorder: c.events, Log: c.log, StartLimit: c.opts.StartTimeout, Explain: c.explain,
		Memory: memory.On(c.ground.journal), Remembered: c.remembered, Farewells: &fleet.Farewells{LogDir: c.ground.logs, Job: c.opts.Job, Log: c.log, Saved: func(life role.Life, step int64) { c.store.Checkpoint(life, step) }},
		Ports: fleet.Ports{Job: c.opts.Job, Of: func(n role.Name, rank int) map[string]uint32 { return c.crew.portsOf(n, rank) }},
	}
}
