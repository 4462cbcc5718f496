// Package journal is what a controller must remember to be killed at any instant: the run, incarnations,
// the ledger, plans, services, placement, leases, obligations and incidents.
//
// It is one bbolt file with one writer. [Journal.Write] queues records and returns at once; whoever must
// not act before a record is safe waits for the [Commit] that Write gave him. What is queued while a
// commit is under way goes into the next one, so a slow disk makes commits larger and never the queue
// longer: of several puts to one key the last is written.
//
//	c := j.Write(journal.Put(journal.Ledger, "ledger", ledger), journal.Put(journal.Plan, id, plan))
//	if err := c.Wait(ctx); err != nil {
//		return err // not recorded: do not act
//	}
//
// After a death at any instant the file holds exactly the first so many Writes, none of them in part.
// A file that is not what this package wrote is refused by [Open] with what to do about it, and is
// never silently begun anew. The package knows records as JSON; what is in them is their owners' matter.
package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Kind says what a record is about. Each kind is a bucket of the file.
type Kind string

// The kinds. A key names the record within its kind; which keys there are is up to the record's owner,
// but for [Incident], whose keys are decimal numbers, and [run], which [Journal.BeginRun] and its
// siblings write.
const (
	run        Kind = "run"
	Role       Kind = "role"
	Ledger     Kind = "ledger"
	Plan       Kind = "plan"
	Service    Kind = "service"
	Placement  Kind = "placement"
	Lease      Kind = "lease"
	Obligation Kind = "obligation"
	Incident   Kind = "incident"
	Policy     Kind = "policy"
	Health     Kind = "health"
	Steps      Kind = "steps"
	Pause      Kind = "pause"
	Ground     Kind = "ground"
)

var kinds = []Kind{run, Role, Ledger, Plan, Service, Placement, Lease, Obligation, Incident, Policy, Health, Steps, Pause, Ground}

// The bounds of a journal. They are far from what a job needs and keep an error from filling a disk.
const (
	// KeptIncidents is how many incidents are kept: those with the highest numbers.
	KeptIncidents = 200
	// LargestValue is the size in bytes of the largest record, as JSON.
	LargestValue = 1 << 20
	// LargestFile is the size in bytes beyond which the file does not grow.
	LargestFile = 1 << 30

	mostQueued      = 1 << 16  // records
	mostQueuedBytes = 64 << 20 // of their JSON
)

// When says on which side of a commit a Fault is called.
type When int

// The sides of a commit.
const (
	Before When = iota // nothing of it is in the file
	After              // all of it is on the disk, and nobody has been told yet
)

// String gives "before" or "after".
func (w When) String() string {
	if w == Before {
		return "before"
	}
	return "after"
}

// Options say whose journal it is.
type Options struct {
	// Job is the job's name, without the run's suffix. A journal of another job is refused.
	Job string
	// Version is this program's, for those who must be told which version wrote a file.
	Version string
	// Forget sets a file aside that would be refused, and begins a new one in its place.
	Forget bool
	// Remake, if it is given, is called before a file that was lost is made again. It makes what that needs, such as its
	// folder, or says why it must not be made.
	Remake func() error
	// Check, if it is given, may refuse the open file, such as for its owner.
	Check func(*os.File) error
	// Log hears of trouble with the disk, and of a file set aside; nil for nobody.
	Log *slog.Logger
	// Fault is called by the writer right before and right after each commit, numbered from 1 since
	// Open, for tests that end the process there. A commit that fails is tried again under its number,
	// and After is called once it has been made.
	Fault func(write int, when When)
}

// Journal is an open journal. Its methods may be called from anywhere at once.
type Journal struct {
	path  string
	fault func(int, When)
	log   *slog.Logger
	disk  store
	pace  pace

	wake  chan struct{} // something was queued, or Close was called; holds one
	stop  chan struct{} // closed by Close
	ended chan struct{} // closed by the writer
	once  sync.Once
	left  error // what Close answers

	mu       sync.Mutex
	queue    *batch
	underWay *batch    // nil between commits
	since    time.Time // when the commit under way began
	failing  error     // of the last attempt; nil after one that succeeded
	failed   time.Time // when attempts began to fail
	closed   bool
	broken   bool // nothing can ever be written again

	refused refusals // guarded by mu

	runs sync.Mutex // for BeginRun and its siblings, which read, change and write
	now  *Run       // the run as it is on the disk; nil before the first

	known    contents // as the last commit left it
	restored int

	rewound bool
	remake  func() error
}

