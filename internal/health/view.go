package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"vigil/internal/job"
	"vigil/internal/role"
)

// Record is a copy of one role's health. The first six fields are those of the health manager that
// vigil's behaviour comes from.
type Record struct {
	Healthy       bool
	Error         string // empty when healthy
	LastHeartbeat time.Time
	CurrentStep   int64
	TaskRunning   bool
	RestartCount  int

	Name        role.Name
	Incarnation int
	Checkpoint  int64 // newest step that all its saving ranks have saved; -1: none
	Ready       bool  // all workers ready
	Available   int   // workers that are ready, admitted and well
	Spoken      bool  // has said a step in this life
	Finished    bool
	Paused      bool
	Limit       time.Duration // of silence, as it stands now
	Learned     bool          // the limit was learned, not given
	Watched     string        // in words: what the role is watched by
	Given       int64         // the step that this life was given
	Off         string        // in words: how it began off that step; empty: it did not, or has not spoken
	Doubt       string        // in words: which rank is suspect or starved, and why; empty: none
	Ranks       []RankRecord
}

// RankRecord is a copy of one worker's health.
type RankRecord struct {
	Rank     int
	Life     role.Life
	PID      int
	State    role.WorkerState
	Status   string // in the worker's own words
	Unready  string // what its ready probe met last, while it is starting; may be empty
	Step     int64
	Age      time.Duration // since its last word; since its start before the first
	Spoken   bool
	Unwell   bool // a verdict has been given on this life
	Expected bool // its silence counts

	Paused  bool        // it is not watched for silence
	Held    bool        // it is, or once it is ready will be, quarantined
	Guessed bool        // all its steps were guessed, it has said none itself
	Phases  []OpenPhase // outermost first
	Suspect string      // why it is suspected; empty: it is not
	Starved string      // it lacks CPU: so in words; empty: not that we know
}

// OpenPhase is a phase that a worker has entered and not left.
type OpenPhase struct {
	Name  string
	Age   time.Duration
	Limit time.Duration // 0: none is known
}

// Record returns a copy of the role's health as of now. ok is false for an unknown role.
func (t *Table) Record(name role.Name, now time.Time) (rec Record, ok bool) {
	r, ok := t.records[name]
	if !ok {
		return Record{}, false
	}
	rec = Record{
		Healthy: r.healthy, Error: r.err, LastHeartbeat: r.heartbeat, CurrentStep: r.step(), TaskRunning: r.running, RestartCount: r.restarts,
		Name: name, Incarnation: r.incarnation, Checkpoint: r.saved, Ready: r.ready(), Available: r.available(), Spoken: r.spoken, Finished: r.finished, Paused: r.paused(now),
		Limit: r.rhythm.shown(r.Limits), Learned: r.Limits.Heartbeat == 0 && r.rhythm.settled(), Watched: r.watchedBy() + r.from(),
		Given: r.given, Off: r.begins.shown,
	}
	for i := range r.ranks {
		k := &r.ranks[i]
		since := k.word
		if since.IsZero() {
			since = k.since
		}
		rec.Ranks = append(rec.Ranks, RankRecord{
			Rank: i, Life: role.Life{Job: t.job, Role: name, Incarnation: r.incarnation, Rank: i, Attempt: k.attempt},
			PID: k.pid, State: k.shown(), Paused: k.paused(now), Held: k.quarantined, Status: k.status, Unready: k.unready, Step: r.workerStep(k), Age: max(0, now.Sub(since)),
			Spoken: !k.word.IsZero(), Unwell: k.verdict, Expected: !k.word.IsZero() || r.rhythm.expected(r.Limits, i),
			Guessed: k.guessed && !k.told, Phases: r.openPhases(i, now), Suspect: k.suspect, Starved: k.starved,
		})
		if doubt := cmp.Or(k.starved, k.suspect); doubt != "" && rec.Doubt == "" {
			rec.Doubt = fmt.Sprintf("rank %d is %s", i, doubt)
		}
	}
	return rec, true
}

func (r *record) openPhases(i int, now time.Time) []OpenPhase {
	var open []OpenPhase
	for _, p := range r.ranks[i].phases {
		open = append(open, OpenPhase{Name: p.name, Age: max(0, now.Sub(p.since)), Limit: r.phaseLimit(i, p)})
	}
	return open
}

// ready reports whether every worker of the current life is ready or has ended well.
func (r *record) ready() bool {
	for i := range r.ranks {
		switch r.ranks[i].state {
		case role.WorkerReady, role.WorkerFinished, role.WorkerPaused:
		default:
			return r.finished
		}
	}
	return r.running || r.finished
}

// allFinished reports whether every worker of the current life has ended well.
func (r *record) allFinished() bool {
	for i := range r.ranks {
		if r.ranks[i].state != role.WorkerFinished {
			return false
		}
	}
	return true
}

// watchedBy says in words what would show that the role is unwell.
func (r *record) watchedBy() string {
	spoken := r.rhythm.spoken()
	exit, only := "exit", "exit only"
	if r.Asked {
		exit, only = "exit, alive probe", "exit and alive probe"
	}
	said := exit + " and heartbeats, "
	switch {
	case r.Limits.Expect == job.Never:
		return only + " (progress.expect: never)"
	case r.Limits.Expect == job.OnceSeen && !spoken:
		return only + " (it has never sent a heartbeat)"
	case r.Limits.Heartbeat > 0:
		said += "limit " + round(r.Limits.Heartbeat).String()
	case r.rhythm.settled():
		said += fmt.Sprintf("learned limit %s (%s)", round(r.rhythm.shown(r.Limits)), r.rhythm.why(r.Limits))
	default:
		said += "start limit " + round(r.rhythm.shown(r.Limits)).String() + " until its rhythm is known"
	}
	if r.Limits.Heartbeat == 0 && slices.ContainsFunc(r.ranks, func(k rank) bool { return k.guessed && !k.told }) {
		said += "; its steps are guessed: silence makes it suspect, and a failure only at the start limit, " + round(r.Limits.Start).String()
	}
	return said
}

// from completes watchedBy by where the role's steps come from, if not from itself.
func (r *record) from() string {
	if r.Source == "" || r.Limits.Expect == job.Never {
		return ""
	}
	return "; steps are read from " + r.Source
}

// Counts are totals since the table was made.
type Counts struct {
	Roles     int
	Healthy   int
	Unhealthy int
	Stale     uint64 // words of other lives, dropped
	Lower     uint64 // steps below one already said in the same life
}

// Counts returns the totals.
func (t *Table) Counts() Counts {
	c := Counts{Roles: len(t.order), Stale: t.stale, Lower: t.lower}
	for _, r := range t.records {
		if r.healthy {
			c.Healthy++
		} else {
			c.Unhealthy++
		}
	}
	return c
}
