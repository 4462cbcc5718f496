package health

import (
	"time"

	"vigil/internal/job"
)

// DefaultHeartbeat is the explicit heartbeat limit that seed and flag name, and the floor of a
// learned one.
const DefaultHeartbeat = 120 * time.Second

// learnAfter is how many gaps a role must have survived before its learned limit is trusted; until
// then silence is judged by the start limit.
const learnAfter = 3

// learnFactor is how many times the longest survived gap a silence may last.
const learnFactor = 5

// Limits says how long a role may be silent.
type Limits struct {
	Start     time.Duration // from the start of a life to its first word
	Heartbeat time.Duration // between two words; 0: learned
	Floor     time.Duration // a learned limit is never shorter
	Expect    job.Expect    // whether silence counts at all
}

// rhythm is what has been learned of a role's gaps between two words of one life. It outlives lives.
type rhythm struct {
	longest time.Duration
	gaps    map[int]int // survived gaps by rank
	spoke   map[int]bool
}

func newRhythm() rhythm { return rhythm{gaps: map[int]int{}, spoke: map[int]bool{}} }

// heard takes in a gap that a rank has survived.
func (r *rhythm) heard(rank int, gap time.Duration) {
	r.gaps[rank]++
	r.longest = max(r.longest, gap)
}

// known reports whether enough gaps were seen to judge by them.
func (r *rhythm) known() bool {
	for _, n := range r.gaps {
		if n >= learnAfter {
			return true
		}
	}
	return false
}

// limit returns how long a rank that has spoken in this life may be silent: the explicit limit if
// there is one; else learnFactor times the longest gap survived, never under the floor; and while
// too little is known, the start limit.
func (r *rhythm) limit(l Limits) time.Duration {
	switch {
	case l.Heartbeat > 0:
		return l.Heartbeat
	case !r.known():
		return max(l.Start, l.Floor)
	default:
		return max(learnFactor*r.longest, l.Floor)
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
		return r.spoke[rank]
	}
}
