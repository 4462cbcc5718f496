package engine

import (
	"fmt"
	"maps"
	"time"

	"vigil/internal/event"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// overlooked is what of a worker life is ignored by which rule.
type overlooked struct {
	life role.Life
	why  string
}

// ignores reports whether a failure is to be left alone. Its worker is judged again then, as if nothing
// had been found. That is told once for each life and rule. A failure of a life that is about to end
// anyway is not ignored but folded.
func (e *Engine) ignores(f role.Failure, at roleState) bool {
	d, ignored := restart.Ignored(e.Policy, e.spent(), e.standingOf(f.Life.Role), f)
	if !ignored {
		return false
	}
	if _, told := e.toldOf(f, at); told {
		return false
	}
	e.Health.JudgeAgain(f.Life)
	this := overlooked{f.Life, d.Why}
	if e.overlooked[this] {
		return true
	}
	maps.DeleteFunc(e.overlooked, func(o overlooked, _ bool) bool {
		return o.life.Role == f.Life.Role && o.life.Incarnation < at.incarnation
	})
	e.overlooked[this] = true
	ev := event.New(time.Now(), event.Ignored)
	ev.Role, ev.Incarnation, ev.Rank, ev.Attempt, ev.Cause = f.Life.Role, f.Life.Incarnation, f.Life.Rank, f.Life.Attempt, f.Cause
	ev.Action, ev.Rule, ev.Detail = d.Action, string(d.Rule), d.Why+": "+f.Line()
	e.Recorder.Record(ev)
	e.Log.Warn(fmt.Sprintf("%s is left alone although it failed (%s): %s", f.Subject(), f.Cause, f.Line()), "rule", d.Rule, "why", d.Why)
	return true
}

// age has the ledger forget what lies before its windows, and give back what new progress has earned.
func (e *Engine) age() {
	standing := e.standing()
	e.charge(func(l restart.Ledger) restart.Ledger { return l.Aged(e.Policy, standing, time.Now()) })
}
