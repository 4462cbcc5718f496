package controller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"vigil/internal/proc"
	"vigil/internal/wire/notify"
)

// How much of a user's commands is borne.
const (
	hookQueue   = 64               // notices that wait; more are dropped, and that is said
	hookRetries = 3                // after a run that failed
	hookBackOff = time.Second      // before the first retry; doubled before each further one
	hookRest    = 5 * time.Second  // for what waits when the controller ends
	hookKilled  = 30 * time.Second // for one that was killed to be gone
)

// hookTimeout is the default of --hook-timeout.
const hookTimeout = 60 * time.Second

var errHookEnds = errors.New("the controller ends")

// errand is one run of a command of the user's.
type errand struct {
	name    string   // of the command, for the log
	argv    []string // the program and its arguments
	dir     string   // empty: ours
	environ []string // beyond the hook's
	input   []byte   // its standard input
	about   []any    // what it is about, for the log

	// compose, if it is given, fills in the rest right before the command is run, in the hook's goroutine: it
	// may read files. Whoever tells the hook something must not.
	compose func(*errand) error
}

// hook runs commands of the user's, one errand after the other, in a goroutine of its own: what it does is
// in nobody's way.
type hook struct {
	environ []string
	runner  runner
	log     *slog.Logger
	limit   time.Duration // of one run, with what it puts into the background
	backOff time.Duration
	rest    time.Duration

	queue chan errand
	done  chan struct{}
	quick context.Context // ends when nothing more is tried a second time
	hurry context.CancelFunc
	ctx   context.Context // ends when nothing may run any more
	end   func()
}

// runner runs commands, and ends what they leave in the background. A *proc.Commands is one.
type runner interface {
	Run(ctx context.Context, cmd proc.Command) (said string, err error)
	Close(ctx context.Context)
}

// newHook begins to wait for errands; close ends that. limit is of one run; 0: the default.
func newHook(environ []string, limit time.Duration, runner runner, log *slog.Logger) *hook {
	h := &hook{environ: environ, runner: runner, log: log, limit: cmp.Or(limit, hookTimeout), backOff: hookBackOff, rest: hookRest,
		queue: make(chan errand, hookQueue), done: make(chan struct{})}
	ctx, end := context.WithCancelCause(context.Background())
	h.ctx, h.end = ctx, func() { end(errHookEnds) }
	h.quick, h.hurry = context.WithCancel(h.ctx)
	return h
}

// begin begins to carry out what is told.
func (h *hook) begin() {
	go func() {
		defer close(h.done)
		for e := range h.queue {
			h.carryOut(e)
		}
	}()
}

// tell queues an errand. It never waits.
func (h *hook) tell(e errand) {
	select {
	case h.queue <- e:
	default:
		h.log.Warn(e.name+" is not told: it has not done yet with what it was told before", append(e.about, "waiting", len(h.queue))...)
	}
}

// close lets what waits be told, bounded and without a second try, and what goes on in the background be done in the
// same time. Then it ends the hook and everything of it. Nobody may tell it anything any more.
func (h *hook) close() {
	close(h.queue)
	h.hurry()
	rest, cancel := context.WithTimeout(context.Background(), h.rest)
	defer cancel()
	select {
	case <-h.done:
	case <-rest.Done():
		h.end()
		limit := time.NewTimer(hookKilled)
		defer limit.Stop()
		select {
		case <-h.done:
		case <-limit.C: // it reads a file from a disk that does not answer
			h.log.Warn("a command of the user's is left behind: what it needs cannot be read")
			return
		}
	}
	h.runner.Close(rest)
	h.end()
}

// carryOut runs the command until it succeeds, at most so often.
func (h *hook) carryOut(e errand) {
	if e.compose != nil {
		if err := e.compose(&e); err != nil {
			h.log.Error(e.name+" is not run", append(e.about, "error", err)...)
			return
		}
	}
	for try, pause := 0, h.backOff; ; try, pause = try+1, 2*pause {
		said, err := h.once(e)
		if err == nil {
			h.log.Debug(e.name+" was told", e.about...)
			return
		}
		args := append(slices.Clone(e.about), "error", err, "said", said)
		if h.quick.Err() != nil {
			h.log.Info(e.name+" did not succeed and is not tried again: the job ends", args...)
			return
		}
		if try == hookRetries {
			h.log.Error(e.name+" did not succeed", args...)
			return
		}
		h.log.Warn(e.name+" did not succeed and is tried again", append(args, "in", pause)...)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-h.quick.Done():
		}
		timer.Stop()
	}
}

// once runs the command.
func (h *hook) once(e errand) (said string, err error) {
	if h.ctx.Err() != nil {
		return "", errHookEnds
	}
	// The controller may be a worker's program, or a service of systemd's: its commands do not speak for it.
	return h.runner.Run(h.ctx, proc.Command{Name: e.name, Argv: e.argv, Dir: e.dir, Env: notify.Mute(slices.Concat(h.environ, e.environ)),
		Input: e.input, About: e.about, Limit: h.limit}) //nolint:wrapcheck // the caller says whose it is
}
