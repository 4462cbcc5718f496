package engine

import (
	"context"
	"slices"
	"time"

	"vigil/internal/event"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// fatal reports whether a failure waits that nothing can repair.
func (e *Engine) fatal() bool {
	return slices.ContainsFunc(e.pending, func(s suspect) bool { return s.Fatal })
}

// settle decides about those of the pending failures that can be decided now. Workers that are restarted
// alone have a decision each; one whose role must be restarted as a whole goes with it.
func (e *Engine) settle(ctx context.Context) {
	if len(e.pending) == 0 {
		return
	}
	e.age()
	decide := e.decider()
	var whole, alone, held []suspect
	for _, s := range e.pending {
		d := decide(s)
		switch {
		case d.Action != role.Stop && (e.exclusive(d.Roles...) || d.Action == role.InPlace && e.blocked(d)):
			held = append(held, s)
		case d.Alone:
			alone = append(alone, s)
		default:
			whole = append(whole, s)
		}
	}
	e.pending = held
	if len(whole) > 0 {
		touched := decide(whole...).Roles
		alone = slices.DeleteFunc(alone, func(s suspect) bool {
			with := slices.Contains(touched, s.Life.Role)
			if with {
				whole = append(whole, s)
			}
			return with
		})
		e.answer(ctx, whole...)
	}
	for _, s := range alone {
		if e.next == nil && e.ending == nil { // else it is mended by that
			e.answer(ctx, s)
		}
	}
}

// decider returns what says what is to be done about failures as things stand now. A thousand failures are
// judged by one look at every role.
func (e *Engine) decider() func(batch ...suspect) restart.Decision {
	ledger, standing := e.spent(), e.standing()
	return func(batch ...suspect) restart.Decision {
		return restart.Decide(e.Policy, ledger, standing, failuresOf(batch))
	}
}

func failuresOf(batch []suspect) []role.Failure {
	failures := make([]role.Failure, len(batch))
	for i, s := range batch {
		failures[i] = s.Failure
	}
	return failures
}

// answer makes one decision about failures and begins what it asks for.
func (e *Engine) answer(ctx context.Context, batch ...suspect) {
	standing, failures := e.standing(), failuresOf(batch)
	d := &decided{Decision: restart.Decide(e.Policy, e.spent(), standing, failures), failures: failures, incident: batch[0].incident}
	if d.Action == role.InPlace { // who was stopped by hand is not taken along
		d.Roles = slices.DeleteFunc(d.Roles, func(n role.Name) bool { return e.state(n).byHand })
	}
	e.charged(e.Ledger())
	e.charge(func(l restart.Ledger) restart.Ledger {
		return l.Spend(e.Policy, d.Decision, failures, standing, time.Now())
	})
	e.record(d)
	e.say(d)
	if e.Explain != nil {
		e.Explain(d.Decision, failures)
	}
	switch d.Action {
	case role.Stop:
		e.pending = nil
		e.end(Outcome{Exit: d.Exit, Rule: d.Rule, Why: d.Why})
		e.next.failures, e.next.incident = failures, d.incident
	case role.Global:
		e.pending = nil // what else has failed is mended by it too
		e.next = d
		e.cancelPlans(errOverruled)
	default:
		e.begin(ctx, d)
	}
}

// record tells the decision before anything is done about it.
func (e *Engine) record(d *decided) {
	ev := event.New(time.Now(), event.Decided)
	ev.Incident, ev.Action, ev.Rule, ev.Roles, ev.Detail = d.incident, d.Action, string(d.Rule), d.Roles, d.Why
	ev.Role, ev.Cause = d.failures[0].Life.Role, d.failures[0].Cause
	if d.Alone {
		ev.Rank, ev.Attempt = d.Rank, d.failures[0].Life.Attempt
	}
	e.mu.Lock()
	for _, f := range d.failures {
		switch st := e.roles[f.Life.Role]; {
		case d.Alone:
			l := st.alone[d.Rank]
			l.decided, l.incident = f.Life.Attempt, d.incident
			st.alone[d.Rank] = l
		case f.Life.Incarnation != 0:
			st.decided, st.incident = f.Life.Incarnation, d.incident
		}
	}
	e.mu.Unlock()
	e.Recorder.Record(ev)
	spent := e.spent()
	for _, n := range e.Job.Names() {
		e.Health.SetRestarts(n, spent.Roles[n].InPlace)
	}
}

// begin launches the plans of a decision. One in place begins too what an earlier plan has left behind.
func (e *Engine) begin(ctx context.Context, d *decided) {
	switch {
	case d.Action == role.Stop:
		e.launch(ctx, restart.StopPlan(e.Job), d)
	case d.Action == role.Global:
		e.launch(ctx, restart.GlobalPlan(e.Job, e.without()), d)
	case d.Alone:
		e.launch(ctx, restart.WorkerPlan(restart.Worker{Role: d.Roles[0], Rank: d.Rank}), d)
		e.mend(ctx, nil, &decided{Decision: restart.Decision{Action: role.InPlace, Why: d.Why}})
	default:
		e.mend(ctx, d.Roles, d)
	}
}

// mend launches the plans that restart the roles in place and begin those that have not begun.
func (e *Engine) mend(ctx context.Context, roles []role.Name, why *decided) {
	left, fresh := e.unbegun(roles)
	for _, p := range restart.InPlacePlans(e.Policy, e.Job, append(slices.Clone(roles), left...), fresh) {
		e.launch(ctx, p, why)
	}
}

// failedRoles are the roles of which a rank or service failed; those of an earlier plan that this one goes on with
// are among them. They are worked out once for all plans of the decision.
func (d *decided) failedRoles() map[role.Name]bool {
	if d.failing == nil {
		d.failing = map[role.Name]bool{}
		for _, f := range d.failures {
			if f.Cause != role.Operator {
				d.failing[f.Life.Role] = true
			}
		}
		for _, n := range d.failed {
			d.failing[n] = true
		}
	}
	return d.failing
}
