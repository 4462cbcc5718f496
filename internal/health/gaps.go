package health

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// The numbers by which a learned limit is worked out and fades.
const (
	// learnAfter is how many gaps a rank must have survived before its learned limit is trusted; until
	// then silence is judged by the start limit.
	learnAfter = 3
	// learnFactor is how many times the longest gap that counts a silence may last.
	learnFactor = 5
	// newest is how many gaps back the ceiling looks, and ceilingFactor how many times the longest of them it is.
	newest, ceilingFactor = 100, 2
	// forgetAfter is after how many times its own distance a gap that does not come again is forgotten, and
	// forgetSingle after how many gaps one that came once.
	forgetAfter, forgetSingle = 10, 10_000
	// keptOfSize is of how many of the newest gaps of one size it is known when they were.
	keptOfSize = 8
)

// gaps is what is remembered of a sequence of times, such as those between two words of one rank. It is bounded by the
// number of sizes: times of one size lie within a quarter of each other, four sizes make a factor of two.
type gaps struct {
	n     int64 // of the newest; they are numbered from 1
	sizes []size
	rule  Gap  // see rules
	known bool // rule is up to date
}

// size is the times of one size.
type size struct {
	class   int
	longest time.Duration
	at      time.Time // when the longest was; zero: before anybody who lives can tell
	seen    []int64   // numbers of the newest, oldest first
}

// class returns the size of a time: four to each power of two.
func class(d time.Duration) int {
	d = max(d, 4)
	octave := bits.Len64(uint64(d)) - 1
	return octave<<2 | int(uint64(d)>>(octave-2)&3)
}

// heard takes in the next time.
func (g *gaps) heard(d time.Duration, at time.Time) { g.take(g.n+1, d, at) }

// take takes in a time of that number, which several may share: of them a size counts once.
func (g *gaps) take(n int64, d time.Duration, at time.Time) {
	g.n, g.known = max(g.n, n), false
	c := class(d)
	i, found := slices.BinarySearchFunc(g.sizes, c, func(s size, c int) int { return s.class - c })
	if !found {
		g.sizes = slices.Insert(g.sizes, i, size{class: c})
	}
	s := &g.sizes[i]
	if d >= s.longest {
		s.longest, s.at = d, at
	}
	if len(s.seen) > 0 && s.seen[len(s.seen)-1] >= n {
		return
	}
	if len(s.seen) == keptOfSize {
		copy(s.seen, s.seen[1:])
		s.seen = s.seen[:keptOfSize-1]
	}
	s.seen = append(s.seen, n)
}

// counts reports whether the gaps of a size still count. One that does not is still known for when it comes again.
func (g *gaps) counts(i int) bool {
	age := g.n - g.sizes[i].last()
	return age <= forgetAfter || age <= g.memory(i)
}

func (s size) last() int64 { return s.seen[len(s.seen)-1] }

// memory returns for how many gaps a size is remembered after it has last come: ten times the longest distance between
// two neighbours among the newest gaps that are no more than a factor of two larger or smaller.
func (g *gaps) memory(i int) int64 {
	var like []int64
	for _, s := range g.sizes {
		if d := g.sizes[i].longest; s.longest <= 2*d && d <= 2*s.longest {
			like = append(like, s.seen...)
		}
	}
	slices.Sort(like)
	like = slices.Compact(like)
	like = like[max(len(like)-keptOfSize, 0):]
	if len(like) < 2 {
		return forgetSingle
	}
	farthest := int64(0)
	for j := range like[1:] {
		farthest = max(farthest, like[j+1]-like[j])
	}
	return forgetAfter * farthest
}

// Gap is the gap that a learned limit goes back to.
type Gap struct {
	Longest time.Duration // 0: none
	At      time.Time     // when it was; zero: not known, it was before this controller
	Ago     int64         // how many gaps ago one of its size came last
	Recent  time.Duration // the longest of the newest 100
}

// rules returns the longest gap that counts.
func (g *gaps) rules() Gap {
	if g.known {
		return g.rule
	}
	g.rule, g.known = Gap{}, true
	for i, s := range slices.Backward(g.sizes) {
		if g.rule.Longest == 0 && g.counts(i) {
			g.rule.Longest, g.rule.At, g.rule.Ago = s.longest, s.at, g.n-s.last()
		}
		if g.rule.Recent == 0 && g.n-s.last() < newest {
			g.rule.Recent = s.longest
		}
		if g.rule.Recent > 0 && g.rule.Longest > 0 {
			break
		}
	}
	return g.rule
}

// limit returns how long the next gap may be: learnFactor times the longest that counts, never over the larger of the
// start limit and twice the longest of the newest hundred, never under the floor.
func (r Gap) limit(l Limits) time.Duration {
	ceiling := max(l.Start, ceilingFactor*r.Recent)
	return max(min(learnFactor*r.Longest, ceiling), l.Floor)
}

// larger returns the one of two that allows for more.
func (r Gap) larger(o Gap) Gap {
	recent := max(r.Recent, o.Recent)
	if o.Longest > r.Longest {
		r = o
	}
	r.Recent = recent
	return r
}

// String says which gap it is, such as "a gap of 2m0s at 14:03:05, 12 gaps ago".
func (r Gap) String() string {
	at := ""
	if !r.At.IsZero() {
		at = " at " + r.At.Format(time.TimeOnly)
	}
	return fmt.Sprintf("a gap of %s%s, %d gaps ago", round(r.Longest), at, r.Ago)
}

// GapSize is what is kept of the gaps of one size for another controller.
type GapSize struct {
	Longest time.Duration `json:"longest"`
	At      time.Time     `json:"at,omitzero"`
	Ago     []int64       `json:"ago"` // how many gaps ago the newest of them were, oldest first
}

func (g *gaps) export() []GapSize {
	var out []GapSize
	for _, s := range g.sizes {
		one := GapSize{Longest: s.longest, At: s.at}
		for _, n := range s.seen {
			one.Ago = append(one.Ago, g.n-n)
		}
		out = append(out, one)
	}
	return out
}

// restoreGaps returns what another controller has remembered. Where it kept only the longest gap, that one counts as the newest.
func restoreGaps(sizes []GapSize, longest time.Duration) gaps {
	var g gaps
	if len(sizes) == 0 && longest > 0 {
		sizes = []GapSize{{Longest: longest, Ago: []int64{0}}}
	}
	for _, s := range sizes {
		if s.Longest <= 0 || len(s.Ago) == 0 {
			continue
		}
		one := size{class: class(s.Longest), longest: s.Longest, at: s.At}
		for _, ago := range s.Ago[max(len(s.Ago)-keptOfSize, 0):] {
			one.seen = append(one.seen, -max(ago, 0))
		}
		slices.Sort(one.seen)
		g.sizes = append(g.sizes, one)
	}
	slices.SortFunc(g.sizes, func(a, b size) int { return cmp.Compare(a.class, b.class) })
	g.sizes = slices.CompactFunc(g.sizes, func(a, b size) bool { return a.class == b.class })
	return g
}

// clone returns a copy that shares nothing.
func (g gaps) clone() gaps {
	c := gaps{n: g.n, sizes: slices.Clone(g.sizes)}
	for i := range c.sizes {
		c.sizes[i].seen = slices.Clone(c.sizes[i].seen)
	}
	return c
}
