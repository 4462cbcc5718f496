package controller

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
	"vigil/internal/settings"
	"vigil/internal/wire/httpapi"
)

// policyFlags are the flags that decide about restarts.
var policyFlags = []string{"use-health-check", "max-global-restart", "no-progress-lives", "global-restart", "heartbeat-timeout", "start-timeout", "check-interval", "controller-grace"}

// PolicyOf returns every setting that decides about restarts, as it is in force, and where it came from.
func PolicyOf(o *Options) httpapi.Policy {
	var p httpapi.Policy
	heartbeat := "learned"
	if o.HeartbeatTimeout > 0 {
		heartbeat = o.HeartbeatTimeout.String()
	}
	value := map[string]string{
		"use-health-check": strconv.FormatBool(o.UseHealthCheck), "max-global-restart": strconv.Itoa(o.MaxGlobalRestart),
		"no-progress-lives": strconv.Itoa(o.NoProgressLives), "global-restart": o.GlobalRestart, "heartbeat-timeout": heartbeat,
		"start-timeout": o.StartTimeout.String(), "check-interval": o.CheckInterval.String(), "controller-grace": o.ControllerGrace.String(),
	}
	for _, f := range policyFlags {
		p.Settings = append(p.Settings, httpapi.Setting{Name: f, Value: value[f], Source: sourceOf(o.Origins[f])})
	}
	for i := range o.Job.Roles {
		r := &o.Job.Roles[i]
		plain := plainRole(o.Job, r)
		add := func(name, is, byDefault string) {
			s := httpapi.Setting{Role: r.Name, Name: name, Value: is, Source: "default"}
			if is != byDefault {
				s.Source = "job"
			}
			p.Settings = append(p.Settings, s)
		}
		add("restart.on_failure", string(r.Restart.OnFailure), string(plain.Restart.OnFailure))
		add("restart.escalate_at", strconv.Itoa(r.Restart.EscalateAt), strconv.Itoa(plain.Restart.EscalateAt))
		add("restart.also", fmt.Sprintf("[%s]", restart.Names(r.Restart.Also)), "[]")
		add("restart.max_rewind", rewind(r.Restart.MaxRewind), rewind(plain.Restart.MaxRewind))
		add("restart.backoff", backOff(r.Restart.BackOff), backOff(plain.Restart.BackOff))
		add("restart.rules", rulesOf(r.Restart.Rules), "[]")
		add("restart.window", window(r.Restart.Window), window(plain.Restart.Window))
		add("restart.forgive_after", forgiveAfter(r.Restart.ForgiveAfter), forgiveAfter(plain.Restart.ForgiveAfter))
		add("stop.grace", r.Stop.Grace.String(), plain.Stop.Grace.String())
		add("stop.grace_on_failure", r.Stop.GraceOnFailure.String(), plain.Stop.GraceOnFailure.String())
		add("stop.signal_to", cmp.Or(string(r.Stop.SignalTo), "worker, then below it"), "worker, then below it")
		add("limits.floor", r.Limits.Floor.String(), plain.Limits.Floor.String())
		add("progress.expect", string(r.Progress.Expect), string(plain.Progress.Expect))
		add("progress.source", string(r.Progress.Source), string(plain.Progress.Source))
		add("completion", string(r.Completion), string(plain.Completion))
		add("state", string(r.State), string(plain.State))
	}
	return p
}

// plainRole is what the role would be if the job file said only its name and command.
func plainRole(j *job.Job, r *job.Role) job.Role {
	src := fmt.Sprintf("name: x\nlead_role: %s\nroles:\n  %s: {command: [true]}\n", r.Name, r.Name)
	if r.Name != j.Lead {
		src = fmt.Sprintf("name: x\nlead_role: other_role\nroles:\n  other_role: {command: [true]}\n  %s: {command: [true]}\n", r.Name)
	}
	plain, err := job.Parse("default", []byte(src), "/")
	if err != nil {
		return *r
	}
	out, _ := plain.Role(r.Name)
	return *out
}

func sourceOf(o settings.Origin) string {
	switch o.Source {
	case settings.Flag:
		return "flag"
	case settings.Environment:
		return "environment"
	case settings.File:
		return "job"
	default:
		return "default"
	}
}

func rewind(n int64) string {
	if n < 0 {
		return "any"
	}
	return strconv.FormatInt(n, 10)
}

func rulesOf(rules []job.RoleRule) string {
	all := make([]string, len(rules))
	for i := range rules {
		all[i] = fmt.Sprintf("%d: %s -> %s", i+1, &rules[i], rules[i].Action)
	}
	return "[" + strings.Join(all, "; ") + "]"
}

func window(d time.Duration) string {
	if d == 0 {
		return "the life of the job"
	}
	return d.String()
}

func forgiveAfter(d time.Duration) string {
	if d == 0 {
		return "never"
	}
	return d.String()
}

func backOff(b job.BackOff) string {
	return fmt.Sprintf("{base: %s, max: %s, reset_after: %s}", b.Base, b.Max, b.ResetAfter)
}

// PrintPolicy writes what is in force as a table, the decision of each role in words first.
func PrintPolicy(o *Options) string {
	var b strings.Builder
	for i := range o.Job.Roles {
		fmt.Fprintf(&b, "%-12s %s\n", o.Job.Roles[i].Name, inWords(o, &o.Job.Roles[i]))
	}
	fmt.Fprintf(&b, "\n%-12s %-24s %-44s %s\n", "ROLE", "SETTING", "VALUE", "FROM")
	for _, s := range PolicyOf(o).Settings {
		fmt.Fprintf(&b, "%-12s %-24s %-44s %s\n", s.Role, s.Name, s.Value, s.Source)
	}
	return b.String()
}

// inWords says what happens when the role fails.
func inWords(o *Options, r *job.Role) string {
	switch n := len(r.Restart.Rules); {
	case !o.UseHealthCheck:
		return "a failure stops the job (health check is off)"
	case n > 0:
		without := *r
		without.Restart.Rules = nil
		return fmt.Sprintf("what fits one of its rules (%d) is done as that says; else %s", n, inWords(o, &without))
	case r.Restart.OnFailure == role.Stop:
		return "a failure stops the job"
	case r.Restart.OnFailure == role.Global:
		return fmt.Sprintf("a failure restarts every role; after %d such restarts the next one needed stops the job", o.MaxGlobalRestart)
	}
	s := "a failure restarts it in place"
	if len(r.Restart.Also) > 0 {
		s += ", with " + restart.Names(r.Restart.Also)
	}
	if r.Restart.EscalateAt > 0 {
		s += fmt.Sprintf("; restart %d since the last global one is global", r.Restart.EscalateAt)
	}
	if r.Restart.BackOff.Base > 0 {
		s += fmt.Sprintf("; from the second in a row it waits %s, doubling up to %s", r.Restart.BackOff.Base, r.Restart.BackOff.Max.Round(time.Second))
	}
	return s
}
