package health

import (
	"fmt"
	"slices"
	"time"

	"vigil/internal/role"
)

// MaxPhases is how many phases of a worker may be open at a time.
const MaxPhases = 16

// maxLearnedPhases bounds how many names of phases a role's rhythm knows.
const maxLearnedPhases = 64

// PausedPhase is the name of the phase in which a worker is not watched, for as long as the start limit
// or, where limits.phases names it, for as long as that.
const PausedPhase = "paused"

// phase is a stretch of work that a worker has said to have entered and not yet left.
type phase struct {
	name  string
	since time.Time // moved on by credits
}

// phaseRhythm is what has been learned of how long a phase lasts. It outlives lives.
type phaseRhythm struct {
	times []int // by rank: how often it was survived
	heard gaps  // how long it lasted, counted by the rank that has survived it most often
}

// Phase takes in that a worker has entered or left a phase. Beginning one that is open begins it anew,
// because its end was missed.
func (t *Table) Phase(life role.Life, name string, begin bool, at, now time.Time) Heard {
	t.doubt(now)
	r, k := t.lifeOf(life)
	if r == nil {
		return HeardStale
	}
	r.word(life.Rank, at, now)
	i := slices.IndexFunc(k.phases, func(p phase) bool { return p.name == name })
	if !begin {
		if i < 0 {
			return k.odd(HeardNotOpen)
		}
		r.left(life.Rank, i, at, now)
		return HeardNext
	}
	if i >= 0 {
		k.phases = slices.Delete(k.phases, i, i+1)
	}
	if len(k.phases) == MaxPhases {
		return k.odd(HeardTooMany)
	}
	k.phases = append(k.phases, phase{name, at})
	return HeardNext
}

// odd returns what was odd about a word of a phase, once per life; after that it is a word like others.
func (k *rank) odd(what Heard) Heard {
	if k.oddPhase {
		return HeardNext
	}
	k.oddPhase = true
	return what
}

// left closes the phase with that index, and learns how long it was open if no step was made in it:
// one in which steps are made lasts as long as there are steps.
func (r *record) left(rank, i int, at, now time.Time) {
	k := &r.ranks[rank]
	p := k.phases[i]
	k.phases = slices.Delete(k.phases, i, i+1)
	took := at.Sub(p.since)
	switch {
	case took <= 0:
	case p.name == PausedPhase:
		k.credit(took, now)
	case !k.stepsIn(p) && !r.paused(now) && !k.paused(now) && !k.unwatched():
		r.rhythm.survived(rank, p.name, took, at)
	}
}

// survived takes in how long a phase of a rank was open, which ended at the time given.
func (r *rhythm) survived(rank int, name string, took time.Duration, at time.Time) {
	p := r.phases[name]
	if p == nil {
		if len(r.phases) == maxLearnedPhases {
			return
		}
		if r.phases == nil {
			r.phases = map[string]*phaseRhythm{}
		}
		p = &phaseRhythm{times: make([]int, len(r.ranks))}
		r.phases[name] = p
	}
	p.times[rank]++
	p.heard.take(max(int64(p.times[rank]), p.heard.n-keptOfSize), took, at)
}

// stepsIn reports whether the rank's step has risen in the phase.
func (k *rank) stepsIn(p phase) bool { return k.rose.After(p.since) }

// inside reports whether the rank is in a phase in which its silence says nothing of its rhythm outside.
func (k *rank) inside() bool {
	return k.unwatched() || len(k.phases) > 0 && !k.stepsIn(k.phases[len(k.phases)-1])
}

// unwatched reports whether the rank has asked not to be watched.
func (k *rank) unwatched() bool {
	return slices.ContainsFunc(k.phases, func(p phase) bool { return p.name == PausedPhase })
}

// phaseLimit returns how long a phase of a rank may be open; 0: there is no limit. One that was given
// always holds; a learned one only while no step is made in the phase, and not beside a heartbeat limit
// that was given.
func (r *record) phaseLimit(i int, p phase) time.Duration {
	given, ok := r.Limits.Phases[p.name]
	switch {
	case ok:
		return given
	case p.name == PausedPhase:
		return r.Limits.Start
	case r.Limits.Heartbeat > 0 || r.ranks[i].stepsIn(p):
		return 0
	}
	known := r.rhythm.phases[p.name]
	if known == nil || known.times[i] < learnAfter {
		return 0
	}
	return known.heard.rules().limit(r.Limits)
}

