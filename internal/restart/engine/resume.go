package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"vigil/internal/event"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// lives are the worker lives that services hold, of each role by rank, ended or not.
type lives map[role.Name]map[int]role.Life

// whole reports whether services hold every worker of a role in the life that is remembered.
func (l lives) whole(name role.Name, workers int, m RoleMemory) bool {
	for rank := range workers {
		if !l.holds(name, rank, m) {
			return false
		}
	}
	return true
}

// holds reports whether a service holds a worker in the life that is remembered.
func (l lives) holds(name role.Name, rank int, m RoleMemory) bool {
	life, ok := l[name][rank]
	return ok && life.Incarnation == m.Incarnation && life.Attempt == max(m.Attempts[rank], 1)
}

// StoppedByHand returns those of the roles that an operator has stopped, or was stopping.
func (m *Remembered) StoppedByHand(names []role.Name) []role.Name {
	return slices.DeleteFunc(slices.Clone(names), func(n role.Name) bool {
		return !m.Roles[n].ByHand && !slices.ContainsFunc(m.Plans, func(p PlanMemory) bool { return p.ByHand && p.Roles[0] == n })
	})
}

// resume takes over from an earlier controller of the job: what runs and is well goes on, a repair that
// was under way is finished, or begun again where nobody can say how far it came, and what died meanwhile
// is a failure like any other. It spends nothing.
func (e *Engine) resume(ctx context.Context, left map[role.Name]Farewell) {
	m := e.Remembered
	e.mu.Lock()
	e.ledger, e.incidents, e.failures = m.Ledger.Clone(), m.Incidents, slices.Clone(m.Failures[max(0, len(m.Failures)-keepFailures):])
	e.mu.Unlock()
	for n, spent := range m.Ledger.Roles {
		e.Health.SetRestarts(n, spent.InPlace)
	}
	found := lives(e.Crew.Lives(ctx))
	for _, n := range e.Job.Names() {
		e.resumeRole(n, m.Roles[n], found)
	}
	fell := e.takeFarewells(left)
	for _, p := range m.Plans {
		e.lastPlan = max(e.lastPlan, p.ID)
	}
	if stop, ok := stopping(m.Plans); ok {
		e.end(Outcome{Exit: stop.Exit, Rule: stop.Rule, Why: stop.Why})
		e.next.replaces, e.next.incident = stop.ID, stop.Incident
		return
	}
	if e.allFinished() { // the one before had not come to recording that
		e.endWell()
		return
	}
	var mended []role.Name
	for _, p := range m.Plans {
		if why := e.finishPlan(ctx, p, m, found); why.replaces != 0 { // nothing was left of it to do
			e.Memory.Note(Update{Ended: p.ID})
			e.recordDone(p)
		}
		if !p.Alone || e.state(p.Roles[0]).begun { // else its role is lost as a whole
			mended = append(mended, p.Roles...)
		}
	}
	for _, n := range e.Job.Names() {
		was := m.Roles[n]
		if f, ok := farewellOf(n, was, left); ok && len(f.Failures) == 0 {
			continue
		}
		if was.Begun && !slices.Contains(mended, n) && !e.state(n).begun && !was.Finished && !was.ByHand {
			e.lostMeanwhile(n, was, fell[n])
		}
	}
	e.stopAgain(m, found)
	if len(left) > 0 {
		e.forgetFarewells(ctx, e.Job.Names())
	}
	if len(e.pending) == 0 {
		e.mend(ctx, nil, &decided{Decision: restart.Decision{Action: role.InPlace, Why: "left behind by an earlier controller"}})
	}
}

// stopAgain carries out the stops by hand that an earlier controller could not: services still hold workers of the role.
func (e *Engine) stopAgain(m *Remembered, found lives) {
	for _, n := range e.Job.Names() {
		if m.Roles[n].ByHand && len(found[n]) > 0 && !e.isBeingStopped(n) {
			e.wishes = append(e.wishes, wish{name: n, done: make(chan error, 1)})
		}
	}
}

// newRoleState is a role that has not begun, with what an earlier controller has kept of it: that is known before
// services can speak.
func newRoleState(m *Remembered, n role.Name) *roleState {
	st := &roleState{state: role.Pending, why: "not begun", alone: map[int]lone{}, attempts: map[int]int{}}
	if m != nil {
		was := m.Roles[n]
		st.incarnation, st.byHand = was.Incarnation, was.ByHand
		st.recall(was)
		maps.Copy(st.attempts, was.Attempts)
	}
	return st
}

