package engine

import (
	"context"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// Crew is what moves act on: the services of a role and their workers, wherever they run.
type Crew interface {
	// ReadStep asks the role's living services for its step. With an error it returns what those know that have
	// answered.
	ReadStep(ctx context.Context, name role.Name) (Steps, error)
	// StopWorkers ends the role's workers and answers when it is proved that nothing of them is left.
	// held names who did not go by itself. A role that has no service has no workers.
	StopWorkers(ctx context.Context, name role.Name, how Stop) (held []string, err error)
	// Lengthen gives the role's stops that are under way, and all until its next life, the grace of a wanted stop.
	Lengthen(ctx context.Context, name role.Name) error
	// Delete ends the role's services, or those of them that cannot be kept.
	Delete(ctx context.Context, name role.Name, which DeleteKind) error
	// Start sees to it that idle services stand for the role where it is placed.
	Start(ctx context.Context, name role.Name, incarnation int) error
	// WriteStep sets the step of idle services; ReadStep must then answer it.
	WriteStep(ctx context.Context, name role.Name, step int64) error
	// Run starts the workers of an incarnation.
	Run(ctx context.Context, name role.Name, incarnation int, step int64) error

	// Lives returns every worker life that services of an earlier controller hold, by role and rank, once
	// those that can be found have told of theirs.
	Lives(ctx context.Context) map[role.Name]map[int]role.Life

	// StopWorker is StopWorkers for the current life of one worker. Its peers go on.
	StopWorker(ctx context.Context, name role.Name, rank int, how Stop) (held []string, err error)
	// RunWorker starts one worker of the role's current incarnation anew, beside its peers.
	RunWorker(ctx context.Context, life role.Life, step int64) error
}

// Stop says how and why workers are stopped. With an incident what can be known of them is kept first.
type Stop struct {
	Kind     StopKind
	Incident string     // that the stop belongs to; empty: none
	Cause    role.Cause // of the role's own failure; empty for a role that was well
}

// StopKind says why workers are stopped, and so how long they are given.
type StopKind string

// The kinds of stop.
const (
	Wanted       StopKind = "wanted"        // the grace of a wanted end
	AfterFailure StopKind = "after_failure" // a rank of the role has failed: the short one
)

// DeleteKind says which services of a role are ended.
type DeleteKind string

// The kinds of deletion.
const (
	All        DeleteKind = "all"
	UnlessWell DeleteKind = "unless_well" // those that answer and hold nothing may be kept
)

// BlockedError says that a role cannot be placed now because something that could not be ended may still use
// what the role needs.
type BlockedError struct {
	Err   error
	Freed <-chan struct{} // closed when it is worth another try
}

func (e *BlockedError) Error() string { return e.Err.Error() }

// Unwrap returns what is lacking.
func (e *BlockedError) Unwrap() error { return e.Err }

// Places reserves the resources of roles.
type Places interface {
	// Place keeps the role's placement group if its node and devices are well, else places it anew. After a
	// *BlockedError it is called again.
	Place(name role.Name) error
	// Release gives the role's resources back.
	Release(name role.Name)
}

// Health is what the engine tells of lives and asks of steps.
type Health interface {
	Fence(name role.Name) (incarnation int)
	StopWatching(name role.Name)
	Begin(name role.Name, step int64)
	SetStep(name role.Name, step int64)
	SetRestarts(name role.Name, n int)
	Standing(name role.Name) (step, checkpoint int64)
	// Reached takes in what the role's services know of its step, by rank, and returns the newest that is known of the
	// life that runs, or was fenced last.
	Reached(name role.Name, spoken map[int]int64) (step int64)
	AwaitReady(ctx context.Context, name role.Name, incarnation int) error
	Report(f role.Failure)
	// Rose returns when a step of the role last rose in its current life; zero if none has.
	Rose(name role.Name) time.Time
	// StepsUnread says that no step of the role is known of its current life because they could not be read.
	StepsUnread(name role.Name) bool
	// JudgeAgain takes the verdict on a worker life back: it is left alone, and judged as before.
	JudgeAgain(life role.Life)

	// FenceWorker and BeginWorker are Fence and Begin for one worker; its peers are judged as before.
	FenceWorker(name role.Name, rank int) (attempt int)
	BeginWorker(name role.Name, rank int, step int64)
	// WorkerStep returns the step that one worker goes on from: its own.
	WorkerStep(name role.Name, rank int) int64
	// Available returns how many of the role's workers are ready, admitted and well.
	Available(name role.Name) int
}

// Recorder keeps what happened. Every decision is given to it before a move is made.
type Recorder interface {
	Record(e event.Event)
}
