package health

import (
	"fmt"
	"time"

	"vigil/internal/job"
	"vigil/internal/role"
)

// Findings is what a sweep found.
type Findings struct {
	Failures []role.Failure // verdicts, each given once
	Finished []role.Name    // roles whose ranks have all ended well, each told once per life
	Blind    time.Duration  // credited to everybody because nobody could listen
	Suspects []Suspect      // ranks that have become suspect, each told once per silence
}

// Suspect is a rank of which only guessed steps are known and that has been silent for longer than it
// ever was: too little for a verdict before the start limit.
type Suspect struct {
	Life   role.Life
	Detail string
}

// Empty reports whether there is nothing to act on.
func (f Findings) Empty() bool { return len(f.Failures) == 0 && len(f.Finished) == 0 }

// Sweep judges every role at the time given.
func (t *Table) Sweep(now time.Time) Findings {
	t.doubt(now)
	t.swept = now
	var suspects []Suspect
	for _, name := range t.order {
		r := t.records[name]
		if !r.watched || r.finished || r.paused(now) {
			continue
		}
		for i := range r.ranks {
			if r.ranks[i].idle || r.ranks[i].paused(now) {
				continue
			}
			f, overdue := r.overdue(i, now)
			f.Life.Job = t.job
			switch {
			case !overdue || f.Cause == role.Silent && r.unseen(i, now):
			case f.Cause == role.Silent && r.onlySuspect(i, now):
				if k := &r.ranks[i]; k.suspect == "" {
					k.suspect = "suspect: " + f.Detail
					suspects = append(suspects, Suspect{f.Life, f.Detail + "; its steps are guessed, a verdict follows at the start limit, " + round(r.Limits.Start).String()})
				}
			default:
				t.Report(f)
			}
		}
	}
	found := Findings{Failures: t.pending, Blind: t.blind, Suspects: suspects}
	t.pending, t.blind = nil, 0
	for _, name := range t.order {
		r := t.records[name]
		if r.watched && !r.finished && r.allFinished() {
			r.finished, r.running = true, false
			found.Finished = append(found.Finished, name)
		}
	}
	return found
}

// overdue says what a rank has not done in time. Every rank of the job is asked at every sweep.
func (r *record) overdue(i int, now time.Time) (f role.Failure, found bool) {
	k := &r.ranks[i]
	switch {
	case k.verdict || k.state == role.WorkerFinished:
		return f, false
	case r.Probed && k.state == role.WorkerStarting && now.Sub(k.since) > r.Limits.Start:
		return r.failure(i, role.NotReady, now), true
	case k.word.IsZero():
		return r.failure(i, role.NoStart, now), r.rhythm.expected(r.Limits, i) && now.Sub(k.since) > r.Limits.Start
	}
	if len(k.phases) > 0 {
		if p, limit, expired := r.expired(i, now); expired {
			return r.phaseFailure(i, p, limit, now), true
		}
	}
	if r.Limits.Expect == job.Never {
		return f, false
	}
	silent := now.Sub(k.word)
	if r.Limits.Heartbeat == 0 && silent <= r.Limits.Floor && !r.warm(i) {
		return f, false // no learned limit is shorter: that of a rank that speaks often is not worked out at every sweep
	}
	if limit := r.silenceLimit(i); limit > 0 && silent > limit {
		return r.failure(i, role.Silent, now), true
	}
	return f, false
}

// onlySuspect reports whether a rank that has been silent for too long may have a verdict later only:
// nobody has said its steps, and no limit was given.
func (r *record) onlySuspect(i int, now time.Time) bool {
	k := &r.ranks[i]
	return k.guessed && !k.told && r.Limits.Heartbeat == 0 && now.Sub(k.word) <= r.Limits.Start
}

// How fresh the last look at a silent rank must be for its silence to be judged, and for how long that is
// waited for at most: whoever looks may be waiting for a CPU too, and what he then says is not known yet.
const (
	lookFresh = 6 * time.Second
	lookWait  = 15 * time.Second
)

