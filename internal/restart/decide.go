package restart

import (
	"fmt"
	"slices"
	"strings"

	"vigil/internal/job"
	"vigil/internal/role"
)

// Decision is what is done about a batch of failures.
type Decision struct {
	Action role.Action
	Roles  []role.Name // the set it touches, in the order of the job
	Rule   Rule
	Why    string
	Exit   int // exit code, when Action is Stop

	Alone bool // of the one role only the worker Rank is restarted
	Rank  int  // where Alone
}

// Standing is what is known of a role when it fails.
type Standing struct {
	Step       int64
	Checkpoint int64 // newest step saved; negative: none is known
	Available  int   // workers that are ready, admitted and have not failed
}

// verdict is what one failure asks for.
type verdict struct {
	action role.Action
	rule   Rule
	why    string
	exit   int
	alone  bool // only the worker
}

// Decide returns the one decision, the mildest that repairs every failure of the batch. It is not
// called with an empty batch. A worker is restarted alone only where its failure is the whole batch.
func Decide(p Policy, l Ledger, standing map[role.Name]Standing, failures []role.Failure) Decision {
	if len(failures) == 1 {
		f := failures[0]
		if v := p.judge(l, standing[f.Life.Role], f); v.alone {
			return Decision{Action: v.action, Rule: v.rule, Why: v.why, Roles: []role.Name{f.Life.Role}, Alone: true, Rank: f.Life.Rank}
		}
	}
	var first Decision
	touched := map[role.Name]bool{}
	for _, f := range failures {
		v := p.judge(l, standing[f.Life.Role], f)
		if worse(v.action, first.Action) {
			first = Decision{Action: v.action, Rule: v.rule, Why: v.why, Exit: v.exit}
		}
		p.along(f.Life.Role, touched)
	}
	if first.Action == role.InPlace {
		for _, name := range p.Order {
			if touched[name] {
				first.Roles = append(first.Roles, name)
			}
		}
		return first
	}
	first.Roles = slices.Clone(p.Order)
	return first
}

// along adds the role and all that go with it.
func (p Policy) along(name role.Name, set map[role.Name]bool) {
	if set[name] {
		return
	}
	set[name] = true
	for _, also := range p.Roles[name].Also {
		p.along(also, set)
	}
}

// worse reports whether a is a stronger action than b; none at all is the weakest.
func worse(a, b role.Action) bool {
	order := []role.Action{"", role.InPlace, role.Global, role.Stop}
	return slices.Index(order, a) > slices.Index(order, b)
}

// judge reads the decision table from its top for one failure. The first line that fits settles it.
func (p Policy) judge(l Ledger, at Standing, f role.Failure) verdict {
	rp := p.Roles[f.Life.Role]
	operator := f.Cause == role.Operator
	switch {
	case f.Fatal:
		return verdict{action: role.Stop, rule: Fatal, why: fmt.Sprintf("%s reported a fatal error: %s", f.Subject(), f.Detail), exit: ExitFailed}
	case operator:
		return verdict{action: role.InPlace, rule: OperatorAsked, why: "asked for by an operator"}
	case !p.HealthCheck:
		return verdict{action: role.Stop, rule: HealthCheckOff, why: fmt.Sprintf("%s failed (%s) and nothing is repaired without --use-health-check", f.Subject(), f.Cause), exit: ExitFailed}
	case rp.Unit == job.UnitWorker && ofWorker(f):
		return p.worker(l, at, f)
	default:
		return p.whole(l, at, f)
	}
}

// whole judges a failure for which the role answers as a whole.
func (p Policy) whole(l Ledger, at Standing, f role.Failure) verdict {
	name := f.Life.Role
	rp, s := p.Roles[name], l.Roles[name]
	switch {
	case p.NoProgressLives > 0 && s.EverBegan && p.idle(s, at) >= p.NoProgressLives:
		return verdict{action: role.Stop, rule: NoProgress, why: fmt.Sprintf("%s gained no step in %d lives (--no-progress-lives %d)", name, p.idle(s, at), p.NoProgressLives), exit: ExitNoProgress}
	case rp.OnFailure == role.Stop:
		return verdict{action: role.Stop, rule: RoleMustStop, why: fmt.Sprintf("%s failed (%s) and its on_failure is stop", f.Subject(), f.Cause), exit: ExitFailed}
	case rp.OnFailure == role.Global:
		return p.global(l, f, RoleNeedsGlobal, fmt.Sprintf("%s needs a global restart", name))
	case rp.Stateful && rp.MaxRewind >= 0 && at.Step-max(at.Checkpoint, 0) > rp.MaxRewind:
		return p.global(l, f, RoleStateTooOld, fmt.Sprintf("%s is at step %d and its newest checkpoint at %s, further back than restart.max_rewind %d", name, at.Step, saved(at.Checkpoint), rp.MaxRewind))
	case rp.EscalateAt > 0 && s.InPlace+1 >= rp.EscalateAt && !hasOwnBudget(s, f.Cause):
		return p.global(l, f, RoleBudgetSpent, fmt.Sprintf("this would be restart %d of %s since the last global one", s.InPlace+1, name))
	default:
		return verdict{action: role.InPlace, rule: RoleCanStay, why: fmt.Sprintf("%s can be restarted in place (%d of %s before)", name, s.InPlace, atMost(rp.EscalateAt))}
	}
}

// global asks for a global restart if the budget still has one.
func (p Policy) global(l Ledger, f role.Failure, rule Rule, why string) verdict {
	if l.Global >= p.MaxGlobal && !hasOwnBudget(l.Roles[f.Life.Role], f.Cause) {
		return verdict{action: role.Stop, rule: GlobalBudgetSpent, why: fmt.Sprintf("%s, and %d of %d global restarts are spent", why, l.Global, p.MaxGlobal), exit: ExitFailed}
	}
	return verdict{action: role.Global, rule: rule, why: why}
}

// idle is how many lives in a row, the one that ends now included, gained no step.
func (p Policy) idle(s Spent, at Standing) int {
	if at.Step > s.BestStep {
		return 0
	}
	return s.Idle + 1
}

// hasOwnBudget reports whether the cause spends a budget of its own, or none.
func hasOwnBudget(s Spent, c role.Cause) bool {
	switch c {
	case role.Hardware:
		return s.Hardware < hardwareBudget
	case role.Preempted:
		return s.Preempted < preemptedBudget
	case role.PortTaken, role.Operator:
		return true
	default:
		return false
	}
}

func saved(step int64) string {
	if step < 0 {
		return "none"
	}
	return fmt.Sprint(step)
}

func atMost(escalateAt int) string {
	if escalateAt <= 0 {
		return "any number"
	}
	return fmt.Sprint(escalateAt - 1)
}

// Names joins role names for a line of text.
func Names(roles []role.Name) string {
	s := make([]string, len(roles))
	for i, r := range roles {
		s[i] = string(r)
	}
	return strings.Join(s, ", ")
}
