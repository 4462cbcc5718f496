package health

import (
	"time"

	"vigil/internal/role"
)

// Rhythm is what has been learned of a role, as it is kept for another controller.
type Rhythm struct {
	Longest time.Duration          `json:"longest,omitempty"` // gap between two words that counts
	Sizes   []GapSize              `json:"sizes,omitempty"`   // of the gaps of the rank that had the longest; without, only that one is known
	Gaps    []int                  `json:"gaps,omitempty"`    // survived, by rank, no more than it takes to be known
	Spoke   []bool                 `json:"spoke,omitempty"`   // by rank: it has, in some life
	Phases  map[string]PhaseRhythm `json:"phases,omitempty"`
}

// PhaseRhythm is what has been learned of one phase.
type PhaseRhythm struct {
	Longest time.Duration `json:"longest"`
	Sizes   []GapSize     `json:"sizes,omitempty"`
	Times   []int         `json:"times"` // survived, as Gaps
}

// Teaches reports whether this rhythm differs from an earlier one of the same role by so much that it is worth
// keeping: that a limit is a tenth longer is not, nor that it has faded by less than half.
func (r Rhythm) Teaches(before Rhythm) bool {
	if apart(r.Longest, before.Longest) || differ(r.Gaps, before.Gaps) || differ(r.Spoke, before.Spoke) || len(r.Phases) != len(before.Phases) {
		return true
	}
	for name, p := range r.Phases {
		if was := before.Phases[name]; apart(p.Longest, was.Longest) || differ(p.Times, was.Times) {
			return true
		}
	}
	return false
}

func apart(now, before time.Duration) bool { return now > before+before/10 || now < before/2 }

func differ[T comparable](now, before []T) bool {
	for i := range now {
		if i >= len(before) || now[i] != before[i] {
			return true
		}
	}
	return false
}

// Rhythm returns what has been learned of a role; nothing for an unknown one.
func (s *Store) Rhythm(name role.Name) Rhythm {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.table.records[name]; ok {
		return r.rhythm.export()
	}
	return Rhythm{}
}

func (r *rhythm) export() Rhythm {
	out := Rhythm{}
	for _, l := range r.ranks {
		out.Gaps, out.Spoke = append(out.Gaps, min(l.gaps, learnAfter)), append(out.Spoke, l.spoke)
		if g := l.heard.rules(); g.Longest > out.Longest {
			out.Longest, out.Sizes = g.Longest, l.heard.export()
		}
	}
	for name, p := range r.phases {
		if out.Phases == nil {
			out.Phases = map[string]PhaseRhythm{}
		}
		q := PhaseRhythm{Longest: p.heard.rules().Longest, Sizes: p.heard.export()}
		for _, n := range p.times {
			q.Times = append(q.Times, min(n, learnAfter))
		}
		out.Phases[name] = q
	}
	return out
}

// restore takes over what another controller has learned; the role may have another number of workers by now.
func (r *rhythm) restore(was Rhythm) {
	kept := restoreGaps(was.Sizes, was.Longest)
	for i := range r.ranks {
		if i < len(was.Gaps) && i < len(was.Spoke) {
			r.ranks[i] = learned{gaps: was.Gaps[i], spoke: was.Spoke[i]}
		}
		r.ranks[i].heard = kept.clone()
	}
	r.stale = true
	for name, p := range was.Phases {
		if len(r.phases) == maxLearnedPhases {
			return
		}
		if r.phases == nil {
			r.phases = map[string]*phaseRhythm{}
		}
		q := &phaseRhythm{heard: restoreGaps(p.Sizes, p.Longest), times: make([]int, len(r.ranks))}
		copy(q.times, p.Times)
		r.phases[name] = q
	}
}
