package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"vigil/internal/console"
	"vigil/internal/restart"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// warnOfOurPort says when a role's command names the port that we listen on ourselves: it would find it
// taken.
func (c *Controller) warnOfOurPort() {
	_, port, err := net.SplitHostPort(c.ground.http.Addr().String())
	if err != nil {
		return
	}
	for i := range c.opts.Job.Roles {
		r := &c.opts.Job.Roles[i]
		for _, word := range r.Command {
			if word == port || strings.HasSuffix(word, ":"+port) || strings.HasSuffix(word, "="+port) {
				c.log.Warn("the command of "+string(r.Name)+" names our own port", "word", word, "mend", "give vigil another by --http, or the role a leased one by ports")
			}
		}
	}
}

// sayStatus says how every role stands, now and again, and returns what ends that.
func (c *Controller) sayStatus() func(context.Context) error {
	return every(c.opts.StatusEvery, c.statusLine)
}

// statusLine is one line: how many roles are well, the step of each, and why of those that are not.
func (c *Controller) statusLine() {
	var steps, why []string
	well := 0
	for _, r := range (view{c}).Roles() {
		steps = append(steps, fmt.Sprintf("%s %d", r.Name, r.CurrentStep))
		if r.Healthy && (r.State == role.Running || r.State == role.Finished) {
			well++
		} else {
			why = append(why, fmt.Sprintf("%s %s: %s", r.Name, r.State, r.Why))
		}
	}
	args := []any{"steps", strings.Join(steps, ", ")}
	if len(why) > 0 {
		args = append(args, "why", strings.Join(why, "; "))
	}
	c.log.Info(fmt.Sprintf("%d of %d roles healthy", well, len(steps)), args...)
}

// newFailures returns what shows failures in the form of the log.
func newFailures(o *Options, log *slog.Logger) *console.Failures {
	to := console.Options{To: o.Stderr}
	if o.LogFormat == "json" {
		to.Log = log
	}
	return console.NewFailures(to)
}

// explain has a decision shown with the failures that it answers. The repair loop calls it.
func (c *Controller) explain(d restart.Decision, failures []role.Failure) {
	c.failures.Tell(console.Decided{Decision: d, Failures: failures, Global: c.engine.Ledger().Global, Limit: c.opts.MaxGlobalRestart})
}

// report says how the job ended, with the failures that it had.
func (c *Controller) report(out engine.Outcome) {
	args := []any{"job", c.uid, "exit", out.Exit, "after", time.Since(c.began).Round(time.Millisecond)}
	if out.Rule != "" {
		args = append(args, "rule", out.Rule)
	}
	if n := c.engine.Ledger().Global; n > 0 {
		args = append(args, "global_restarts", n)
	}
	if out.Exit == 0 {
		c.log.Info("job ended: "+out.Why, args...)
	} else {
		c.log.Error("job ended: "+out.Why, args...)
	}
	for i, f := range out.Failures {
		c.log.Info(fmt.Sprintf("failure %d of %d: %s, %s", i+1, len(out.Failures), f.Subject(), f.Cause), "detail", console.FirstLine(f), "at", f.At.Format(time.TimeOnly))
	}
}
