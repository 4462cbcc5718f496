package health

import (
	"cmp"
	"slices"
	"time"

	"vigil/internal/job"
	"vigil/internal/role"
)

// Spec is what the table must know of a role.
type Spec struct {
	Name     role.Name
	Workers  int
	Limits   Limits
	Probed   bool        // it has a ready probe, so a worker that runs is not ready yet
	Asked    bool        // it has an alive probe
	Stateful bool        // its work lives in checkpoints
	SavedBy  job.SavedBy // who may say that a step is saved; empty: all ranks
	Rejoin   job.Rejoin  // what a worker that was restarted alone waits for; empty: none is
	Source   string      // in words, where its steps come from if not from itself; empty: from itself
}

// Table holds the health of every role of one job. It is a plain value for one owner; Store shares it.
// What is said of a role that the job does not have changes nothing.
type Table struct {
	job      string
	interval time.Duration // between two sweeps, as promised
	swept    time.Time     // last sweep or word; zero before the first sweep
	order    []role.Name
	records  map[role.Name]*record
	pending  []role.Failure
	blind    time.Duration // credited since the last sweep
	stale    uint64
	lower    uint64
	off      []Off // of the last word
}

// record is one role's health.
type record struct {
	Spec
	healthy     bool
	err         string
	heartbeat   time.Time
	given       int64 // the step that the life was given
	saved       int64 // newest step that is saved as a whole; -1: none
	running     bool
	restarts    int
	incarnation int
	watched     bool
	pausedUntil time.Time
	pausedSince time.Time
	spoken      bool // in this life
	finished    bool
	rhythm      rhythm
	ranks       []rank
	before      []rank // of the life that was fenced, until the next begins; nil: none was
	stride      int64  // the most by which a step has risen from one word to the next, in any life; 0: not known
	begins      begins
}

// rank is one worker's health in the role's current incarnation.
type rank struct {
	attempt int
	pid     int
	state   role.WorkerState
	status  string
	unready string    // what its ready probe met last; empty: nothing, or it is ready
	since   time.Time // start of the life, moved on by credits
	word    time.Time // last word, moved on by credits; zero before the first
	step    int64
	stepped bool  // has said a step in this life
	unread  bool  // its steps are noted where they cannot be read
	saved   int64 // newest step saved, in any life; -1: none
	saves   int   // how often it has saved a further step
	verdict bool
	held    *role.Failure // what else it has failed of since its verdict
	given   int64         // the step that an attempt after the first was given
	began   int64         // the first step that it said
	adopted bool          // its life began under an earlier controller, so nobody knows where

	idle        bool // it was fenced alone and has not begun: it is not judged
	quarantined bool // it may run, and is not available before somebody admits it
	pausedUntil time.Time
	pausedSince time.Time

	beats    int           // heartbeats of this life
	rises    int           // those that raised its step
	rose     time.Time     // the newest of them, moved on by credits
	told     bool          // it has said its step itself, nobody had to guess
	guessed  bool          // somebody has guessed its step
	phases   []phase       // that are open, outermost first
	oddPhase bool          // something odd of its phases has been told
	suspect  string        // why it is suspected; empty: it is not
	starved  string        // in words, that it lacks CPU; empty: it does not, as far as is known
	hungry   bool          // it was starved at some time since its last word
	credited time.Duration // for that, since its last word
	looked   time.Time     // when its service last said whether it waits for a CPU; zero: it never does
}

// NewTable returns a table in which every role is new: healthy, no error, heard of now, step 0, not
// running, not restarted. interval is the time between two sweeps that its owner promises.
func NewTable(jobUID string, interval time.Duration, now time.Time, specs ...Spec) *Table {
	t := &Table{job: jobUID, interval: interval, records: map[role.Name]*record{}}
	for _, s := range specs {
		t.order = append(t.order, s.Name)
		t.records[s.Name] = &record{Spec: s, healthy: true, heartbeat: now, saved: -1, rhythm: newRhythm(s.Workers), ranks: freshRanks(s.Workers, now, nil)}
	}
	return t
}

