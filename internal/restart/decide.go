package restart

import (
	"fmt"
	"slices"
	"strings"
	"time"

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
	Checkpoint int64     // newest step saved; negative: none is known
	Available  int       // workers that are ready, admitted and have not failed
	Rose       time.Time // when the step last rose in this life; zero if it has not
	Unread     bool      // no step of this life is known, for they could not be read
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
// called with an empty batch. A worker is restarted alone only where its failure is the whole batch. What
// is ignored touches no role.
func Decide(p Policy, l Ledger, standing map[role.Name]Standing, failures []role.Failure) Decision {
	if len(failures) == 1 {
		f := failures[0]
		if v := p.judge(l, standing[f.Life.Role], f, single); v.alone {
			return Decision{Action: v.action, Rule: v.rule, Why: v.why, Roles: []role.Name{f.Life.Role}, Alone: true, Rank: f.Life.Rank}
		}
	}
	var first Decision
	touched := map[role.Name]bool{}
	for _, f := range failures {
		v := p.judge(l, standing[f.Life.Role], f, companyOf(failures))
		if worse(v.action, first.Action) {
			first = Decision{Action: v.action, Rule: v.rule, Why: v.why, Exit: v.exit}
		}
		if v.action != role.Ignore {
			p.along(f.Life.Role, touched)
		}
	}
	if first.Action == role.InPlace || first.Action == role.Ignore {
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
	order := []role.Action{"", role.Ignore, role.InPlace, role.Global, role.Stop}
	return slices.Index(order, a) > slices.Index(order, b)
}

// global asks for a global restart if the budget still has one.
func (p Policy) global(l Ledger, f role.Failure, rule Rule, why string) verdict {
	if l.Global >= p.MaxGlobal && !hasOwnBudget(l.Roles[f.Life.Role], f.Cause) {
		return verdict{action: role.Stop, rule: GlobalBudgetSpent, why: fmt.Sprintf("%s, and %d of %d global restarts are spent", why, l.Global, p.MaxGlobal), exit: ExitFailed}
	}
	return verdict{action: role.Global, rule: rule, why: why}
}

// idle is how many lives in a row, the one that ends now included, gained no step. One whose steps could not be
// read counts neither way.
func (p Policy) idle(s Spent, at Standing) int {
	switch {
	case at.Step > s.BestStep:
		return 0
	case at.Unread:
		return s.Idle
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
