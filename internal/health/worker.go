package health

import (
	"slices"
	"time"

	"vigil/internal/job"
	"vigil/internal/role"
)

// FenceWorker raises a worker's attempt and returns it, 0 where there is no such worker. Word of its
// earlier lives is dropped from here on, and the worker is not judged until BeginWorker. Its peers are
// judged as before.
func (t *Table) FenceWorker(name role.Name, rank int, now time.Time) int {
	r, k := t.worker(name, rank)
	if k == nil {
		return 0
	}
	given := r.workerStep(k)
	*k = freshRank(now, *k, k.attempt+1)
	k.idle, k.given = true, given
	t.pending = slices.DeleteFunc(t.pending, func(f role.Failure) bool {
		return f.Life.Role == name && f.Life.Rank == rank && f.Life.Attempt < k.attempt
	})
	return k.attempt
}

// worker returns a worker and its role; nil where there is none.
func (t *Table) worker(name role.Name, i int) (*record, *rank) {
	r, ok := t.records[name]
	if !ok || i < 0 || i >= len(r.ranks) {
		return nil, nil
	}
	return r, &r.ranks[i]
}

// BeginWorker says that one worker is about to run again, from the given step, beside its peers. If none
// of them has failed the role is healthy again.
func (t *Table) BeginWorker(name role.Name, rank int, step int64, now time.Time) {
	r, k := t.worker(name, rank)
	if k == nil {
		return
	}
	*k = freshRank(now, *k, k.attempt)
	k.state, k.given, k.quarantined = role.WorkerStarting, step, r.Rejoin == job.RejoinManual
	r.heal()
}

// Past is what a worker has said in its life to somebody else: an earlier controller.
type Past struct {
	At      time.Time // of its last word
	Step    *int64    // nil: it has said none
	Guessed bool      // the step was guessed
	Phases  []PastPhase
}

// PastPhase is a phase that was open then and still is.
type PastPhase struct {
	Name  string
	Began time.Time
}

// Before is what an earlier controller knew of a role.
type Before struct {
	Incarnation int
	Attempts    map[int]int // of workers that were restarted alone, by rank
	Quarantined []int       // ranks of those that nobody had admitted
	Step        int64       // that the role was given
	Saved       Saved
	Was         Standing
	Rhythm      Rhythm
}

// Standing says whether there is anything of a role to be judged.
type Standing string

// The ways a role may stand when a controller takes over.
const (
	AtWork   Standing = "at_work" // its workers run, or should
	Idle     Standing = "idle"    // nothing of it was told to run
	WellDone Standing = "done"    // it has ended well
)

// Restore makes a role what an earlier controller knew of it. Workers that should run are judged from now
// on.
func (t *Table) Restore(name role.Name, was Before, now time.Time) {
	r, ok := t.records[name]
	if !ok {
		return
	}
	r.incarnation = was.Incarnation
	t.Begin(name, was.Step, now)
	r.rhythm.restore(was.Rhythm)
	r.watched, r.running, r.finished = was.Was == AtWork, was.Was == AtWork, was.Was == WellDone
	for i := range r.ranks {
		k := &r.ranks[i]
		k.given, k.adopted = was.Step, true
		k.attempt = max(was.Attempts[i], 1)
		k.quarantined = slices.Contains(was.Quarantined, i)
	}
	r.restoreSaved(was.Saved)
}

// recallApart is how much newer a word must be than the newest that was heard to have been lost on the way: ages are
// told in milliseconds and take their time.
const recallApart = time.Second

// Recall takes in what a worker of the current life has said in it so far, to an earlier controller or on a stream that
// broke: its last word, if that is not known, and which phases are open.
func (t *Table) Recall(life role.Life, past Past, now time.Time) {
	t.doubt(now)
	r, k := t.lifeOf(life)
	if k == nil {
		return
	}
	if !k.word.IsZero() {
		if past.At.Sub(k.word) > recallApart {
			k.word = earlier(past.At, now) // what was said between is not known: the gap teaches nothing
			t.Beat(Word{Life: life, Step: past.Step, At: k.word, Guessed: past.Guessed}, now)
		}
		k.reopen(past.Phases, now)
		return
	}
	k.word = earlier(past.At, now)
	k.since = earlier(k.since, k.word)
	k.beats, k.rises = warmForGood, warmForGood
	r.rhythm.ranks[life.Rank].spoke = true
	r.heartbeat = later(r.heartbeat, k.word)
	if past.Step != nil {
		k.step, k.stepped, k.rose = *past.Step, true, k.word
		k.guessed, k.told = past.Guessed, !past.Guessed
		r.spoken = true
	}
	k.reopen(past.Phases, now)
}

// reopen makes the given phases those that are open. One that is known to be open keeps its time, which credits may have
// moved on; how long one lasted that ended unheard is not learned.
func (k *rank) reopen(open []PastPhase, now time.Time) {
	was := k.phases
	k.phases = nil
	for _, p := range open {
		if len(k.phases) == MaxPhases {
			return
		}
		known := phase{p.Name, earlier(p.Began, now)}
		if i := slices.IndexFunc(was, func(w phase) bool { return w.name == p.Name && !known.since.After(w.since.Add(recallApart)) }); i >= 0 {
			known = was[i]
		}
		k.phases = append(k.phases, known)
	}
}

// warmForGood is more words than any warm-up has.
const warmForGood = 1 << 30

// Admit ends the quarantine of a worker. ok is false for one that is not ready, with what it is; a worker
// that is not quarantined needs no admission, and changed is false then.
func (t *Table) Admit(name role.Name, rank int) (is role.WorkerState, changed, ok bool) {
	_, k := t.worker(name, rank)
	if k == nil {
		return role.WorkerDown, false, false
	}
	if k.verdict || k.state != role.WorkerReady {
		return k.shown(), false, false
	}
	changed = k.quarantined
	k.quarantined = false
	return k.state, changed, true
}

// Available returns how many of the role's workers are ready, admitted and well.
func (t *Table) Available(name role.Name) int {
	r, ok := t.records[name]
	if !ok {
		return 0
	}
	return r.available()
}

func (r *record) available() int {
	n := 0
	for i := range r.ranks {
		if k := &r.ranks[i]; k.state == role.WorkerReady && !k.quarantined && !k.verdict {
			n++
		}
	}
	return n
}

// shown is the worker's state as others see it.
func (k *rank) shown() role.WorkerState {
	switch {
	case k.verdict && k.state != role.WorkerFinished:
		return role.WorkerDown
	case k.quarantined && k.state == role.WorkerReady:
		return role.WorkerQuarantined
	default:
		return k.state
	}
}

// PauseWorker stops watching one worker for silence until the time given.
func (t *Table) PauseWorker(name role.Name, rank int, until, now time.Time) {
	_, k := t.worker(name, rank)
	if k == nil {
		return
	}
	if !k.paused(now) {
		k.pausedSince = now
	}
	k.pausedUntil = until
}

// ResumeWorker watches one worker again; the pause is credited.
func (t *Table) ResumeWorker(name role.Name, rank int, now time.Time) {
	if _, k := t.worker(name, rank); k != nil && k.paused(now) {
		k.pausedUntil = now
		k.paused(now)
	}
}

// paused reports whether the worker is paused, and credits a pause that has ended.
func (k *rank) paused(now time.Time) bool {
	if k.pausedSince.IsZero() {
		return false
	}
	if now.Before(k.pausedUntil) {
		return true
	}
	k.credit(k.pausedUntil.Sub(k.pausedSince), now)
	k.pausedSince, k.pausedUntil = time.Time{}, time.Time{}
	return false
}
