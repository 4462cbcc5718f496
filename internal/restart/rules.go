package restart

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"vigil/internal/job"
	"vigil/internal/role"
)

// ruleOfRole tries one of the role's own rules. What it asks for is done whatever the role has spent;
// but a global restart needs the global budget, and lives that gain no step end the job as ever.
func (t *trial) ruleOfRole(i int) (verdict, bool) {
	r := &t.rp.Rules[i]
	if misses := misfit(r, t.f); misses != "" {
		return t.no("rule %d of %s (%s): %s", i+1, t.name, r, misses)
	}
	why := fmt.Sprintf("rule %d of %s (%s) says %s", i+1, t.name, r, r.Action)
	switch r.Action {
	case role.Ignore:
		return verdict{action: role.Ignore, rule: RoleRule, why: why}, true
	case role.Stop:
		return verdict{action: role.Stop, rule: RoleRule, why: why, exit: ExitFailed}, true
	case role.InPlace, role.Global: // below
	}
	if v, idle := t.noProgress(); idle {
		v.why = why + ", but " + v.why
		return v, true
	}
	if r.Action == role.Global {
		return t.p.global(t.l, t.f, RoleRule, why), true
	}
	alone := t.with == single && t.rp.Unit == job.UnitWorker && ofWorker(t.f) && t.at.Available >= t.rp.MinAvailable
	return verdict{action: role.InPlace, rule: RoleRule, why: why, alone: alone}, true
}

// misfit says which condition of a rule does not hold of a failure; empty if all do.
func misfit(r *job.RoleRule, f role.Failure) string {
	killed, code := "", -1
	if f.Exit != nil {
		killed = strings.TrimPrefix(f.Exit.Signal, "SIG")
		if killed == "" {
			code = f.Exit.Code
		}
	}
	switch {
	case len(r.Causes) > 0 && !slices.Contains(r.Causes, f.Cause):
		return fmt.Sprintf("the cause is %s", f.Cause)
	case len(r.Exits) > 0 && code < 0:
		return "no process has ended with an exit code"
	case len(r.Exits) > 0 && !slices.Contains(r.Exits, code):
		return fmt.Sprintf("the exit code is %d", code)
	case len(r.Signals) > 0 && killed == "":
		return "no process was killed by a signal"
	case len(r.Signals) > 0 && !slices.Contains(r.Signals, killed):
		return fmt.Sprintf("the signal is %s", killed)
	case r.Message != "" && !says(f, r.Message):
		return "the message is another"
	}
	return ""
}

// says reports whether a failure says what the expression finds: in its detail, or in a line of the end
// of the worker's standard error.
func says(f role.Failure, expression string) bool {
	re, err := regexp.Compile(expression)
	if err != nil {
		return false // the job file's reader has refused it
	}
	return re.MatchString(f.Detail) || f.Exit != nil && slices.ContainsFunc(f.Exit.Tail, re.MatchString)
}

// Ignored returns the decision to leave a failure alone, if that is what the table says of it.
func Ignored(p Policy, l Ledger, at Standing, f role.Failure) (Decision, bool) {
	v := p.judge(l, at, f, single)
	return Decision{Action: v.action, Rule: v.rule, Why: v.why}, v.action == role.Ignore
}
