package controller

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/wire/notify"
)

// How much of a user's commands is borne.
const (
	hookQueue   = 64               // notices that wait; more are dropped, and that is said
	hookRetries = 3                // after a run that failed
	hookLimit   = 30 * time.Second // of one run
	hookBackOff = time.Second      // before the first retry; doubled before each further one
	hookRest    = 5 * time.Second  // for what waits when the controller ends
	hookKilled  = 30 * time.Second // for one that was killed to be gone
	hookSaid    = 4 << 10          // bytes of its output that are kept for the log
)

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
	run     func(*exec.Cmd) error
	log     *slog.Logger
	limit   time.Duration // of one run
	backOff time.Duration
	rest    time.Duration

	queue chan errand
	done  chan struct{}
	quick context.Context // ends when nothing more is tried a second time
	hurry context.CancelFunc
	ctx   context.Context // ends when nothing may run any more
	end   context.CancelFunc
}

// newHook begins to wait for errands; close ends that.
func newHook(environ []string, run func(*exec.Cmd) error, log *slog.Logger) *hook {
	h := &hook{environ: environ, run: run, log: log, limit: hookLimit, backOff: hookBackOff, rest: hookRest,
		queue: make(chan errand, hookQueue), done: make(chan struct{})}
	h.ctx, h.end = context.WithCancel(context.Background())
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

// close lets what waits be told, bounded and without a second try, and ends the hook. Nobody may tell
// it anything any more.
func (h *hook) close() {
	close(h.queue)
	h.hurry()
	limit := time.NewTimer(h.rest)
	defer limit.Stop()
	select {
	case <-h.done:
	case <-limit.C:
		h.end()
		limit.Reset(hookKilled)
		select {
		case <-h.done:
		case <-limit.C: // it reads a file from a disk that does not answer
			h.log.Warn("a command of the user's is left behind: what it needs cannot be read")
		}
	}
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

// once runs the command, with everything that it starts in its process group.
func (h *hook) once(e errand) (said string, err error) {
	ctx, cancel := context.WithTimeoutCause(h.ctx, h.limit, errors.New("not done after "+h.limit.String()))
	defer cancel()
	if ctx.Err() != nil {
		return "", errors.New("the controller ends")
	}
	var out tailWriter
	cmd := exec.CommandContext(ctx, e.argv[0], e.argv[1:]...)
	// The controller may be a worker's program, or a service of systemd's: its commands do not speak for it.
	cmd.Dir, cmd.Env = e.dir, notify.Mute(slices.Concat(h.environ, e.environ))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(e.input), &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = h.run(cmd)
	switch {
	case errors.Is(err, unix.EPIPE): // it does not care for what it is given, and has succeeded
		err = nil
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return strings.TrimSpace(strings.ToValidUTF8(out.String(), "\uFFFD")), err
}

// tailWriter keeps the end of what is written.
type tailWriter struct{ bytes.Buffer }

func (t *tailWriter) Write(p []byte) (int, error) {
	n, err := t.Buffer.Write(p)
	if over := t.Len() - hookSaid; over > 0 {
		t.Next(over)
	}
	return n, err //nolint:wrapcheck // a buffer has no errors
}
