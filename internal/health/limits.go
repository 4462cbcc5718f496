package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"vigil/internal/job"
)

// DefaultHeartbeat is the explicit heartbeat limit that seed and flag name, and the floor of a
// learned one.
const DefaultHeartbeat = 120 * time.Second

// Limits says how long a role may be silent.
type Limits struct {
	Start     time.Duration // from the start of a life to its first word
	Heartbeat time.Duration // between two words; 0: learned
	Floor     time.Duration // a learned limit is never shorter
	Expect    job.Expect    // whether silence counts at all

	Phases map[string]time.Duration // how long a phase may be open, by its name; others are learned
	WarmUp job.WarmUp               // of each life; its zero value is the default
}

// warmUp returns for how many steps of a life its first gaps are borne, and how long each may be. By
// default it is one gap, under the start limit, and none where the heartbeat limit was given.
func (l Limits) warmUp() (steps int, limit time.Duration) {
	w := l.WarmUp
	switch {
	case w == job.WarmUp{} && l.Heartbeat > 0:
		return 0, 0
	case w == job.WarmUp{}:
		return 1, max(l.Start, l.Floor)
	}
	return max(w.Steps, 1), cmp.Or(w.Limit, l.Start)
}

// rhythm is what has been learned of a role's gaps between two words of one life. It outlives lives.
type rhythm struct {
	ranks  []learned
	phases map[string]*phaseRhythm

	ruling Gap  // over all ranks
	stale  bool // ruling has to be worked out anew
}

// learned is what is known of one rank.
type learned struct {
	gaps  int // survived
	spoke bool
	heard gaps // its gaps outside phases and warm-up; each rank has its own count, for ranks differ in how often they speak
}

func newRhythm(workers int) rhythm { return rhythm{ranks: make([]learned, workers)} }

// learn takes in a gap that a rank has survived. One of the warm-up says nothing of the rhythm, but
// that of a life's first step counts as survived.
func (r *record) learn(i int, gap time.Duration, at time.Time) {
	switch {
	case !r.warm(i):
		r.rhythm.heard(i, gap, at)
	case r.Limits.WarmUp == job.WarmUp{}:
		r.rhythm.ranks[i].gaps++
	}
}

// heard takes in a gap that a rank has survived, which ended at the time given.
func (r *rhythm) heard(rank int, gap time.Duration, at time.Time) {
	r.ranks[rank].gaps++
	r.ranks[rank].heard.heard(gap, at)
	r.stale = true
}

// rules returns the longest gap that counts for any rank.
func (r *rhythm) rules() Gap {
	if r.stale {
		r.ruling, r.stale = Gap{}, false
		for i := range r.ranks {
			r.ruling = r.ruling.larger(r.ranks[i].heard.rules())
		}
	}
	return r.ruling
}

// known reports whether the rank has survived enough gaps to be judged by what was learned. Each rank
// is asked for itself: one that speaks often says nothing of one that speaks seldom.
func (r *rhythm) known(rank int) bool { return r.ranks[rank].gaps >= learnAfter }

// spoken reports whether any rank has ever spoken.
func (r *rhythm) spoken() bool {
	return slices.ContainsFunc(r.ranks, func(l learned) bool { return l.spoke })
}

// settled reports whether every rank that speaks is known, and so the learned limit holds for all.
func (r *rhythm) settled() bool {
	return r.spoken() && !slices.ContainsFunc(r.ranks, func(l learned) bool { return l.spoke && l.gaps < learnAfter })
}

// limit returns how long a rank that has spoken in this life may be silent outside phases: the explicit limit if
// there is one; else what the longest gap that counts for any rank allows for, see Gap.limit; and while too little is
// known of the rank, the start limit.
func (r *rhythm) limit(l Limits, rank int) time.Duration {
	return r.limitIf(l, r.known(rank))
}

// shown returns the limit that holds for every rank.
func (r *rhythm) shown(l Limits) time.Duration { return r.limitIf(l, r.settled()) }

func (r *rhythm) limitIf(l Limits, known bool) time.Duration {
	switch {
	case l.Heartbeat > 0:
		return l.Heartbeat
	case !known:
		return max(l.Start, l.Floor)
	default:
		return r.rules().limit(l)
	}
}

// why says in words what the learned limit that holds for every rank goes back to.
func (r *rhythm) why(l Limits) string {
	g := r.rules()
	limit := g.limit(l)
	switch {
	case learnFactor*g.Longest <= limit && limit > l.Floor:
		return fmt.Sprintf("%d times %s", learnFactor, g)
	case limit <= l.Floor:
		return "limits.floor, for the longest gap that counts is " + round(g.Longest).String()
	case ceilingFactor*g.Recent >= limit:
		return fmt.Sprintf("twice the longest of the newest %d gaps, %s; the longest that counts is %s", newest, round(g.Recent), g)
	default:
		return "limits.start, no more although the longest gap that counts is " + g.String()
	}
}

// expected reports whether a rank that has not spoken yet in this life has to.
func (r *rhythm) expected(l Limits, rank int) bool {
	switch l.Expect {
	case job.Always:
		return true
	case job.Never:
		return false
	default:
		return r.ranks[rank].spoke
	}
}
