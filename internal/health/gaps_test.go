package health

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var noonHere = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestAGapIsForgottenAfterTenTimesTheDistanceOfItsSize(t *testing.T) {
	t.Parallel()
	const short, long = time.Second, 3 * time.Minute
	at := func(n int, when ...int) time.Duration {
		for _, w := range when {
			if n == w {
				return long
			}
		}
		return short
	}
	for name, c := range map[string]struct {
		long []int // the numbers of the long gaps
		last int   // the newest gap at which the long one still counts
	}{
		"one that came once":         {[]int{50}, 50 + 10_000},
		"two, a thousand apart":      {[]int{1000, 2000}, 2000 + 10*1000},
		"three at once, twice":       {[]int{100, 101, 102, 600, 601, 602}, 602 + 10*498},
		"two neighbours":             {[]int{100, 101}, 101 + 10},
		"the newest eight are meant": {[]int{100, 5000, 5010, 5020, 5030, 5040, 5050, 5060, 5070}, 5070 + 10*10},
	} {
		var g gaps
		for n := 1; n <= c.last+1; n++ {
			g.heard(at(n, c.long...), noonHere)
			counts := g.rules().Longest == long
			if want := n <= c.last && n >= c.long[len(c.long)-1]; n >= c.long[len(c.long)-1] && counts != want {
				t.Errorf("%s: after gap %d it counts: %v", name, n, counts)
				break
			}
		}
	}
}

func TestGapsWithinAFactorOfTwoAreOfOneSize(t *testing.T) {
	t.Parallel()
	var g gaps
	for n := 1; n <= 400; n++ {
		d := time.Second
		switch n {
		case 100:
			d = 100 * time.Second
		case 200:
			d = 190 * time.Second
		}
		g.heard(d, noonHere)
	}
	if got := g.memory(len(g.sizes) - 1); got != 10*100 {
		t.Errorf("a gap of 190 s is remembered for %d gaps, want ten times the distance from the one of 100 s", got)
	}
}

// Whatever the gaps: the limit lies between the floor and the ceiling, bears the newest gap twice or as long as the start limit, what is
// remembered is bounded, and another controller works out the same.
func TestTheLearnedLimitKeepsItsBounds(t *testing.T) {
	t.Parallel()
	l := Limits{Start: 30 * time.Minute, Floor: 2 * time.Minute}
	rapid.Check(t, func(t *rapid.T) {
		gap := rapid.Custom(func(t *rapid.T) time.Duration {
			d := time.Duration(rapid.Int64Range(1, int64(4*time.Second)).Draw(t, "d"))
			return d << rapid.IntRange(0, 12).Draw(t, "octaves")
		})
		var g gaps
		var all []time.Duration
		for range rapid.IntRange(1, 300).Draw(t, "runs") {
			d := gap.Draw(t, "gap")
			for range rapid.SampledFrom([]int{1, 1, 1, 2, 30}).Draw(t, "times") {
				g.heard(d, noonHere)
				all = append(all, d)
			}
			recent := time.Duration(0)
			for _, d := range all[max(len(all)-newest, 0):] {
				recent = max(recent, d)
			}
			r := g.rules()
			limit := r.limit(l)
			// Gaps of one size are remembered by the longest of them, a quarter longer at most.
			if ceiling := max(l.Start, ceilingFactor*recent*5/4); limit < l.Floor || limit > max(l.Floor, ceiling) {
				t.Fatalf("limit %s with the newest %s and the floor %s", limit, recent, l.Floor)
			}
			if limit < min(learnFactor*d, max(l.Start, 2*d)) {
				t.Fatalf("limit %s right after a gap of %s", limit, d)
			}
			if len(g.sizes) > 4*64 {
				t.Fatalf("%d sizes are remembered", len(g.sizes))
			}
		}
		next := restoreGaps(g.export(), 0)
		if diff := cmp.Diff(g.rules(), next.rules(), cmpopts.EquateApproxTime(0)); diff != "" {
			t.Fatalf("another controller would go back to (-this +other)\n%s", diff)
		}
	})
}

// Records of controllers that kept the longest gap alone: it counts, under the ceiling, and fades.
func TestAnOldRecordOfARhythmLoads(t *testing.T) {
	t.Parallel()
	var was Rhythm
	if err := json.Unmarshal([]byte(`{"longest":12600000000000,"gaps":[3],"spoke":[true],"phases":{"eval":{"longest":600000000000,"times":[3]}}}`), &was); err != nil {
		t.Fatal(err)
	}
	r := newRhythm(1)
	r.restore(was)
	l := Limits{Start: 30 * time.Minute, Floor: 2 * time.Minute}
	if got := r.limit(l, 0); got != 7*time.Hour {
		t.Errorf("the limit is %s, want twice the longest of the newest gaps", got)
	}
	for range 100 {
		r.heard(0, time.Second, noonHere)
	}
	if got := r.limit(l, 0); got != l.Start {
		t.Errorf("after a hundred short gaps the limit is %s", got)
	}
	for range forgetSingle {
		r.heard(0, time.Second, noonHere)
	}
	if got := r.limit(l, 0); got != l.Floor {
		t.Errorf("after ten thousand short gaps the limit is %s", got)
	}
	if got := r.phases["eval"].heard.rules().Longest; got != 10*time.Minute {
		t.Errorf("the phase lasted %s", got)
	}
}
