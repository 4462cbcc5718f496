package restart

import (
	"fmt"

	"vigil/internal/job"
	"vigil/internal/role"
)

// Line is one line of the decision table, held against one failure.
type Line struct {
	Rule   Rule
	Fits   bool
	Why    string      // of the decision where it fits, else why it does not fit
	Action role.Action // what it asks for, where it fits
	Exit   int         // exit code, where that is to stop the job
}

// Explain returns the lines of the decision table for one failure, from its top down to the one that
// settles it, which is the last. The rule of a line that asks for a global restart becomes
// GlobalBudgetSpent where there is none left.
func Explain(p Policy, l Ledger, at Standing, f role.Failure) []Line {
	var lines []Line
	p.read(l, at, f, single, func(rule Rule, v verdict, fits bool) {
		line := Line{Rule: rule, Fits: fits, Why: v.why}
		if fits {
			line.Rule, line.Action, line.Exit = v.rule, v.action, v.exit
		}
		lines = append(lines, line)
	})
	return lines
}

// company says whether a failure is decided about by itself.
type company bool

// The kinds of company. What is decided about several failures is no worker's alone.
const (
	single  company = false
	several company = true
)

// companyOf is that of each failure of a batch.
func companyOf(batch []role.Failure) company { return company(len(batch) > 1) }

// judge is what the table says of one failure.
func (p Policy) judge(l Ledger, at Standing, f role.Failure, with company) verdict {
	return p.read(l, at, f, with, nil)
}

// trial is one failure before the table, with what is known of its role.
type trial struct {
	p     Policy
	l     Ledger
	at    Standing
	f     role.Failure
	name  role.Name
	rp    RolePolicy
	spent Spent
	with  company
	tell  func(Rule, verdict, bool) // hears of every line up to the one that fits; nil: nobody does
	above string                    // why its worker cannot be restarted alone; it goes before the decision's reason
}

// line is one line of the table. try says what it asks for where it fits, else in why why it does not.
type line struct {
	rule Rule
	try  func(*trial) (v verdict, fits bool)
}

// The lines of the table, in its order; a role's own rules stand between.
var (
	above = []line{{Fatal, (*trial).fatal}, {OperatorAsked, (*trial).operator}, {HealthCheckOff, (*trial).healthCheckOff}}
	below = []line{{WorkerCanRestart, (*trial).worker}, {NoProgress, (*trial).noProgress}, {RoleMustStop, (*trial).mustStop}, {RoleNeedsGlobal, (*trial).needsGlobal},
		{RoleStateTooOld, (*trial).stateTooOld}, {RoleBudgetSpent, (*trial).budgetSpent}}
)

// read reads the table from its top. The first line that fits settles it; tell hears of every line up
// to that one.
func (p Policy) read(l Ledger, at Standing, f role.Failure, with company, tell func(Rule, verdict, bool)) verdict {
	name := f.Life.Role
	t := &trial{p: p, l: l, at: at, f: f, with: with, tell: tell, name: name, rp: p.Roles[name], spent: l.Roles[name]}
	lines := append([]line(nil), above...)
	for i := range t.rp.Rules {
		lines = append(lines, line{RoleRule, func(t *trial) (verdict, bool) { return t.ruleOfRole(i) }})
	}
	lines = append(lines, below...)
	for _, line := range append(lines, line{RoleCanStay, (*trial).canStay}) {
		v, fits := line.try(t)
		if fits && t.above != "" {
			v.why = t.above + "; " + v.why
		}
		if tell != nil {
			tell(line.rule, v, fits)
		}
		if fits {
			return v
		}
	}
	return verdict{} // the last line fits everything
}

// no says why a line does not fit, where anybody asks.
func (t *trial) no(format string, args ...any) (verdict, bool) {
	if t.tell == nil {
		return verdict{}, false
	}
	return verdict{why: fmt.Sprintf(format, args...)}, false
}

func (t *trial) fatal() (verdict, bool) {
	if !t.f.Fatal {
		return t.no("it is not marked fatal")
	}
	return verdict{action: role.Stop, rule: Fatal, why: fmt.Sprintf("%s reported a fatal error: %s", t.f.Subject(), t.f.Detail), exit: ExitFailed}, true
}

func (t *trial) operator() (verdict, bool) {
	if t.f.Cause != role.Operator {
		return t.no("no operator has asked for it")
	}
	return verdict{action: role.InPlace, rule: OperatorAsked, why: "asked for by an operator"}, true
}

func (t *trial) healthCheckOff() (verdict, bool) {
	if t.p.HealthCheck {
		return t.no("health check is on")
	}
	return verdict{action: role.Stop, rule: HealthCheckOff, why: fmt.Sprintf("%s failed (%s) and nothing is repaired without --use-health-check", t.f.Subject(), t.f.Cause), exit: ExitFailed}, true
}