// resumeRole shows how a role is found.
func (e *Engine) resumeRole(n role.Name, was RoleMemory, found lives) {
	cfg, _ := e.Job.Role(n)
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.roles[n]
	st.mayRun = len(found[n]) > 0 || was.Begun
	switch {
	case was.Finished:
		st.state, st.why = role.Finished, "ended well"
	case was.ByHand:
		st.state, st.why = role.Stopped, "stopped by hand; restart begins it again"
	case was.Incarnation > 0 && found.whole(n, cfg.Workers, was):
		st.begun, st.state, st.why = true, role.Running, "taken over"
	default:
		st.state, st.why = role.Pending, "waits to be repaired"
	}
}

// recordDone tells the end of an earlier controller's plan that had done all of its work.
func (e *Engine) recordDone(p PlanMemory) {
	if p.Incident == "" {
		return
	}
	ev := event.New(time.Now(), event.PlanEnded)
	ev.Incident, ev.Action, ev.Roles, ev.Role, ev.Cause = p.Incident, p.Action, p.Roles, p.Roles[0], p.Cause
	if p.Alone {
		ev.Rank = p.Rank
	}
	e.Recorder.Record(ev)
}

// stopping returns a plan that was ending the job for good.
func stopping(plans []PlanMemory) (PlanMemory, bool) {
	for _, p := range plans {
		if p.endsJob() {
			return p, true
		}
	}
	return PlanMemory{}, false
}

// finishPlan sees to it that a plan of an earlier controller comes to its end. What it returns still has
// replaces if no plan was begun for that.
func (e *Engine) finishPlan(ctx context.Context, p PlanMemory, m *Remembered, found lives) *decided {
	why := &decided{incident: p.Incident, replaces: p.ID, was: p.Cause, failed: p.Failed, until: p.Until, resume: p.Resume, Decision: restart.Decision{Action: p.Action, Roles: p.Roles, Rule: p.Rule, Alone: p.Alone, Rank: p.Rank,
		Why: fmt.Sprintf("begun by an earlier controller: %s", p.Why)}}
	switch {
	case p.ByHand:
		e.mu.Lock()
		e.roles[p.Roles[0]].byHand = true // it is not begun again before it is stopped
		e.mu.Unlock()
		e.wishes = append(e.wishes, wish{name: p.Roles[0], done: make(chan error, 1), replaces: p.ID})
		why.replaces = 0
		return why
	case p.Alone:
		n := p.Roles[0]
		if found.holds(n, p.Rank, m.Roles[n]) || !e.othersHeld(n, m, found) {
			return why // it is done, or its role is taken for lost as a whole
		}
		e.mu.Lock()
		e.roles[n].begun, e.roles[n].state = true, role.Running
		e.mu.Unlock()
		e.launch(ctx, restart.WorkerPlan(restart.Worker{Role: n, Rank: p.Rank}), why)
		return why
	case p.Action == role.Stop:
		return why // by a signal: its roles are begun again below
	}
	var left []role.Name
	for _, n := range p.Roles {
		if st := e.state(n); !st.begun && !st.byHand && st.state != role.Finished {
			left = append(left, n)
		}
	}
	switch {
	case len(left) == 0:
	case p.Action == role.Global && len(left) == len(p.Roles)-len(e.without()):
		e.launch(ctx, restart.GlobalPlan(e.Job, e.without()), why)
	default:
		e.mendAfter(ctx, left, why)
	}
	return why
}

// othersHeld reports whether services hold every worker of the role but those that were being restarted
// alone.
func (e *Engine) othersHeld(name role.Name, m *Remembered, found lives) bool {
	cfg, _ := e.Job.Role(name)
	for rank := range cfg.Workers {
		alone := slices.ContainsFunc(m.Plans, func(p PlanMemory) bool { return p.Alone && p.Roles[0] == name && p.Rank == rank })
		if !alone && !found.holds(name, rank, m.Roles[name]) {
			return false
		}
	}
	return true
}

// mendAfter begins those roles of an earlier plan that it has not come to.
func (e *Engine) mendAfter(ctx context.Context, left []role.Name, why *decided) {
	var mend, fresh []role.Name
	for _, n := range left {
		if e.busy([]role.Name{n}) {
			continue
		}
		if e.state(n).mayRun {
			mend = append(mend, n)
		} else {
			fresh = append(fresh, n)
		}
	}
	for _, plan := range restart.InPlacePlans(e.Policy, e.Job, mend, fresh) {
		e.launch(ctx, plan, why)
	}
}
