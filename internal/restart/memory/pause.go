package memory

import (
	"strconv"
	"time"

	"vigil/internal/health"
	"vigil/internal/journal"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// pauseRecord is how long a role, or one worker's life, is not watched for silence. The end is told by the time of day,
// since a controller may begin after a boot; a clock that was set meanwhile makes a pause no longer than was asked.
type pauseRecord struct {
	Until time.Time     `json:"until"`
	Asked time.Duration `json:"asked"`

	Rank        int `json:"rank"` // role.NoRank: of the whole role
	Incarnation int `json:"incarnation,omitempty"`
	Attempt     int `json:"attempt,omitempty"`
}

// left is what is left of a pause.
func (p pauseRecord) left(now time.Time) time.Duration { return min(p.Until.Sub(now), p.Asked) }

// fits says whether the life of a worker that was paused is still its newest.
func (p pauseRecord) fits(was engine.RoleMemory) bool {
	return p.Rank == role.NoRank || p.Incarnation == was.Incarnation && p.Attempt == max(was.Attempts[p.Rank], 1)
}

func pauseKey(name role.Name, rank int) string { return string(name) + "/" + strconv.Itoa(rank) }

// Pause stops watching a role, or one worker of it, for silence for that long, and keeps that for a later controller. It
// is durable when the commit that it returns is.
func (h *Health) Pause(name role.Name, rank int, d time.Duration, now time.Time) *journal.Commit {
	p := pauseRecord{Until: now.Add(d), Asked: d, Rank: rank}
	if rank == role.NoRank {
		h.Store.Pause(name, d)
	} else {
		h.Store.PauseWorker(name, rank, d)
		if rec, err := h.Store.Record(name); err == nil && rank < len(rec.Ranks) {
			p.Incarnation, p.Attempt = rec.Ranks[rank].Life.Incarnation, rec.Ranks[rank].Life.Attempt
		}
	}
	return h.Journal.Write(journal.Put(journal.Pause, pauseKey(name, rank), p))
}

// Resume ends a pause, also for later controllers.
func (h *Health) Resume(name role.Name, rank int) *journal.Commit {
	if rank == role.NoRank {
		h.Store.Resume(name)
	} else {
		h.Store.ResumeWorker(name, rank)
	}
	return h.Journal.Write(journal.Delete(journal.Pause, pauseKey(name, rank)))
}

// restorePauses lets health go on with the pauses that an earlier controller was asked for. Those that have run out are
// forgotten.
func restorePauses(j *journal.Journal, names []role.Name, store *health.Store, m *engine.Remembered, now time.Time) error {
	pauses, err := journal.Read[pauseRecord](j, journal.Pause)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, n := range names {
		for key, p := range pauses {
			if key != pauseKey(n, p.Rank) || p.left(now) <= 0 || !p.fits(m.Roles[n]) {
				continue
			}
			known[key] = true
			if p.Rank == role.NoRank {
				store.Pause(n, p.left(now))
			} else {
				store.PauseWorker(n, p.Rank, p.left(now))
			}
		}
	}
	for key := range pauses {
		if !known[key] {
			j.Write(journal.Delete(journal.Pause, key))
		}
	}
	return nil
}
