package controller

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/nearest"
	"vigil/internal/proc"
	"vigil/internal/role"
)

const (
	// pollOutput is how often a log that has nothing new is looked at again.
	pollOutput = 50 * time.Millisecond
	// longestLine is how much of a line is shown at once, in bytes; the log has it whole.
	longestLine = 64 << 10
	// idleTerminal is for how long, at the end, a terminal may take nothing before it is given up.
	idleTerminal = 2 * time.Second
)

// TeeAll is the word that has the output of every worker shown.
const TeeAll = "all"

// selection says whose output is shown.
type selection struct {
	all   bool
	ranks map[role.Name][]int // no rank: all of the role
}

// selectOutput reads the values of --tee: all, ROLE or ROLE:RANK. The error has a line for each mistake.
func selectOutput(j *job.Job, words []string) (selection, error) {
	s := selection{ranks: map[role.Name][]int{}}
	var wrong []error
	whole := map[role.Name]bool{}
	for _, word := range words {
		name, rank, one := strings.Cut(word, ":")
		r, known := j.Role(role.Name(name))
		switch {
		case word == TeeAll && !known:
			s.all = true
		case !known:
			wrong = append(wrong, fmt.Errorf("--tee %s: there is no role %q%s", word, name, meant(j, name)))
		case !one:
			whole[r.Name] = true
		default:
			n, err := strconv.Atoi(rank)
			if err != nil || n < 0 || n >= r.Workers {
				wrong = append(wrong, fmt.Errorf("--tee %s: %s has the ranks 0 to %d", word, name, r.Workers-1))
				continue
			}
			s.ranks[r.Name] = append(s.ranks[r.Name], n)
		}
	}
	for name := range whole {
		s.ranks[name] = nil
	}
	return s, errors.Join(wrong...)
}

// meant completes the complaint about a role that is not there.
func meant(j *job.Job, name string) string {
	var names []string
	for _, n := range j.Names() {
		names = append(names, string(n))
	}
	if word := nearest.Word(name, names); word != "" {
		return fmt.Sprintf(", did you mean %q?", word)
	}
	return "; want all, ROLE or ROLE:RANK"
}

func (s selection) has(name role.Name, rank int) bool {
	ranks, named := s.ranks[name]
	return s.all || named && (len(ranks) == 0 || slices.Contains(ranks, rank))
}

// terminal is where output is shown, one line at a time. What does not take anything holds up nobody but
// those who show: the logs are the queue.
type terminal struct {
	mu    sync.Mutex
	w     io.Writer
	shown atomic.Int64 // bytes
}

func (t *terminal) line(text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = t.w.Write(text)
	t.shown.Add(int64(len(text)))
}

