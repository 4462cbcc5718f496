package engine

import (
	"slices"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// RoleStatus is what the engine knows of a role, for display.
type RoleStatus struct {
	State       role.State
	Why         string
	Incarnation int
	Begun       bool // its workers have been told to run in this incarnation
}

// Status returns what is known of the role.
func (e *Engine) Status(name role.Name) RoleStatus {
	st := e.state(name)
	return RoleStatus{State: st.state, Why: st.why, Incarnation: st.incarnation, Begun: st.begun}
}

// Ledger returns a copy of what has been spent.
func (e *Engine) Ledger() restart.Ledger {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ledger.Clone()
}

// spent is Ledger for the engine itself. A ledger that stands is never changed: each change makes another.
func (e *Engine) spent() restart.Ledger {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ledger
}

// unkept returns the ledger if it has changed since it was last returned here, else nil.
func (e *Engine) unkept() *restart.Ledger {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.charges == e.chargesKept {
		return nil
	}
	e.chargesKept = e.charges
	ledger := e.ledger
	return &ledger
}

// charge replaces the ledger by what change makes of it.
func (e *Engine) charge(change func(restart.Ledger) restart.Ledger) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ledger = change(e.ledger)
	e.charges++
}

func (e *Engine) state(name role.Name) roleState {
	e.mu.Lock()
	defer e.mu.Unlock()
	if st, ok := e.roles[name]; ok {
		return *st
	}
	return roleState{}
}

func (e *Engine) setState(name role.Name, s role.State, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.roles[name].state, e.roles[name].why = s, why
}

// setRunning marks a role that runs. One whose workers have ended well meanwhile, perhaps before the
// order to run them was answered, stays finished.
func (e *Engine) setRunning(name role.Name, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if st := e.roles[name]; st.state != role.Finished {
		st.state, st.why = role.Running, why
	}
}

// Foresee returns what would be done now about a failure of a role's present life. lost says that its worker
// is among those that are available until then. It may be called at any time, and changes nothing.
func (e *Engine) Foresee(f role.Failure, lost bool) restart.Forecast {
	standing := e.standing()
	if at := standing[f.Life.Role]; lost {
		at.Available--
		standing[f.Life.Role] = at
	}
	return restart.Foresee(e.Policy, e.spent(), standing, f, time.Now())
}

// standing is what health knows of every role's step.
func (e *Engine) standing() map[role.Name]restart.Standing {
	out := map[role.Name]restart.Standing{}
	for i := range e.Job.Roles {
		out[e.Job.Roles[i].Name] = e.standingOf(e.Job.Roles[i].Name)
	}
	return out
}

// standingOf is what health knows of one role's step.
func (e *Engine) standingOf(n role.Name) restart.Standing {
	step, saved := e.Health.Standing(n)
	return restart.Standing{Step: step, Checkpoint: saved, Available: e.Health.Available(n), Rose: e.Health.Rose(n), Unread: e.Health.StepsUnread(n)}
}

// exclusive reports whether a plan is under way beside which no other may run for the roles: one that touches all
// roles, unless these have left it.
func (e *Engine) exclusive(roles ...role.Name) bool {
	for r := range e.running {
		if r.plan.Action == role.InPlace || len(r.plan.Roles) < 2 {
			continue
		}
		if len(roles) == 0 || slices.ContainsFunc(roles, func(n role.Name) bool { return !e.hasLeft(r, n) }) {
			return true
		}
	}
	return false
}

// busy reports whether a plan is under way that touches one of the roles.
func (e *Engine) busy(roles []role.Name) bool {
	for r := range e.running {
		for _, n := range roles {
			if slices.Contains(r.plan.Roles, n) && !e.hasLeft(r, n) {
				return true
			}
		}
	}
	return false
}

// unbegun returns the roles beyond those given whose workers have not been told to run, because an
// earlier plan ended before, and that nobody else is about to begin. Those of mend may still have
// workers of an earlier life, those of fresh have none.
func (e *Engine) unbegun(but []role.Name) (mend, fresh []role.Name) {
	for _, n := range e.Job.Names() {
		st := e.state(n)
		if !st.begun && !st.byHand && st.state != role.Finished && !slices.Contains(but, n) && !e.busy([]role.Name{n}) {
			if st.mayRun {
				mend = append(mend, n)
			} else {
				fresh = append(fresh, n)
			}
		}
	}
	return mend, fresh
}

// without returns the roles that a global restart does not begin again: those stopped by hand, and
// those that run once and have.
func (e *Engine) without() []role.Name {
	var out []role.Name
	for _, n := range e.Job.Names() {
		r, _ := e.Job.Role(n)
		st := e.state(n)
		if st.byHand || r.Completion == job.Once && st.state == role.Finished {
			out = append(out, n)
		}
	}
	return out
}
