// Package console is what a person sees of a job on a terminal, beside the log: for each decision a block
// that says who failed, why, the last lines of its standard error, and what is done about it.
//
// Nobody who tells it something waits for it: what it must read to say more, such as the log of a worker
// on a disk that does not answer, it reads in a goroutine of its own and within a bound.
package console

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"vigil/internal/proc"
	"vigil/internal/restart"
	"vigil/internal/role"
)

const (
	// tailLines is how much of a failed worker's standard error is shown.
	tailLines = 20
	// readTime bounds the reading of all the logs of one decision.
	readTime = 2 * time.Second
	// mostStuck is how many reads may hang at a time. Beyond that no log is read until one of them is done.
	mostStuck = 4
	// mostWaiting is how many decisions may wait while a read hangs. Where there are more, the first of them is
	// shown without its logs.
	mostWaiting = 16
)

// Decided is a decision with the failures that it answers.
type Decided struct {
	restart.Decision
	Failures []role.Failure
	Global   int // global restarts spent, this one included
	Limit    int // of global restarts
}

// Failures shows decisions, in order. Its methods may be called from any goroutine.
type Failures struct {
	to   io.Writer
	log  *slog.Logger
	tail func(path string, lines int) []string

	stuck chan struct{} // has one for each read under way

	mu    sync.Mutex
	queue []Decided
	idle  chan struct{} // closed while nothing is being shown
	shows bool
}

// Options say where failures are shown.
type Options struct {
	To   io.Writer                             // of the blocks; it must not wait for whoever reads
	Log  *slog.Logger                          // if given, each failure is a record of this log instead
	Tail func(path string, lines int) []string // reads the end of a log; nil: proc.Tail
}

// NewFailures returns what shows failures.
func NewFailures(o Options) *Failures {
	f := &Failures{to: o.To, log: o.Log, tail: o.Tail, stuck: make(chan struct{}, mostStuck), idle: make(chan struct{})}
	if f.tail == nil {
		f.tail = proc.Tail
	}
	close(f.idle)
	return f
}

// Tell has a decision shown. It never waits: what it shows comes a moment later.
func (f *Failures) Tell(d Decided) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = append(f.queue, d)
	if !f.shows {
		f.shows, f.idle = true, make(chan struct{})
		go f.show()
	}
}

// Flush waits until everything that was told is shown, or ctx ends.
func (f *Failures) Flush(ctx context.Context) error {
	f.mu.Lock()
	idle := f.idle
	f.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("show failures: %w", context.Cause(ctx))
	}
}

// show shows what waits, and ends when there is nothing more.
func (f *Failures) show() {
	for {
		f.mu.Lock()
		if len(f.queue) == 0 {
			f.shows = false
			close(f.idle)
			f.mu.Unlock()
			return
		}
		d, late := f.queue[0], len(f.queue) > mostWaiting && len(f.stuck) > 0
		f.queue = f.queue[1:]
		f.mu.Unlock()
		tails := f.tails(d.Failures, late)
		if f.log != nil {
			f.records(d, tails)
		} else {
			_, _ = io.WriteString(f.to, text(d, tails)) // who has closed does not want it
		}
	}
}

// ending is the end of a failed worker's standard error, or why it is not known.
type ending struct {
	lines []string
	why   string
}

// tails returns the ending of each failure.
func (f *Failures) tails(failures []role.Failure, late bool) []ending {
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	out := make([]ending, len(failures))
	for i, failed := range failures {
		switch {
		case failed.Exit != nil && len(failed.Exit.Tail) > 0:
			out[i].lines = failed.Exit.Tail
		case failed.Log == "":
		case late:
			out[i].why = "not read: too many failures wait to be shown"
		default:
			out[i] = f.read(ctx, failed.Log)
		}
	}
	return out
}

// read reads the end of a log, as long as ctx lets it. A read that hangs is left behind.
func (f *Failures) read(ctx context.Context, path string) ending {
	select {
	case f.stuck <- struct{}{}:
	default:
		return ending{why: "not read: the disk has not answered yet when logs were read before"}
	}
	read := make(chan []string, 1)
	go func() {
		read <- f.tail(path, tailLines)
		<-f.stuck
	}()
	select {
	case lines := <-read:
		return ending{lines: lines}
	case <-ctx.Done():
		return ending{why: fmt.Sprintf("not read: the disk has not answered within %s", readTime)}
	}
}

// records shows a decision as one record for each failure.
func (f *Failures) records(d Decided, tails []ending) {
	for i, failed := range d.Failures {
		args := []any{"role", failed.Life.Role, "rank", failed.Life.Rank, "cause", failed.Cause, "detail", failed.Detail,
			"log", failed.Log, "tail", tails[i].lines, "action", d.Action, "rule", d.Rule}
		if tails[i].why != "" {
			args = append(args, "tail_missing", tails[i].why)
		}
		f.log.Error("failure", args...)
	}
}

// text is a decision as a person wants to see it.
func text(d Decided, tails []ending) string {
	var b strings.Builder
	for i, failed := range d.Failures {
		fmt.Fprintf(&b, "\n  %s failed (%s): %s\n", failed.Subject(), failed.Cause, FirstLine(failed))
		for _, line := range tails[i].lines {
			fmt.Fprintf(&b, "    | %s\n", role.Plain(line))
		}
		if failed.Log != "" {
			fmt.Fprintf(&b, "    log   %s\n", failed.Log)
		}
		if tails[i].why != "" {
			fmt.Fprintf(&b, "          %s\n", tails[i].why)
		}
	}
	fmt.Fprintf(&b, "    rule  %s -> %s", d.Rule, d.Action)
	switch d.Action {
	case role.Global:
		fmt.Fprintf(&b, " restart %d of %d", d.Global, d.Limit)
	case role.InPlace:
		fmt.Fprintf(&b, " restart of %s", restart.Names(d.Roles))
	case role.Stop:
		fmt.Fprintf(&b, ", exit %d: %s", d.Exit, d.Why)
	case role.Ignore: // no decision says so
	}
	b.WriteString("\n\n")
	return b.String()
}

// FirstLine is a failure in one line: how the process ended, or what was said.
func FirstLine(f role.Failure) string {
	line := f.Line()
	if f.Exit != nil && !strings.Contains(line, f.Exit.String()) {
		return strings.TrimSuffix(f.Exit.String()+": "+line, ": ")
	}
	return line
}
