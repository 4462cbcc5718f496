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
}

// Empty reports whether there is nothing to act on.
func (f Findings) Empty() bool { return len(f.Failures) == 0 && len(f.Finished) == 0 }

// Sweep judges every role at the time given.
func (t *Table) Sweep(now time.Time) Findings {
	t.doubt(now)
	t.swept = now
	for _, name := range t.order {
		r := t.records[name]
		if !r.watched || r.finished || r.paused(now) {
			continue
		}
		for i := range r.ranks {
			if cause := r.overdue(i, now); cause != "" {
				f := r.failure(i, cause, now)
				f.Life.Job = t.job
				t.Report(f)
			}
		}
	}
	found := Findings{Failures: t.pending, Blind: t.blind}
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

// overdue says what a rank has not done in time; empty when there is nothing. Every rank of the job
// is asked at every sweep.
func (r *record) overdue(i int, now time.Time) role.Cause {
	k := &r.ranks[i]
	switch {
	case k.verdict || k.state == role.WorkerFinished:
		return ""
	case r.Probed && k.state == role.WorkerStarting && now.Sub(k.since) > r.Limits.Start:
		return role.NotReady
	case k.word.IsZero():
		if r.rhythm.expected(r.Limits, i) && now.Sub(k.since) > r.Limits.Start {
			return role.NoStart
		}
	case r.Limits.Expect != job.Never && now.Sub(k.word) > r.rhythm.limit(r.Limits, i):
		return role.Silent
	}
	return ""
}

// failure puts a rank's verdict into words.
func (r *record) failure(i int, cause role.Cause, now time.Time) role.Failure {
	k := &r.ranks[i]
	f := role.Failure{Life: role.Life{Role: r.Name, Incarnation: r.incarnation, Rank: i, Attempt: k.attempt}, Cause: cause, At: k.since}
	age := round(now.Sub(k.since))
	switch cause {
	case role.NotReady:
		f.Detail = fmt.Sprintf("not ready for %s", age)
	case role.NoStart:
		f.Detail = fmt.Sprintf("no first heartbeat for %s", age)
	default:
		f.At, f.Detail = k.word, fmt.Sprintf("no heartbeat for %s (timeout %s)", round(now.Sub(k.word)), round(r.rhythm.limit(r.Limits, i)))
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
		k := &r.ranks[i]
		k.since = earlier(k.since.Add(d), now)
		if !k.word.IsZero() {
			k.word = earlier(k.word.Add(d), now)
		}
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
