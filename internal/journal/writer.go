package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// Commit is the promise that a Write will be on the disk. Writes that go to the disk together share one.
type Commit struct {
	done chan struct{}
	end  error // valid after done

	j    *Journal
	last error // of the last attempt, guarded by j.mu
}

func ended(err error) *Commit {
	c := &Commit{done: make(chan struct{}), end: err}
	close(c.done)
	return c
}

// Done is closed when the commit is on the disk, or never will be; [Commit.Err] tells which.
func (c *Commit) Done() <-chan struct{} { return c.done }

// Err is nil once, and only when, the commit is on the disk. Before that it wraps [ErrPending], with
// the error of the last attempt if one has failed. After Done it may be [ErrFull], [ErrClosed], what is
// wrong with an entry, or what broke the journal for good.
func (c *Commit) Err() error {
	select {
	case <-c.done:
		return c.end
	default:
	}
	c.j.mu.Lock()
	defer c.j.mu.Unlock()
	if c.last != nil {
		return fmt.Errorf("%w: %w", ErrPending, c.last)
	}
	return ErrPending
}

// Wait waits until the commit is on the disk and returns nil then. A failed attempt does not end it: the
// records stay queued and are tried again, until ctx ends. The error then wraps that of ctx, [ErrPending]
// and that of the last attempt, and the records may yet be written: who gave up waiting knows nothing.
func (c *Commit) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.end
	default:
	}
	select {
	case <-c.done:
		return c.end
	case <-ctx.Done():
		return fmt.Errorf("wait for journal: %w: %w", ctx.Err(), c.Err())
	}
}

// batch is what goes to the disk together: the last change of each record, whoever wrote it.
type batch struct {
	clear   bool // first delete everything
	ops     map[id]Entry
	bytes   int
	commits []*Commit // the last one is given to those who still join
}

type id struct {
	kind Kind
	key  string
}

func newBatch() *batch { return &batch{ops: map[id]Entry{}} }

func (b *batch) add(e Entry) {
	if e.clear {
		b.clear, b.bytes, b.ops = true, 0, map[id]Entry{}
		return
	}
	at := id{e.kind, e.key}
	b.bytes += len(e.json) - len(b.ops[at].json)
	b.ops[at] = e
}

func (b *batch) empty() bool { return len(b.ops) == 0 && !b.clear }

// hasRoom says whether the entries can join. What only replaces always can.
func (b *batch) hasRoom(entries []Entry) bool {
	fresh, bytes := 0, 0
	for _, e := range entries {
		old, there := b.ops[id{e.kind, e.key}]
		if !there {
			fresh++
		}
		bytes += len(e.json) - len(old.json)
	}
	return fresh == 0 && bytes <= 0 || len(b.ops)+fresh <= mostQueued && b.bytes+bytes <= mostQueuedBytes
}

// Write queues the entries, all of which or none of which will be recorded, after those of earlier Writes
// and with or before those of later ones. What it refuses is logged, and told by [Journal.Refused]. It never waits for the disk. Without entries it gives the
// commit of what was queued last, so that waiting for it is waiting for everything.
func (j *Journal) Write(entries ...Entry) *Commit {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range entries {
		if e.err != nil {
			j.refuse(e.err, entries...)
			return ended(e.err)
		}
	}
	switch {
	case j.broken:
		return ended(j.failing)
	case j.closed:
		return ended(ErrClosed)
	case len(entries) == 0 && j.queue.empty() && j.underWay != nil:
		return j.underWay.commits[len(j.underWay.commits)-1]
	case len(entries) == 0 && j.queue.empty():
		return ended(nil)
	case !j.queue.hasRoom(entries):
		err := fmt.Errorf("write journal %s: %w: %s", j.path, ErrFull, count(len(j.queue.ops)))
		j.refuse(err, entries...)
		return ended(err)
	}
	for _, e := range entries {
		j.queue.add(e)
		j.refused.take(e)
	}
	if len(j.queue.commits) == 0 {
		j.queue.commits = []*Commit{{done: make(chan struct{}), j: j}}
	}
	j.kick()
	return j.queue.commits[len(j.queue.commits)-1]
}