// showOutput shows what the selected workers print as it comes, each line after its role and rank, and
// returns what shows the rest and ends that. Of workers that were taken over it shows what they print from now on.
func (c *Controller) showOutput(of selection) func(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	out := &terminal{w: c.opts.Output}
	var following sync.WaitGroup
	done := make(chan struct{})
	go func() {
		defer close(done)
		cursor := uint64(0)
		newest := map[string]role.Life{} // that is shown, of each rank
		for {
			events, more := c.events.Since(cursor)
			for _, e := range events {
				cursor = e.Seq
				switch e.Kind {
				case event.WorkerStarted, event.WorkerReady, event.WorkerQuarantined:
				default:
					continue
				}
				if !of.has(e.Role, e.Rank) {
					continue
				}
				who := fmt.Sprintf("[%s %d] ", e.Role, e.Rank)
				life := role.Life{Job: c.uid, Role: e.Role, Incarnation: e.Incarnation, Rank: e.Rank, Attempt: max(e.Attempt, 1)}
				if newest[who] == life {
					continue
				}
				newest[who] = life
				from := io.SeekStart
				if c.crew.beganEarlier(life) {
					from = io.SeekEnd
				}
				gone := func() bool { return ctx.Err() != nil || c.over(e) }
				for _, path := range c.logsOf(e) {
					following.Go(func() { follow(path, from, gone, &prefixed{to: out, prefix: who}) })
				}
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(bounded context.Context) error {
		cancel()
		<-done
		return out.finish(bounded, &following)
	}
}

// logsOf returns the paths of what a worker that has just been started writes.
func (c *Controller) logsOf(e event.Event) []string {
	dir := filepath.Join(c.ground.logs, string(e.Role), strconv.Itoa(e.Incarnation), fmt.Sprintf("%d.%d", e.Rank, max(e.Attempt, 1)))
	return []string{filepath.Join(dir, "stdout.log"), filepath.Join(dir, "stderr.log")}
}

// finish waits until everything is shown, as long as the terminal takes some of it.
func (t *terminal) finish(ctx context.Context, following *sync.WaitGroup) error {
	all := make(chan struct{})
	go func() {
		following.Wait()
		close(all)
	}()
	tick := time.NewTicker(idleTerminal)
	defer tick.Stop()
	for before := t.shown.Load(); ; {
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return errors.New("not all output has been shown; the logs have it")
		case <-tick.C:
		}
		now := t.shown.Load()
		if now == before {
			return fmt.Errorf("not all output has been shown: the terminal has taken nothing for %s; the logs have it", idleTerminal)
		}
		before = now
	}
}

// over reports whether that life of the role has been replaced.
func (c *Controller) over(started event.Event) bool {
	rec, err := c.store.Record(started.Role)
	if err != nil || started.Rank < 0 || started.Rank >= len(rec.Ranks) {
		return true
	}
	now := rec.Ranks[started.Rank].Life
	return now.Incarnation > started.Incarnation+1 || now.Incarnation == started.Incarnation && now.Attempt > started.Attempt+1
}

// follow copies a growing log, from its start or its end (io.SeekStart, io.SeekEnd), until its writer is gone and
// all of it is read. Where the log is begun anew under the same path, what was put aside is read to its end first.
func follow(path string, from int, gone func() bool, to *prefixed) {
	f, err := proc.OpenRegular(path)
	if err != nil {
		return
	}
	defer func() { f.Close() }()
	_, _ = f.Seek(0, from) // a file can
	in := bufio.NewReaderSize(f, longestLine)
	for {
		last, next := gone(), renewed(path, f)
		to.copy(in)
		switch {
		case next != nil:
			f.Close()
			f = next
			in.Reset(f)
		case last:
			to.flush()
			return
		default:
			<-time.After(pollOutput)
		}
	}
}

// renewed opens the log that has taken the place of f, nil if none has.
func renewed(path string, f *os.File) *os.File {
	was, err1 := f.Stat()
	is, err2 := os.Stat(path)
	if err1 != nil || err2 != nil || os.SameFile(was, is) {
		return nil
	}
	next, err := proc.OpenRegular(path)
	if err != nil {
		return nil
	}
	return next
}

// prefixed shows whole lines, each after a prefix.
type prefixed struct {
	to     *terminal
	prefix string
	rest   []byte // a line whose end has not come
}

// copy shows what can be read now.
func (p *prefixed) copy(in *bufio.Reader) {
	for {
		part, err := in.ReadSlice('\n')
		full := errors.Is(err, bufio.ErrBufferFull)
		p.write(part, full)
		if err != nil && !full {
			return
		}
	}
}

// write takes in a part of the log. With full, it is shown although its line has not ended.
func (p *prefixed) write(part []byte, full bool) {
	p.rest = append(p.rest, part...)
	if n := len(p.rest); n > 0 && (full || p.rest[n-1] == '\n' || n >= longestLine) {
		p.flush()
	}
}

// flush shows what there is.
func (p *prefixed) flush() {
	if len(p.rest) == 0 {
		return
	}
	line := append([]byte(p.prefix), p.rest...)
	if line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	p.rest = p.rest[:0]
	p.to.line(line)
}