// freshRanks returns n workers of a new life. What those of the life before have saved stays saved.
func freshRanks(n int, now time.Time, before []rank) []rank {
	ranks := make([]rank, n)
	for i := range ranks {
		was := rank{saved: -1}
		if before != nil {
			was = before[i]
		}
		ranks[i] = freshRank(now, was, 1)
	}
	return ranks
}

func freshRank(now time.Time, was rank, attempt int) rank {
	return rank{attempt: attempt, state: role.WorkerDown, since: now, saved: was.saved, saves: was.saves}
}

// Fence raises the role's incarnation and returns it. Word of earlier lives is dropped from here on,
// nothing is judged until Begin, and the step that the role had reached is kept as the one given.
func (t *Table) Fence(name role.Name, now time.Time) int {
	r, ok := t.records[name]
	if !ok {
		return 0
	}
	r.given = r.step()
	if r.before == nil {
		r.before = r.ranks
	}
	r.incarnation++
	r.watched, r.running, r.spoken, r.finished = false, false, false, false
	r.ranks = freshRanks(r.Workers, now, r.ranks)
	t.pending = slices.DeleteFunc(t.pending, func(f role.Failure) bool { return f.Life.Role == name })
	return r.incarnation
}

// StopWatching ends judgement of the role's current life: a planned stop is not a failure.
func (t *Table) StopWatching(name role.Name) {
	if r, ok := t.records[name]; ok {
		r.watched, r.running = false, false
	}
}

// Begin says that the role's workers are about to run from the given step. The role is healthy again
// and its clocks start now. What any rank had saved beyond that step is not of its line any more. Errors of the
// life that begins come after this and are kept.
func (t *Table) Begin(name role.Name, step int64, now time.Time) {
	r, ok := t.records[name]
	if !ok {
		return
	}
	r.healthy, r.err = true, ""
	r.given, r.heartbeat = step, now
	r.before, r.begins = nil, begins{}
	r.watched, r.running = true, true
	if t.swept.IsZero() {
		t.swept = now // from the first life on, somebody must listen
	}
	r.ranks = freshRanks(r.Workers, now, r.ranks)
	for i := range r.ranks {
		r.ranks[i].state = role.WorkerStarting
	}
	r.forgetBeyond(step)
}

// lifeOf returns record and rank that a word belongs to, or counts it as stale.
func (t *Table) lifeOf(life role.Life) (*record, *rank) {
	r, k := t.peek(life)
	if k == nil {
		t.stale++
		return nil, nil
	}
	return r, k
}

// peek returns record and rank of a life that is the current one; nil for any other.
func (t *Table) peek(life role.Life) (*record, *rank) {
	r, ok := t.records[life.Role]
	if !ok || life.Job != t.job || life.Incarnation != r.incarnation || life.Rank < 0 || life.Rank >= len(r.ranks) || life.Attempt != r.ranks[life.Rank].attempt {
		return nil, nil
	}
	return r, &r.ranks[life.Rank]
}

// Heard says what a word did.
type Heard string

// What a word can do.
const (
	HeardFirst     Heard = "first"      // the role's first word in this life, at or above the step given
	HeardWentBack  Heard = "went_back"  // the same, below the step given
	HeardNext      Heard = "next"       // a further word
	HeardLowerStep Heard = "lower_step" // its step was below one already said in this life: time taken, step not
	HeardStale     Heard = "stale"      // of another life: dropped
	HeardNotOpen   Heard = "not_open"   // the end of a phase that is not open: time taken
	HeardTooMany   Heard = "too_many"   // the begin of a phase beyond MaxPhases: time taken, phase not
)