func (j *Journal) kick() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// writer makes commits until Close, and then what is queued, unless that fails.
func (j *Journal) writer() {
	defer close(j.ended)
	look := time.NewTicker(j.pace.look)
	defer look.Stop()
	back := j.pace.retry
	for n := 1; ; {
		b := j.take(look.C)
		if b == nil {
			return
		}
		err := j.attempt(n, b)
		if j.settle(b, err) {
			return
		}
		if err == nil {
			n++
			back = j.pace.retry
			continue
		}
		again := time.NewTimer(back)
		select {
		case <-again.C:
		case <-j.stop:
			again.Stop()
		}
		back = min(2*back, j.pace.slack)
	}
}

// take waits for something to write, and minds the file meanwhile. It is nil when there will be nothing more.
func (j *Journal) take(look <-chan time.Time) *batch {
	for {
		j.mu.Lock()
		b, closed := j.queue, j.closed
		if !b.empty() {
			j.queue, j.underWay, j.since = newBatch(), b, time.Now()
			j.mu.Unlock()
			return b
		}
		j.mu.Unlock()
		if closed {
			return nil
		}
		select {
		case <-j.wake:
		case <-look:
			j.idle(j.mind())
		}
	}
}

// idle notes how a look at the file has ended with nothing to write.
func (j *Journal) idle(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.judge(err)
}

func (j *Journal) attempt(n int, b *batch) error {
	slow := time.AfterFunc(j.pace.stall, func() {
		j.log.Warn("the disk does not answer", "journal", j.path, "since", j.pace.stall, "records", len(b.ops))
	})
	defer slow.Stop()
	j.fault(n, Before)
	if err := j.mind(); err != nil {
		return err
	}
	err := j.disk.commit(b)
	if bad := new(CorruptError); errors.As(err, &bad) { // it was spoiled in that moment
		if err = j.writeBack(bad.Why.Error()); err == nil {
			err = j.disk.commit(b)
		}
	}
	if err != nil {
		return err
	}
	j.fault(n, After)
	return nil
}

// settle tells those who wait how the attempt ended, and says whether it was the last one. What could
// not be written goes back under what was queued meanwhile.
func (j *Journal) settle(b *batch, err error) (over bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.underWay = nil
	j.judge(err)
	if err == nil {
		j.known = j.known.with(b)
		b.end(nil)
		return false
	}
	j.queue = merged(b, j.queue)
	for _, c := range j.queue.commits {
		c.last = err
	}
	j.broken = refusal(err)
	switch {
	case j.broken:
		j.queue.end(err)
	case j.closed:
		j.queue.end(fmt.Errorf("%w: %w", ErrClosed, err))
	}
	return j.broken || j.closed
}

// judge notes how an attempt has ended, and says what is new. The caller has j.mu.
func (j *Journal) judge(err error) {
	if err == nil {
		if j.failing != nil {
			j.log.Info("the journal is written again", "journal", j.path, "after", time.Since(j.failed).Round(time.Millisecond))
		}
		j.failing = nil
		return
	}
	if j.failing == nil || j.failing.Error() != err.Error() {
		j.log.Error("the journal cannot be written", "journal", j.path, "err", err)
	}
	if j.failing == nil {
		j.failed = time.Now()
	}
	j.failing = err
}

func (b *batch) end(err error) {
	for _, c := range b.commits {
		c.end = err
		close(c.done)
	}
	b.commits = nil
}

// merged is what two batches are together, the second one over the first.
func merged(old, young *batch) *batch {
	if young.clear {
		young.commits = append(old.commits, young.commits...)
		return young
	}
	out := &batch{clear: old.clear, ops: maps.Clone(old.ops), bytes: old.bytes, commits: append(old.commits, young.commits...)}
	for _, e := range young.ops {
		out.add(e)
	}
	return out
}

// waiting counts the records that are not known to be on the disk. The caller has j.mu.
func (j *Journal) waiting() int {
	n := len(j.queue.ops)
	if j.underWay != nil {
		n += len(j.underWay.ops)
	}
	return n
}

// Trouble says in words what keeps the journal from being written, and whether anything does: a disk
// that has not answered for over a second, or the error of the last attempt.
func (j *Journal) Trouble() (string, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	wait := time.Since(j.since)
	switch {
	case j.broken:
		return fmt.Sprintf("nothing more can be recorded: %v", j.failing), true
	case j.underWay != nil && wait > j.pace.stall:
		return fmt.Sprintf("the disk has not answered for %s, %s wait: %s", wait.Round(100*time.Millisecond), count(j.waiting()), j.path), true
	case j.failing != nil:
		return fmt.Sprintf("%s could not be recorded for %s: %v", count(j.waiting()), time.Since(j.failed).Round(100*time.Millisecond), j.failing), true
	}
	return "", false
}
