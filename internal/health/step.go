package health

import (
	"vigil/internal/job"
	"vigil/internal/role"
)

// SetStep makes n the step of every rank of the current life, also when it is lower: an operator
// or the engine has set it and the workers have taken it. What any rank had saved beyond is forgotten.
func (t *Table) SetStep(name role.Name, n int64) {
	r, ok := t.records[name]
	if !ok {
		return
	}
	r.given = n
	for i := range r.ranks {
		if k := &r.ranks[i]; k.stepped {
			k.step = n
		} else if k.attempt > 1 {
			k.given = n
		}
	}
	r.before = nil
	r.forgetBeyond(n)
}

// Reached takes in what the role's services know of its step, by rank, and returns the newest that is known of
// the life that runs; after a fence, of the one before it. A worker may have said steps to the controller that
// its service has not heard, and the other way round.
func (t *Table) Reached(name role.Name, spoken map[int]int64) int64 {
	r, ok := t.records[name]
	if !ok {
		return 0
	}
	ranks := r.before
	if ranks == nil {
		ranks = append([]rank(nil), r.ranks...)
	}
	for i := range ranks {
		if step, said := spoken[i]; said && (!ranks[i].stepped || step > ranks[i].step) {
			ranks[i].step, ranks[i].stepped = step, true
		}
	}
	step := leastStep(ranks, r.unsaid())
	if r.before != nil {
		r.given = step
	}
	return step
}

// step is the role's: see leastStep.
func (r *record) step() int64 { return leastStep(r.ranks, r.unsaid()) }

// unsaid is the step of a role that has said none in this life: the one given, or one that it has saved since. What it
// saves beyond a step that it is set back to is forgotten.
func (r *record) unsaid() int64 { return max(r.given, r.saved) }

// leastStep is the least step over the ranks that have said one in this life; before that, unsaid. A rank that has ended
// well does not hold back those that go on.
func leastStep(ranks []rank, unsaid int64) int64 {
	least, said, atWork := unsaid, false, false
	for i := range ranks {
		k := &ranks[i]
		if !k.stepped {
			continue
		}
		works := k.state != role.WorkerFinished
		if !said || works && !atWork || works == atWork && k.step < least {
			least = k.step
		}
		said, atWork = true, atWork || works
	}
	return least
}

// workerStep is the step that a single worker has reached; before it has said one, the one that it was given.
func (r *record) workerStep(k *rank) int64 {
	switch {
	case k.stepped:
		return k.step
	case k.attempt > 1:
		return k.given
	default:
		return r.given
	}
}

// WorkerStep is the step that a worker goes on from if it is restarted alone: its own, not its peers'.
func (t *Table) WorkerStep(name role.Name, rank int) int64 {
	r, k := t.worker(name, rank)
	if k == nil {
		return 0
	}
	return r.workerStep(k)
}

// Checkpoint says that a rank has saved its work of a step.
func (t *Table) Checkpoint(life role.Life, step int64) Heard {
	r, k := t.lifeOf(life)
	if r == nil {
		return HeardStale
	}
	if step > k.saved {
		k.saved = step
		k.saves++
	}
	r.saved = r.whole()
	return HeardNext
}

// whole is the newest step that the role has saved as a whole; -1: none. Which ranks save is seen from what they
// report: until all of them have reported once, or one has reported a second step, nobody can know that a step which
// some have reported is not awaited from others.
func (r *record) whole() int64 {
	if r.SavedBy == job.SavedByRank0 {
		return r.ranks[0].saved
	}
	least, report, again := int64(-1), 0, false
	for i := range r.ranks {
		k := &r.ranks[i]
		again = again || k.saves > 1
		if k.saved < 0 {
			continue
		}
		report++
		if least < 0 || k.saved < least {
			least = k.saved
		}
	}
	if report < len(r.ranks) && !again {
		return -1
	}
	return least
}

// forgetBeyond forgets what any rank has saved beyond the step that the role goes on from: it is of a line that was
// given up.
func (r *record) forgetBeyond(step int64) {
	for i := range r.ranks {
		r.ranks[i].saved = min(r.ranks[i].saved, step)
	}
	r.saved = min(r.saved, step)
}

// Saved is what is known of a role's checkpoints.
type Saved struct {
	Whole int64         // newest step that is saved as a whole; -1: none
	Ranks map[int]int64 // newest step of each rank that has reported one; nil: Whole is that of all
	Again bool          // one has reported a second step
}

// Beyond forgets what lies beyond the step given.
func (s Saved) Beyond(step int64) Saved {
	out := Saved{Whole: min(s.Whole, step), Again: s.Again}
	for rank, saved := range s.Ranks {
		if out.Ranks == nil {
			out.Ranks = map[int]int64{}
		}
		out.Ranks[rank] = min(saved, step)
	}
	return out
}

func (r *record) savedNow() Saved {
	s := Saved{Whole: r.saved}
	alike := true
	for i := range r.ranks {
		k := &r.ranks[i]
		alike = alike && k.saved == r.saved
		s.Again = s.Again || k.saves > 1
	}
	if alike {
		return s
	}
	s.Ranks = map[int]int64{}
	for i := range r.ranks {
		if k := &r.ranks[i]; k.saved >= 0 {
			s.Ranks[i] = k.saved
		}
	}
	return s
}

func (r *record) restoreSaved(s Saved) {
	r.saved = s.Whole
	for i := range r.ranks {
		k := &r.ranks[i]
		saved, ok := s.Ranks[i]
		if s.Ranks == nil {
			saved, ok = s.Whole, s.Whole >= 0
		}
		switch {
		case !ok:
			k.saved, k.saves = -1, 0
		case s.Again:
			k.saved, k.saves = saved, 2
		default:
			k.saved, k.saves = saved, 1
		}
	}
}