// unseen reports whether the rank's service, which looks at silent ranks, has not said lately whether this
// one waits for a CPU.
func (r *record) unseen(i int, now time.Time) bool {
	k := &r.ranks[i]
	if k.looked.IsZero() || k.word.IsZero() || now.Sub(k.looked) <= lookFresh {
		return false
	}
	limit := r.silenceLimit(i)
	for _, p := range k.phases {
		limit = max(limit, r.phaseLimit(i, p))
	}
	return now.Sub(later(k.word, k.looked)) <= limit+lookWait
}

// lifeOf is the rank's life, without the job.
func (r *record) lifeOf(i int) role.Life {
	return role.Life{Role: r.Name, Incarnation: r.incarnation, Rank: i, Attempt: r.ranks[i].attempt}
}

// failure puts a rank's verdict into words.
func (r *record) failure(i int, cause role.Cause, now time.Time) role.Failure {
	k := &r.ranks[i]
	f := role.Failure{Life: r.lifeOf(i), Cause: cause, At: k.since}
	age := round(now.Sub(k.since))
	switch cause {
	case role.NotReady:
		f.Detail = fmt.Sprintf("not ready for %s", age)
		if k.unready != "" {
			f.Detail += ": " + k.unready
		}
	case role.NoStart:
		f.Detail = fmt.Sprintf("no first heartbeat for %s", age)
	default:
		f.At, f.Detail = k.word, fmt.Sprintf("no heartbeat for %s (timeout %s)", round(now.Sub(k.word)), round(r.silenceLimit(i)))
	}
	if len(k.phases) > 0 {
		f.Detail += ", in phase " + k.phases[len(k.phases)-1].name
	}
	return f
}

// doubt credits the time in which nobody listened: a gap between two sweeps beyond twice the
// interval is nobody's silence but our own.
func (t *Table) doubt(now time.Time) {
	if t.swept.IsZero() {
		return
	}
	gap := now.Sub(t.swept)
	if gap <= 2*t.interval {
		return
	}
	excess := gap - t.interval
	t.swept = now
	t.blind += excess
	for _, r := range t.records {
		r.credit(excess, now)
	}
}

// credit moves the role's clocks on, never beyond now.
func (r *record) credit(d time.Duration, now time.Time) {
	for i := range r.ranks {
		r.ranks[i].credit(d, now)
	}
}

// credit moves the rank's clocks on, never beyond now.
func (k *rank) credit(d time.Duration, now time.Time) {
	k.since = earlier(k.since.Add(d), now)
	if !k.word.IsZero() {
		k.word = earlier(k.word.Add(d), now)
	}
	if !k.rose.IsZero() {
		k.rose = earlier(k.rose.Add(d), now)
	}
	for i := range k.phases {
		k.phases[i].since = earlier(k.phases[i].since.Add(d), now)
	}
}

// Pause stops watching the role for silence until the time given.
func (t *Table) Pause(name role.Name, until, now time.Time) {
	r, ok := t.records[name]
	if !ok {
		return
	}
	if r.pausedSince.IsZero() {
		r.pausedSince = now
	}
	r.pausedUntil = until
}

// Resume watches again; the time of the pause is credited.
func (t *Table) Resume(name role.Name, now time.Time) {
	r, ok := t.records[name]
	if !ok {
		return
	}
	if !r.pausedSince.IsZero() {
		r.credit(now.Sub(r.pausedSince), now)
	}
	r.pausedSince, r.pausedUntil = time.Time{}, time.Time{}
}

// paused reports whether watching is paused, and ends a pause that has run out.
func (r *record) paused(now time.Time) bool {
	if r.pausedSince.IsZero() {
		return false
	}
	if now.Before(r.pausedUntil) {
		return true
	}
	r.credit(r.pausedUntil.Sub(r.pausedSince), now)
	r.pausedSince, r.pausedUntil = time.Time{}, time.Time{}
	return false
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func round(d time.Duration) time.Duration {
	if d >= 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond)
}
