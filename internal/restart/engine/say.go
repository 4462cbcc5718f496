package engine

import (
	"errors"
	"fmt"
	"time"

	"vigil/internal/restart"
	"vigil/internal/role"
)

// The lines below that speak of services, restarts and "[Global Restart]" are those of the health
// manager that vigil's behaviour comes from, in its order, so that what people grep for is found.

func (e *Engine) sayFailure(f role.Failure) {
	args := []any{"cause", f.Cause}
	if f.Life.Rank != role.NoRank {
		args = append(args, "rank", f.Life.Rank)
	}
	verb := "triggering restart"
	if !e.Policy.HealthCheck {
		verb = "health check is off"
	}
	e.Log.Warn(fmt.Sprintf("Service %s is unhealthy: %s, %s", f.Life.Role, f.Line(), verb), args...)
}

// say tells a decision.
func (e *Engine) say(d *decided) {
	switch d.Action {
	case role.Stop:
		e.Log.Error("Stopping the job: "+d.Why, "rule", d.Rule, "exit", d.Exit)
		if d.Rule == restart.HealthCheckOff {
			e.Log.Info("to have failures repaired, start with --use-health-check")
		}
	case role.Global:
		e.Log.Warn(fmt.Sprintf("Triggering global restart due to: %s failure", d.failures[0].Life.Role), "rule", d.Rule, "why", d.Why)
	default:
		for _, n := range d.Roles {
			e.Log.Info(fmt.Sprintf("Restarting service '%s'...", n), "rule", d.Rule, "why", d.Why)
		}
	}
}

func (e *Engine) sayBegan(r *run) {
	if r.plan.Action == role.Global {
		e.Log.Info(fmt.Sprintf("=== Starting GLOBAL restart #%d (max=%d) ===", e.spent().Global, e.Policy.MaxGlobal))
	}
}

// sayStage tells the end of a stage where the seed has a line for it.
func (e *Engine) sayStage(r *run, verb restart.Verb) {
	if r.plan.Action != role.Global {
		return
	}
	switch verb {
	case restart.Fence:
		e.Log.Info("[Global Restart] Health manager stopped")
	case restart.Release:
		e.Log.Info("[Global Restart] Engine shutdown completed")
	case restart.Place:
		e.Log.Info("[Global Restart] Engine re-initialized")
	default: // moves are told one by one
	}
}

func (e *Engine) sayMove(r *run, m restart.Move, res result) {
	global := r.plan.Action == role.Global
	switch {
	case res.err != nil && global:
		e.Log.Error(fmt.Sprintf("[Global Restart] Failed to %s '%s'", m.Verb, m.Role), "error", res.err)
	case res.err != nil && !errors.Is(res.err, errOverruled):
		e.Log.Error(fmt.Sprintf("%s '%s'", m.Verb, m.Role), "error", res.err)
	case m.Verb == restart.DeleteService && global:
		e.Log.Info(fmt.Sprintf("[Global Restart] Deleted service '%s'", m.Role))
	case len(res.held) > 0:
		e.Log.Warn(fmt.Sprintf("stop of '%s': somebody held on until killed", m.Role), "held", res.held)
	default:
		args := []any{"verb", m.Verb, "role", m.Role}
		if res.step != nil {
			args = append(args, "step", *res.step)
		}
		e.Log.Debug("moved", args...)
	}
}

func (e *Engine) sayEnded(r *run, err error) {
	took := time.Since(r.began).Round(time.Millisecond)
	switch {
	case err != nil:
		if !errors.Is(err, errOverruled) {
			e.Log.Error(fmt.Sprintf("%s plan ended early", r.plan.Action), "error", err)
		}
	case r.plan.Action == role.Global:
		e.Log.Info("[Global Restart] Controller re-initialized from zero")
		e.Log.Info("=== Global restart completed, main thread signaled ===", "took", took)
		e.Log.Info("Global restart completed, re-running training loop")
	case r.plan.Action == role.InPlace:
		for _, n := range r.plan.Roles {
			e.Log.Info(fmt.Sprintf("Service '%s' restarted in place", n), "step", e.state(n).step, "incarnation", e.state(n).incarnation, "took", took)
		}
	case r.plan.Action == restart.Begin:
		e.Log.Info("all services started", "took", took)
	default: // a stop speaks for itself
	}
}
