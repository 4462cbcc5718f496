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
	_, k := t.worker(name, rank)
	if k == nil {
		return 0
	}
	*k = freshRank(now, k.saved, k.attempt+1)
	k.idle = true
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
	*k = freshRank(now, k.saved, k.attempt)
	k.state, k.given, k.quarantined = role.WorkerStarting, step, r.Rejoin == job.RejoinManual
	for i := range r.ranks {
		if r.ranks[i].verdict {
			return
		}
	}
	r.healthy, r.err = true, ""
}

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