// worker restarts a worker that needs no others alone while enough of them are there and its own budget
// lasts; else its role has failed.
func (t *trial) worker() (verdict, bool) {
	switch {
	case t.rp.Unit != job.UnitWorker:
		return t.no("restart.unit is role: the workers of %s cannot go on without each other", t.name)
	case !ofWorker(t.f):
		return t.no("the failure (%s) does not concern one worker only", t.f.Cause)
	}
	s := t.l.Workers[Worker{t.name, t.f.Life.Rank}]
	switch {
	case t.with == several:
		return t.no("others have failed with it")
	case t.at.Available < t.rp.MinAvailable:
		t.above = fmt.Sprintf("%s cannot be restarted alone: %s available, restart.min_available is %d", t.f.Subject(), others(t.at.Available), t.rp.MinAvailable)
	case t.rp.EscalateAt > 0 && s.Restarts+1 >= t.rp.EscalateAt:
		t.above = fmt.Sprintf("this would be restart %d of %s alone", s.Restarts+1, t.f.Subject())
	default:
		return verdict{action: role.InPlace, rule: WorkerCanRestart, alone: true,
			why: fmt.Sprintf("%s can be restarted alone (%d of %s before), %s available", t.f.Subject(), s.Restarts, atMost(t.rp.EscalateAt), others(t.at.Available))}, true
	}
	return t.no("%s", t.above)
}

func (t *trial) noProgress() (verdict, bool) {
	most, idle := t.p.NoProgressLives, t.p.idle(t.spent, t.at)
	switch {
	case most <= 0:
		return t.no("--no-progress-lives is 0: never")
	case !t.spent.EverBegan:
		return t.no("%s has not begun to run", t.name)
	case idle < most:
		return t.no("%s gained no step in %d lives, --no-progress-lives is %d", t.name, idle, most)
	}
	return verdict{action: role.Stop, rule: NoProgress, why: fmt.Sprintf("%s gained no step in %d lives (--no-progress-lives %d)", t.name, idle, most), exit: ExitNoProgress}, true
}

func (t *trial) mustStop() (verdict, bool) {
	if t.rp.OnFailure != role.Stop {
		return t.no("its on_failure is %s", t.rp.OnFailure)
	}
	return verdict{action: role.Stop, rule: RoleMustStop, why: fmt.Sprintf("%s failed (%s) and its on_failure is stop", t.f.Subject(), t.f.Cause), exit: ExitFailed}, true
}

func (t *trial) needsGlobal() (verdict, bool) {
	if t.rp.OnFailure != role.Global {
		return t.no("its on_failure is %s", t.rp.OnFailure)
	}
	return t.p.global(t.l, t.f, RoleNeedsGlobal, fmt.Sprintf("%s needs a global restart", t.name)), true
}

func (t *trial) stateTooOld() (verdict, bool) {
	back := t.at.Step - max(t.at.Checkpoint, 0)
	switch {
	case !t.rp.Stateful:
		return t.no("it has no state that lives in checkpoints")
	case t.rp.MaxRewind < 0:
		return t.no("restart.max_rewind has no limit")
	case back <= t.rp.MaxRewind:
		return t.no("its newest checkpoint is %d steps back, restart.max_rewind is %d", max(back, 0), t.rp.MaxRewind)
	}
	return t.p.global(t.l, t.f, RoleStateTooOld, fmt.Sprintf("%s is at step %d and its newest checkpoint at %s, further back than restart.max_rewind %d", t.name, t.at.Step, saved(t.at.Checkpoint), t.rp.MaxRewind)), true
}

func (t *trial) budgetSpent() (verdict, bool) {
	this := t.spent.InPlace + 1
	switch {
	case t.rp.EscalateAt <= 0:
		return t.no("restart.escalate_at is 0: never")
	case this < t.rp.EscalateAt:
		return t.no("this would be restart %d of %s since the last global one, restart.escalate_at is %d", this, t.name, t.rp.EscalateAt)
	case hasOwnBudget(t.spent, t.f.Cause):
		return t.no("a failure of this cause (%s) does not spend of it", t.f.Cause)
	}
	return t.p.global(t.l, t.f, RoleBudgetSpent, fmt.Sprintf("this would be restart %d of %s since the last global one", this, t.name)), true
}

func (t *trial) canStay() (verdict, bool) {
	return verdict{action: role.InPlace, rule: RoleCanStay, why: fmt.Sprintf("%s can be restarted in place (%d of %s before)", t.name, t.spent.InPlace, atMost(t.rp.EscalateAt))}, true
}
