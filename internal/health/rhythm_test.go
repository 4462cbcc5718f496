package health

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestARhythmIsTheSameAfterItWasWrittenDown(t *testing.T) {
	t.Parallel()
	r := newRhythm(2)
	r.ranks[0].spoke = true
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for range 5 {
		r.heard(0, 3*time.Second, at)
	}
	r.heard(1, time.Minute, at)
	for range 3 {
		r.survived(1, "eval", time.Hour, at)
	}
	kept := r.export()
	text, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	var read Rhythm
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	next := newRhythm(2)
	next.restore(read)
	if diff := cmp.Diff(kept, next.export()); diff != "" {
		t.Errorf("after it was written down (-want +got):\n%s", diff)
	}
	l := Limits{Start: time.Hour, Floor: time.Second}
	if got := next.limit(l, 0); got != 5*time.Minute {
		t.Errorf("limit of rank 0: %s", got)
	}
	if got := next.limit(l, 1); got != time.Hour {
		t.Errorf("limit of rank 1, of which too little is known: %s", got)
	}
	if p := next.phases["eval"]; p == nil || p.heard.rules().Longest != time.Hour || p.times[1] != learnAfter {
		t.Errorf("the phase: %+v", p)
	}
	// A role that has more workers, or fewer, by now.
	for _, workers := range []int{1, 3} {
		other := newRhythm(workers)
		other.restore(read)
		if other.limit(l, 0) != 5*time.Minute || len(other.phases["eval"].times) != workers {
			t.Errorf("with %d workers: %+v", workers, other)
		}
	}
}

func TestOnlyWhatTeachesIsWorthKeeping(t *testing.T) {
	t.Parallel()
	base := func() Rhythm {
		return Rhythm{Longest: 10 * time.Second, Gaps: []int{3, 2}, Spoke: []bool{true, false}, Phases: map[string]PhaseRhythm{"eval": {Longest: time.Hour, Times: []int{3, 0}}}}
	}
	for name, c := range map[string]struct {
		change func(*Rhythm)
		worth  bool
	}{
		"nothing":                    {func(*Rhythm) {}, false},
		"a little longer":            {func(r *Rhythm) { r.Longest = 11 * time.Second }, false},
		"longer":                     {func(r *Rhythm) { r.Longest = 12 * time.Second }, true},
		"faded a little":             {func(r *Rhythm) { r.Longest = 6 * time.Second }, false},
		"faded":                      {func(r *Rhythm) { r.Longest = 4 * time.Second }, true},
		"another gap":                {func(r *Rhythm) { r.Gaps[1] = 3 }, true},
		"another rank speaks":        {func(r *Rhythm) { r.Spoke[1] = true }, true},
		"another phase":              {func(r *Rhythm) { r.Phases["save"] = PhaseRhythm{} }, true},
		"a phase is survived again":  {func(r *Rhythm) { r.Phases["eval"].Times[1] = 1 }, true},
		"a phase lasts longer":       {func(r *Rhythm) { r.Phases["eval"] = PhaseRhythm{Longest: 2 * time.Hour, Times: []int{3, 0}} }, true},
		"a phase lasts a bit longer": {func(r *Rhythm) { r.Phases["eval"] = PhaseRhythm{Longest: time.Hour + time.Minute, Times: []int{3, 0}} }, false},
	} {
		now := base()
		c.change(&now)
		if now.Teaches(base()) != c.worth {
			t.Errorf("%s: worth keeping %t, want %t", name, !c.worth, c.worth)
		}
	}
	if !base().Teaches(Rhythm{}) || (Rhythm{}).Teaches(Rhythm{}) {
		t.Error("against nothing")
	}
}