// expired returns the first phase of a rank that has been open for too long, from the outermost on,
// with its limit. While the rank has asked not to be watched that phase alone counts.
func (r *record) expired(i int, now time.Time) (p phase, limit time.Duration, found bool) {
	k := &r.ranks[i]
	unwatched := k.unwatched()
	for _, p := range k.phases {
		if unwatched && p.name != PausedPhase {
			continue
		}
		if limit := r.phaseLimit(i, p); limit > 0 && now.Sub(p.since) > limit {
			return p, limit, true
		}
	}
	return phase{}, 0, false
}

// silenceLimit returns how long a rank that has spoken in this life may be silent now; 0: a phase with
// a limit is open and governs instead.
func (r *record) silenceLimit(i int) time.Duration {
	k := &r.ranks[i]
	if len(k.phases) == 0 {
		return r.outside(i)
	}
	inner := k.phases[len(k.phases)-1]
	switch {
	case k.unwatched() || r.phaseLimit(i, inner) > 0:
		return 0
	case r.Limits.Heartbeat > 0 || k.stepsIn(inner):
		return r.outside(i)
	default: // nothing is known of such a phase yet
		return max(r.Limits.Start, r.Limits.Floor)
	}
}

// outside returns the limit of silence outside phases.
func (r *record) outside(i int) time.Duration {
	if r.warm(i) {
		_, limit := r.Limits.warmUp()
		return limit
	}
	return r.rhythm.limit(r.Limits, i)
}

// warm reports whether a rank is in the first steps of its life. One that has said no step is counted by
// its words.
func (r *record) warm(i int) bool {
	k := &r.ranks[i]
	said := k.rises
	if !k.stepped {
		said = k.beats
	}
	steps, _ := r.Limits.warmUp()
	return said <= steps && steps > 0
}

// phaseFailure is the verdict on a phase that has run out: stuck if the rank has said anything since
// the phase began, else silent.
func (r *record) phaseFailure(i int, p phase, limit time.Duration, now time.Time) role.Failure {
	k := &r.ranks[i]
	open := round(now.Sub(p.since))
	f := role.Failure{Life: r.lifeOf(i), Cause: role.Silent, At: p.since}
	f.Detail = fmt.Sprintf("no heartbeat for %s in phase %s (limit %s)", round(now.Sub(k.word)), p.name, round(limit))
	if k.word.After(p.since) {
		f.Cause = role.Stuck
		f.Detail = fmt.Sprintf("phase %s is open for %s (limit %s), its last word is %s old", p.name, open, round(limit), round(now.Sub(k.word)))
	}
	return f
}

// Starved takes in that a rank has lacked CPU for so long lately: that time is not its silence. 0 says that somebody has
// looked, and it has not. All that is credited since its last word comes to no more than the start limit, or the limit of
// its silence where that is longer: a silence has an end, whatever is said of it. It reports HeardFirst if the rank was not known to be
// starved since its last word.
func (t *Table) Starved(life role.Life, waited time.Duration, now time.Time) Heard {
	t.doubt(now)
	r, k := t.lifeOf(life)
	if r == nil {
		return HeardStale
	}
	k.looked = now
	if waited <= 0 {
		k.starved = "" // it has its CPU
		return HeardNext
	}
	most := max(r.Limits.Start, r.silenceLimit(life.Rank))
	waited = min(waited, most-k.credited)
	k.credit(waited, now)
	k.credited += waited
	k.starved = fmt.Sprintf("starved: it wants to run and others have the CPUs; %s of its silence do not count", round(k.credited))
	if k.credited >= most {
		k.starved = fmt.Sprintf("starved: it wants to run and others have the CPUs; %s of its silence do not count, more is not credited", round(k.credited))
	}
	if k.hungry {
		return HeardNext
	}
	k.hungry = true
	return HeardFirst
}
