package health

import (
	"fmt"

	"vigil/internal/role"
)

// Off is a life that begins at another step than it should.
type Off struct {
	Kind   OffKind
	Life   role.Life
	Step   int64 // where it began
	Detail string
}

// OffKind says how a life begins off its step.
type OffKind string

// The ways in which a life begins off its step.
const (
	Behind OffKind = "behind" // below the step that it was given
	Ahead  OffKind = "ahead"  // beyond it
	Apart  OffKind = "apart"  // a run's first life was given nothing: away from where another one began
)

// begins is how a role's life begins.
type begins struct {
	said  map[offKey]bool // each is said once per life
	shown string          // the last of them, in words; empty: none
	known bool            // low and high are: of its ranks whose stride is known
	low   int64           // where they began
	high  int64
}

type offKey struct {
	kind OffKind
	step int64
}

// begun looks at a word for what it says of where its life began. That it is behind shows in the first word; that it is
// ahead or apart only when a second one has told how far apart the role's words are. from is the step before the word.
func (t *Table) begun(r *record, k *rank, i int, first bool, from int64) {
	if first {
		k.began = k.step
	} else if k.step > from {
		r.stride = max(r.stride, k.step-from)
	}
	if k.adopted {
		return
	}
	given := r.given
	if k.attempt > 1 {
		given = k.given
	}
	fresh := r.incarnation <= 1 && k.attempt == 1 && given == 0
	switch {
	case first && k.step < given:
		t.say(r, Behind, i, k.began, fmt.Sprintf("given step %d, began at %d", given, k.began))
	case k.rises != 2 || k.step <= from:
	case fresh:
		t.apart(r, k, i)
	case k.began > given+r.stride:
		t.say(r, Ahead, i, k.began, fmt.Sprintf("given step %d, began at %d", given, k.began))
	}
}

// say notes what is off, unless it was said of this life.
func (t *Table) say(r *record, kind OffKind, i int, step int64, detail string) {
	key := offKey{kind, step}
	if kind == Apart {
		key.step = 0 // once per role, whatever the ranks are at
	}
	if r.begins.said[key] {
		return
	}
	if r.begins.said == nil {
		r.begins.said = map[offKey]bool{}
	}
	r.begins.said[key] = true
	life := r.lifeOf(i)
	life.Job = t.job
	r.begins.shown = fmt.Sprintf("rank %d: %s", i, detail)
	t.off = append(t.off, Off{Kind: kind, Life: life, Step: step, Detail: detail})
}

// apart compares where a rank of a first life began with where others did, in its role and beyond.
func (t *Table) apart(r *record, k *rank, i int) {
	for _, n := range t.order {
		o := t.records[n]
		if !o.begins.known || o.incarnation > 1 {
			continue
		}
		near := max(r.stride, o.stride)
		switch {
		case k.began > o.begins.low+near:
			t.say(r, Apart, i, k.began, fmt.Sprintf("began at step %d, %s at %d", k.began, n, o.begins.low))
		case k.began < o.begins.high-near:
			t.say(r, Apart, i, k.began, fmt.Sprintf("began at step %d, %s at %d", k.began, n, o.begins.high))
		}
	}
	b := &r.begins
	if !b.known {
		b.known, b.low, b.high = true, k.began, k.began
	}
	b.low, b.high = min(b.low, k.began), max(b.high, k.began)
}
