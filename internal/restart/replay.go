package restart

import (
	"slices"
	"time"

	"vigil/internal/role"
)

// Past is one failure of a run that is over, with what was decided about it.
type Past struct {
	ID      string // of the incident
	Failure role.Failure
	Step    int64     // of the role when it failed
	Decided time.Time // zero if nothing was decided; failures that were decided at one time were decided together
	Action  role.Action
	Rule    Rule
	Started time.Time // when the new workers ran; zero if they did not
}

// Replayed is what a policy says of failures that were decided together.
type Replayed struct {
	Past []Past
	Now  Decision
	Over bool // the job would have ended before, had this policy been in force
}

// Differs reports whether the policy decides otherwise than was decided then.
func (r Replayed) Differs() bool {
	was := r.Past[0]
	return was.Action != r.Now.Action || was.Rule != r.Now.Rule
}

// Replay has the failures of a run happen again under a policy, with a ledger in which nothing is spent.
// They happen as they did, whatever the policy would have made of them. Checkpoints are not known: none is
// taken to lie too far back. Of workers that are restarted alone all others are taken to be available.
func Replay(p Policy, past []Past) []Replayed {
	past = slices.Clone(past)
	slices.SortStableFunc(past, func(a, b Past) int { return a.when().Compare(b.when()) })
	l, out, over := NewLedger(), []Replayed{}, false
	for len(past) > 0 {
		n := 1
		for n < len(past) && !past[0].Decided.IsZero() && past[n].Decided.Equal(past[0].Decided) {
			n++
		}
		batch := past[:n]
		past = past[n:]
		l = l.begunBefore(batch)
		var failures []role.Failure
		standing := map[role.Name]Standing{}
		for _, b := range batch {
			failures = append(failures, b.Failure)
			standing[b.Failure.Life.Role] = Standing{Step: b.Step, Checkpoint: b.Step, Available: p.Roles[b.Failure.Life.Role].MinAvailable, Rose: b.Failure.At}
		}
		now := batch[0].when()
		l = l.Aged(p, standing, now)
		d := Decide(p, l, standing, failures)
		out = append(out, Replayed{Past: batch, Now: d, Over: over})
		over = over || d.Action == role.Stop
		l = l.Spend(p, d, failures, standing, now)
		for _, b := range batch {
			l = l.begunAfter(d, b)
		}
	}
	return out
}

// when is the time at which it was decided, or else at which it failed.
func (b Past) when() time.Time {
	if b.Decided.IsZero() {
		return b.Failure.At
	}
	return b.Decided
}

// begunBefore returns a ledger that knows that who fails has begun to run.
func (l Ledger) begunBefore(batch []Past) Ledger {
	for _, b := range batch {
		if name := b.Failure.Life.Role; !l.Roles[name].EverBegan && b.Failure.Cause != role.Unrepaired {
			l = l.Began(name, b.Failure.At)
		}
	}
	return l
}

// begunAfter returns a ledger that knows when the repair has begun the next life.
func (l Ledger) begunAfter(d Decision, b Past) Ledger {
	switch {
	case b.Started.IsZero():
		return l
	case d.Alone:
		return l.BeganAlone(Worker{b.Failure.Life.Role, b.Failure.Life.Rank}, b.Started)
	case d.Action == role.Global:
		for _, name := range d.Roles {
			l = l.Began(name, b.Started)
		}
		return l
	default:
		return l.Began(b.Failure.Life.Role, b.Started)
	}
}