// store is the disk, as the writer knows it.
type store interface {
	commit(*batch) error    // all of the batch, or nothing of it and an error
	lost() string           // how the file has ceased to be the one that was written; empty: it has not
	restore(contents) error // makes it again, with these records
	close() error
}

// pace is how patient the journal is; tests are less so.
type pace struct {
	stall        time.Duration // a commit that takes longer is Trouble
	retry, slack time.Duration // before the first attempt after a failed one; at most
	look         time.Duration // between two looks at the file
	close        time.Duration // for Close to write what is queued
	sure         time.Duration // for BeginRun and its siblings
}

var usualPace = pace{stall: time.Second, retry: 50 * time.Millisecond, slack: 2 * time.Second, look: time.Second, close: 5 * time.Second, sure: 10 * time.Second}

// seams are what tests of this package replace.
type seams struct {
	shape  shape
	pace   pace
	noSync bool              // as if the disk were memory
	wrap   func(store) store // a disk that fails or stalls
}

// Open opens the journal at path, or begins it where no file is. The directory must exist. The file is
// locked until Close: if another process has it, that is a [*HeldError]. A file that this program must
// not go on with is refused: [*NewerError], [*OtherJobError] or [*CorruptError], whose texts say what to
// do, and stays as it is, unless Options.Forget was set: then it is renamed to PATH.set-aside-N.
//
// The whole file is read and checked, in time linear in its size.
func Open(path string, o Options) (*Journal, error) {
	return open(path, o, seams{shape: currentShape, pace: usualPace})
}

func open(path string, o Options, s seams) (*Journal, error) {
	if o.Job == "" {
		return nil, errors.New("open journal: no job name given")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	d, err := openDisk(path, o, s)
	if err != nil {
		return nil, err
	}
	j := &Journal{
		path: path, fault: o.Fault, log: o.Log, disk: d, pace: s.pace,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}),
		queue: newBatch(), rewound: d.rewound, remake: o.Remake,
	}
	if j.known, err = d.read(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	if s.wrap != nil {
		j.disk = s.wrap(d)
	}
	if j.fault == nil {
		j.fault = func(int, When) {}
	}
	if err := j.readRun(); err != nil {
		return nil, errors.Join(err, d.close())
	}
	go j.writer()
	return j, nil
}

// Path returns the path that the journal was opened with.
func (j *Journal) Path() string { return j.path }

// Rewound says whether Open found the newest commit in the file spoiled, and went on from the one before.
// A death in the midst of a commit does that, and nobody was told of that commit then; but damage done
// later does it too, so that one commit may be forgotten that was acted on. Who numbers things leaves a
// gap, as [Journal.NextEpoch] does.
func (j *Journal) Rewound() bool { return j.rewound }

// Close writes what is queued, closes the file and gives up its lock. It takes 5 s at most: the error
// says what could not be written, and commits that were not reached end with [ErrClosed]. A disk that
// does not answer keeps the file open for as long as the process lives. A second call answers as the
// first did.
func (j *Journal) Close() error {
	j.once.Do(func() {
		j.mu.Lock()
		j.closed = true
		j.mu.Unlock()
		close(j.stop)
		j.kick()
		j.left = j.finish()
	})
	return j.left
}

func (j *Journal) finish() error {
	late := time.NewTimer(j.pace.close)
	defer late.Stop()
	select {
	case <-j.ended:
	case <-late.C:
		j.mu.Lock()
		defer j.mu.Unlock()
		err := fmt.Errorf("close journal %s: the disk has not answered for %s, %s not known to be written", j.path, j.pace.close, count(j.waiting()))
		for _, b := range []*batch{j.underWay, j.queue} {
			if b != nil {
				b.end(fmt.Errorf("%w: %w", ErrClosed, err))
			}
		}
		return err
	}
	j.mu.Lock()
	left, why, broken := j.queue, j.failing, j.broken
	j.mu.Unlock()
	if broken { // the store may hold its own locks for ever
		return fmt.Errorf("close journal %s: %w", j.path, why)
	}
	err := j.disk.close()
	if !left.empty() {
		return errors.Join(fmt.Errorf("close journal %s: %s not written: %w", j.path, count(len(left.ops)), why), err)
	}
	return err
}

func count(n int) string {
	if n == 1 {
		return "1 record"
	}
	return fmt.Sprintf("%d records", n)
}

// syncDir makes names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
