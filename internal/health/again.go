package health

import (
	"cmp"
	"slices"
	"time"

	"vigil/internal/role"
)

// JudgeAgain takes the verdict on a worker life back, because it is left alone: it is well, its clocks
// start anew, and it is judged as before. What else it was found to have failed of meanwhile is handed
// out by the next sweep; JudgeAgain reports whether there is such a failure.
func (t *Table) JudgeAgain(life role.Life, now time.Time) bool {
	r, ok := t.records[life.Role]
	if !ok || life.Incarnation != r.incarnation {
		return false
	}
	life.Job = cmp.Or(life.Job, t.job)
	var held *role.Failure
	if _, k := t.peek(life); k != nil && k.verdict {
		held = k.held
		k.verdict, k.held, k.suspect = false, nil, ""
		k.restart(now)
	}
	r.heal()
	return held != nil && t.Report(*held) == HeardFirst
}

// hold keeps a failure of a life that has a verdict. The end of a process says more than all else.
func (k *rank) hold(f role.Failure) {
	if k.held == nil || k.held.Exit == nil {
		k.held = &f
	}
}

// restart begins the worker's clocks anew.
func (k *rank) restart(now time.Time) {
	k.since, k.credited = now, 0
	if !k.word.IsZero() {
		k.word = now
	}
	if !k.rose.IsZero() {
		k.rose = now
	}
	for i := range k.phases {
		k.phases[i].since = now
	}
}

// heal makes the role healthy again if none of its workers has failed.
func (r *record) heal() {
	for i := range r.ranks {
		if r.ranks[i].verdict {
			return
		}
	}
	r.healthy, r.err = true, ""
}

// Rose returns when the step of a worker of the role last rose in this life; zero if it has not.
func (s *Store) Rose(name role.Name) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	rose := time.Time{}
	if r, ok := s.table.records[name]; ok {
		for i := range r.ranks {
			rose = later(rose, r.ranks[i].rose)
		}
	}
	return rose
}

// JudgeAgain takes the verdict on a worker life back; see Table.JudgeAgain.
func (s *Store) JudgeAgain(life role.Life) {
	s.mu.Lock()
	more := s.table.JudgeAgain(life, time.Now())
	s.change()
	s.mu.Unlock()
	if more {
		s.nudge()
	}
}

// Unreadable hears that a worker's steps cannot be read where they are noted.
func (s *Store) Unreadable(life role.Life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, k := s.table.peek(life); k != nil {
		k.unread = true
	}
}

// StepsUnread says that no step of the role is known of its current life because they could not be read.
func (s *Store) StepsUnread(name role.Name) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.table.records[name]
	return ok && slices.ContainsFunc(r.ranks, func(k rank) bool { return k.unread }) &&
		!slices.ContainsFunc(r.ranks, func(k rank) bool { return k.stepped })
}
