package restart

import (
	"maps"
	"slices"
	"time"

	"vigil/internal/role"
)

// Times are when the restarts that a window bounds were charged, oldest first. Restarts that were
// charged without a window have none and count for good.
type Times struct {
	Global  []time.Time               `json:",omitempty"`
	Roles   map[role.Name][]time.Time `json:",omitempty"`
	Workers map[Worker][]time.Time    `json:",omitempty"`
}

// clone returns times that share no map with these. Slices are never written to.
func (t Times) clone() Times {
	c := Times{Global: t.Global, Roles: maps.Clone(t.Roles), Workers: maps.Clone(t.Workers)}
	if c.Roles == nil {
		c.Roles = map[role.Name][]time.Time{}
	}
	if c.Workers == nil {
		c.Workers = map[Worker][]time.Time{}
	}
	return c
}

// charged adds a restart to those of a window. At most the newest are kept, as many as a budget can ask
// about.
func charged(times []time.Time, window time.Duration, most int, now time.Time) []time.Time {
	if window <= 0 || most <= 0 {
		return nil
	}
	times = append(slices.Clip(times), now)
	return times[max(0, len(times)-most):]
}

// within returns the times that lie in the window, and how many do not.
func within(times []time.Time, window time.Duration, now time.Time) (left []time.Time, gone int) {
	if window <= 0 {
		return times, 0
	}
	for gone < len(times) && now.Sub(times[gone]) >= window {
		gone++
	}
	return times[gone:], gone
}

// Aged returns the ledger as it stands at a later time: restarts that lie before their window are
// forgotten, and for new progress restarts are given back. Whoever decides has the ledger age first, and
// keeps it so.
func (l Ledger) Aged(p Policy, standing map[role.Name]Standing, now time.Time) Ledger {
	l = l.Clone()
	var gone int
	l.Times.Global, gone = within(l.Times.Global, p.Roles[p.Lead].Window, now)
	l.Global = max(0, l.Global-gone)
	for w, s := range l.Workers {
		l.Times.Workers[w], gone = within(l.Times.Workers[w], p.Roles[w.Role].Window, now)
		s.Restarts = max(0, s.Restarts-gone)
		l.Workers[w] = s
	}
	for name, s := range l.Roles {
		rp := p.Roles[name]
		l.Times.Roles[name], gone = within(l.Times.Roles[name], rp.Window, now)
		s.InPlace = max(0, s.InPlace-gone)
		l.Roles[name] = s.gained(rp, standing[name])
		if rp.ForgiveAfter > 0 {
			l.giveBack(p, name, rp.ForgiveAfter)
		}
	}
	return l
}

// gained counts the time since the last look, up to the newest rise of the role's step, as one of new
// progress, if it has run in that time and has reached a step that it had not had before.
func (s Spent) gained(rp RolePolicy, at Standing) Spent {
	if rp.ForgiveAfter <= 0 || s.Running.IsZero() || at.Step <= s.GainedTo {
		return s
	}
	from := s.Running
	if s.Looked.After(from) {
		from = s.Looked
	}
	if !at.Rose.After(from) {
		return s
	}
	s.Gained += at.Rose.Sub(from)
	s.GainedTo, s.Looked = at.Step, at.Rose
	return s
}

// giveBack gives restarts of the role back, each for the time that it costs: those in place, then of the
// lead role global ones. Time that nothing spent is left for is forgotten. The ledger is the caller's own.
func (l *Ledger) giveBack(p Policy, name role.Name, costs time.Duration) {
	s := l.Roles[name]
	for {
		inPlace, global := s.InPlace > 0, name == p.Lead && l.Global > 0
		if !inPlace && !global {
			s.Gained = 0
		}
		if s.Gained < costs {
			l.Roles[name] = s
			return
		}
		s.Gained -= costs
		if inPlace {
			s.InPlace--
			l.Times.Roles[name] = newest(l.Times.Roles[name], s.InPlace)
		} else {
			l.Global--
			l.Times.Global = newest(l.Times.Global, l.Global)
		}
	}
}

// newest returns the last n times.
func newest(times []time.Time, n int) []time.Time { return times[max(0, len(times)-n):] }
