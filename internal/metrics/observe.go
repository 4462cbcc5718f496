package metrics

import (
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// repair is one role on its way from a verdict to a first heartbeat.
type repair struct {
	since  time.Time   // the verdict
	action role.Action // empty until it is decided
	ended  bool        // the plan is over, the first heartbeat is awaited
}

// Observe counts what happened. It is meant as a hook of event.Log: it does not block. What it reads:
//
//   - failed: role, cause, and Took as the time from the first sign of the failure to the verdict, 0
//     where it is not known;
//   - decided: Action, Rule and Roles, all the roles that the decision touches (Role where Roles is
//     empty);
//   - plan_ended: Roles or Role;
//   - first_step: Role;
//   - stale.
func (m *Metrics) Observe(e event.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch e.Kind {
	case event.Failure:
		m.failed(e)
	case event.Decided:
		m.decided(e)
	case event.PlanEnded:
		for _, name := range subjects(e) {
			if r, ok := m.open[name]; ok {
				r.ended = true
				m.open[name] = r
			}
		}
	case event.FirstStep:
		if r, ok := m.open[e.Role]; ok && r.action != "" {
			m.recovery.WithLabelValues(string(r.action)).Observe(max(0, e.At.Sub(r.since).Seconds()))
			delete(m.open, e.Role)
		}
	case event.Stale:
		m.stale.Inc()
	case event.StepWentBack, event.StateBehind:
		m.offStep.WithLabelValues(string(e.Role), "behind").Inc()
	case event.StepAhead:
		m.offStep.WithLabelValues(string(e.Role), "ahead").Inc()
	case event.StepsApart:
		m.offStep.WithLabelValues(string(e.Role), "apart").Inc()
	default:
		// Everything else stands in the snapshot or is only told.
	}
}

func (m *Metrics) failed(e event.Event) {
	m.begin(e.Role)
	m.failures.WithLabelValues(string(e.Role), string(e.Cause)).Inc()
	if e.Took > 0 {
		m.detection.WithLabelValues(string(e.Cause)).Observe(e.Took.Seconds())
	}
	// A failure during a repair prolongs it. After its plan, it begins a new one: roles that never
	// speak would otherwise carry the old time along for ever.
	if r, ok := m.open[e.Role]; !ok || r.ended {
		m.open[e.Role] = repair{since: e.At}
	}
}

// decided counts one restart for each role that the decision touches, and waits for the first
// heartbeat of those among them that failed.
func (m *Metrics) decided(e event.Event) {
	if e.Action != role.InPlace && e.Action != role.Global {
		return // nothing is restarted
	}
	for _, name := range subjects(e) {
		m.begin(name)
		m.restarts.WithLabelValues(string(name), string(e.Action), e.Rule).Inc()
		if r, ok := m.open[name]; ok {
			r.action = e.Action
			m.open[name] = r
		}
	}
}

// subjects returns the roles that an event is about.
func subjects(e event.Event) []role.Name {
	if len(e.Roles) > 0 {
		return e.Roles
	}
	if e.Role != "" {
		return []role.Name{e.Role}
	}
	return nil
}

// Foreign counts datagrams on the notify sockets of a role's workers that were dropped because of who had sent them.
func (m *Metrics) Foreign(name role.Name, datagrams uint64) {
	m.foreign.WithLabelValues(string(name)).Add(float64(datagrams))
}

// Refused counts a caller that was turned away at the controller's socket.
func (m *Metrics) Refused() { m.refused.Inc() }
