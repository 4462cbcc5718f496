package rpc

import (
	"fmt"
	"time"
)

// verdict is what a watch makes of its peer.
type verdict int

const (
	alive   verdict = iota
	suspect         // a poll was missed
	dead            // silent for too long, or proved gone
)

// watch judges whether a peer lives, from the times of polls and answers. It is pure: it is told the
// time. The zero value is of no use; newWatch makes one.
//
// It doubts itself first: when it is looked at much later than promised, its owner could not listen,
// and that time is not held against the peer.
type watch struct {
	every, fast, deadAfter time.Duration

	answer time.Time // the last one, or the beginning; moved on by time that we could not listen
	sent   time.Time // the last poll
	open   time.Time // the first poll since the last answer; zero if there is none
	missed bool      // a poll since the last answer came back with an error
	gone   string    // proof, until the next answer
	looked time.Time
}

func newWatch(every, fast, deadAfter time.Duration, now time.Time) *watch {
	return &watch{every: every, fast: fast, deadAfter: deadAfter, answer: now, looked: now}
}

// period is how often look must be called.
func (w *watch) period() time.Duration { return min(w.fast, w.every) }

// asked notes that a poll was sent.
func (w *watch) asked(now time.Time) {
	w.sent = now
	if w.open.IsZero() {
		w.open = now
	}
}

// answered notes an answer: whatever was held against the peer is forgotten.
func (w *watch) answered(now time.Time) {
	w.answer, w.open, w.missed, w.gone = now, time.Time{}, false, ""
}

// failed notes that a poll came back with an error.
func (w *watch) failed() { w.missed = true }

// refused notes proof that the peer is gone.
func (w *watch) refused(why string) { w.gone = why }

// due says whether it is time for the next poll.
func (w *watch) due(now time.Time) bool {
	if w.sent.IsZero() {
		return true
	}
	gap := w.every
	if w.missed || w.overdue(now) || w.gone != "" {
		gap = w.fast
	}
	return now.Sub(w.sent) >= gap
}

// overdue says whether a poll has been without its answer for as long as polls are apart.
func (w *watch) overdue(now time.Time) bool { return !w.open.IsZero() && now.Sub(w.open) >= w.every }

// look returns the verdict and what it rests on.
func (w *watch) look(now time.Time) (verdict, string) {
	if late := now.Sub(w.looked) - w.period(); late > w.period() {
		w.answer = w.answer.Add(late)
		if !w.open.IsZero() {
			w.open = w.open.Add(late)
		}
	}
	w.looked = now
	silence := now.Sub(w.answer)
	switch {
	case w.gone != "":
		return dead, w.gone
	case silence >= w.deadAfter && (w.missed || !w.open.IsZero()):
		return dead, fmt.Sprintf("no answer for %v", silence.Round(time.Millisecond))
	case w.missed:
		return suspect, "a poll failed"
	case w.overdue(now):
		return suspect, fmt.Sprintf("no answer to a poll for %v", now.Sub(w.open).Round(time.Millisecond))
	}
	return alive, ""
}