// Word is what a worker says of itself.
type Word struct {
	Life role.Life
	Step *int64    // nil: a sign of life without a step
	At   time.Time // when it was said, on the table's clock

	Guessed bool // the step was guessed from output, a file or a hook: its absence alone is no verdict
}

// Beat takes in a heartbeat that arrived now.
func (t *Table) Beat(w Word, now time.Time) Heard {
	t.off = nil
	t.doubt(now)
	r, k := t.lifeOf(w.Life)
	if r == nil {
		return HeardStale
	}
	r.word(w.Life.Rank, w.At, now)
	k.beats++
	if w.Step == nil {
		return HeardNext
	}
	k.told, k.guessed = k.told || !w.Guessed, k.guessed || w.Guessed
	if k.stepped && *w.Step < k.step {
		t.lower++
		return HeardLowerStep
	}
	first, from := !k.stepped, k.step
	if first || *w.Step > from {
		k.rises++
		k.rose = later(k.rose, w.At)
	}
	k.step, k.stepped = *w.Step, true
	t.begun(r, k, w.Life.Rank, first, from)
	given := r.given
	switch {
	case k.attempt > 1 && k.rises == 1:
		given = k.given // the first word of a life that was begun alone
	case r.spoken:
		return HeardNext
	}
	r.spoken = true
	if *w.Step < given {
		return HeardWentBack
	}
	return HeardFirst
}

// word notes that a rank has said something, and learns from how long it had been silent before.
func (r *record) word(i int, at, now time.Time) {
	k := &r.ranks[i]
	if k.word.IsZero() {
		r.rhythm.ranks[i].spoke = true
	} else if gap := at.Sub(k.word); gap > 0 && !r.paused(now) && !k.paused(now) && !k.inside() {
		r.learn(i, gap, at)
	}
	k.word, k.suspect = later(k.word, at), ""
	k.starved, k.hungry, k.credited = "", false, 0
	r.heartbeat = later(r.heartbeat, at)
}

// Unready notes why a starting worker is not ready: what its probe met last, in words.
func (t *Table) Unready(life role.Life, met string) {
	if _, k := t.peek(life); k != nil && k.state == role.WorkerStarting {
		k.unready = met
	}
}

// Worker takes in what a worker is doing. It reports whether the word was of this life.
func (t *Table) Worker(life role.Life, pid int, state role.WorkerState, status string) bool {
	r, k := t.lifeOf(life)
	if r == nil {
		return false
	}
	if k.state != role.WorkerFinished {
		k.state = state
	}
	k.pid, k.status = cmp.Or(pid, k.pid), cmp.Or(status, k.status)
	return true
}

// Report takes in a failure. It is handed out by the next sweep, once per worker life. A failure
// without an incarnation concerns the current one.
func (t *Table) Report(f role.Failure) Heard {
	r, ok := t.records[f.Life.Role]
	if !ok {
		t.stale++
		return HeardStale
	}
	if f.Life.Incarnation == 0 {
		f.Life.Incarnation, f.Life.Attempt = r.incarnation, 1
		if _, k := t.worker(f.Life.Role, f.Life.Rank); k != nil {
			f.Life.Attempt = k.attempt
		}
	}
	f.Life.Job = cmp.Or(f.Life.Job, t.job)
	if f.Life.Rank == role.NoRank {
		if f.Life.Job != t.job || f.Life.Incarnation != r.incarnation {
			t.stale++
			return HeardStale
		}
		if r.running && r.allFinished() || r.finished {
			return HeardNext // its work is done: what becomes of an idle service is no failure
		}
	} else {
		_, k := t.lifeOf(f.Life)
		switch {
		case k == nil:
			return HeardStale
		case k.state == role.WorkerFinished:
			return HeardNext
		case k.verdict:
			k.hold(f)
			return HeardNext
		}
		k.verdict = true
	}
	r.healthy, r.err = false, f.Detail
	t.pending = append(t.pending, f)
	return HeardFirst
}
