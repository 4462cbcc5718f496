package controller

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"vigil/internal/proc"
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

// tailLines is how much of a failed worker's standard error is shown.
const tailLines = 20

// explain shows each failure of a decision as a person wants to see it: who, why, the last lines of
// its standard error, where the log is, and what is done about it by which rule.
func (c *Controller) explain(d restart.Decision, failures []role.Failure) {
	if c.opts.LogFormat == "json" {
		for _, f := range failures {
			c.log.Error("failure", "role", f.Life.Role, "rank", f.Life.Rank, "cause", f.Cause, "detail", f.Detail, "log", f.Log, "tail", tailOf(f), "action", d.Action, "rule", d.Rule)
		}
		return
	}
	var b strings.Builder
	for _, f := range failures {
		fmt.Fprintf(&b, "\n  %s failed (%s): %s\n", f.Subject(), f.Cause, firstLine(f))
		for _, line := range tailOf(f) {
			fmt.Fprintf(&b, "    | %s\n", role.Plain(line))
		}
		if f.Log != "" {
			fmt.Fprintf(&b, "    log   %s\n", f.Log)
		}
	}
	fmt.Fprintf(&b, "    rule  %s -> %s", d.Rule, d.Action)
	switch d.Action {
	case role.Global:
		fmt.Fprintf(&b, " restart %d of %d", c.engine.Ledger().Global, c.opts.MaxGlobalRestart)
	case role.InPlace:
		fmt.Fprintf(&b, " restart of %s", restart.Names(d.Roles))
	case role.Stop:
		fmt.Fprintf(&b, ", exit %d: %s", d.Exit, d.Why)
	case role.Ignore: // no decision says so
	}
	fmt.Fprintf(&b, "\n\n")
	fmt.Fprint(c.opts.Stderr, b.String())
}

// firstLine is the failure in one line: how the process ended, or what was said.
func firstLine(f role.Failure) string {
	line := f.Line()
	if f.Exit != nil && !strings.Contains(line, f.Exit.String()) {
		return strings.TrimSuffix(f.Exit.String()+": "+line, ": ")
	}
	return line
}

// tailOf is the end of the failed worker's standard error.
func tailOf(f role.Failure) []string {
	if f.Exit != nil && len(f.Exit.Tail) > 0 {
		return f.Exit.Tail
	}
	if f.Log == "" {
		return nil
	}
	return proc.Tail(f.Log, tailLines)
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
		c.log.Info(fmt.Sprintf("failure %d of %d: %s, %s", i+1, len(out.Failures), f.Subject(), f.Cause), "detail", firstLine(f), "at", f.At.Format(time.TimeOnly))
	}
}
