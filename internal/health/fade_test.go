package health_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"vigil/internal/health"
)

// coarse is a bed whose checker sweeps seldom, so that days can be played.
func coarse(t *testing.T, interval time.Duration, spec health.Spec) *bed {
	b := &bed{TB: t, Table: health.NewTable(uid, interval, noon, spec), now: noon}
	b.Fence(spec.Name, b.now)
	b.Begin(spec.Name, 0, b.now)
	return b
}

// Stalls that a role has survived make its limit long for a while, not for ever, over its lives and its controllers. The
// other member of the kind, the limits of phases, fades by the same rule.
//
// shows: FAULT-E1
func TestALearnedLimitFades(t *testing.T) {
	b := coarse(t, 10_000*time.Hour, critic(1, learned))
	step := int64(0)
	say := func(gap time.Duration) {
		b.now = b.now.Add(gap)
		step++
		b.beat(0, step)
	}
	limit := func(when string, want time.Duration) {
		t.Helper()
		if r := b.record("critic"); r.Limit != want {
			t.Errorf("%s: the limit is %s, want %s (%s)", when, r.Limit, want, r.Watched)
		}
	}
	for range 200 {
		say(time.Second)
	}
	limit("200 steps of 1 s", 2*time.Minute)
	for _, stall := range []time.Duration{110 * time.Second, 9 * time.Minute, 44 * time.Minute, 90 * time.Minute} {
		say(stall)
	}
	limit("after a stall of 90 min", 3*time.Hour)
	for range 99 {
		say(time.Second)
	}
	limit("99 steps later", 3*time.Hour)
	say(time.Second)
	limit("100 steps later", 30*time.Minute)
	if r := b.record("critic"); !strings.Contains(r.Watched, "limits.start, no more although the longest gap that counts is a gap of 1h30m0s at 14:28:10, 100 gaps ago") {
		t.Errorf("it is watched by %q", r.Watched)
	}
	kept, err := json.Marshal(storeOf(b).Rhythm("critic"))
	if err != nil {
		t.Fatal(err)
	}
	var read health.Rhythm
	if err := json.Unmarshal(kept, &read); err != nil {
		t.Fatal(err)
	}
	b.restart("critic", step)
	next := &bed{TB: t, Table: health.NewTable(uid, 10_000*time.Hour, b.now, critic(1, learned)), now: b.now}
	next.Restore("critic", health.Before{Incarnation: 2, Step: step, Saved: health.Saved{Whole: -1}, Was: health.AtWork, Rhythm: read}, next.now)
	b = next
	for range 10_000 - 100 {
		say(time.Second)
	}
	limit("nearly 10,000 steps, a life and a controller later", 30*time.Minute)
	for range 101 {
		say(time.Second)
	}
	limit("10,000 steps later", 2*time.Minute)
}

// storeOf gives the table's rhythm to whoever keeps it.
func storeOf(b *bed) *health.Store { return health.StoreOf(b.Table) }

// Healthy jobs of the kinds that a learned limit must bear.
//
// shows: FAULT-E1
func TestNoHealthyRhythmGivesAVerdict(t *testing.T) {
	chance := rand.New(rand.NewPCG(3, 4))
	for name, gap := range map[string]func(n int) time.Duration{
		"steps that grow from 12 to 45 min": func(n int) time.Duration {
			if n == 0 {
				return 28 * time.Minute
			}
			return 12*time.Minute + min(33*time.Minute, time.Duration(n)*20*time.Second)
		},
		"an evaluation of 9 min every 1,000 steps of 2 min": func(n int) time.Duration {
			if n%1000 == 999 {
				return 9 * time.Minute
			}
			return 2 * time.Minute
		},
		"stalls of 8 min by chance, one in twenty, between steps of 1 to 2 min": func(n int) time.Duration {
			if n > 3 && chance.IntN(20) == 0 || n == 2 {
				return 8 * time.Minute
			}
			return time.Minute + time.Duration(chance.Int64N(int64(time.Minute)))
		},
		"three slow steps after every 500": func(n int) time.Duration {
			if n > 3 && n%500 < 3 || n == 2 {
				return 11 * time.Minute
			}
			return time.Minute
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := coarse(t, 30*time.Second, critic(1, learned))
			for n := range 6000 {
				for left := gap(n); left > 0; left -= 30 * time.Second {
					b.now = b.now.Add(min(left, 30*time.Second))
					b.sweep()
				}
				b.beat(0, int64(n))
				if len(b.found) > 0 {
					t.Fatalf("after %d steps: %s", n, b.found[0].Detail)
				}
			}
		})
	}
}
