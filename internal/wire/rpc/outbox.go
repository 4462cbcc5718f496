package rpc

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"vigil/api"
)

const (
	// beatsApart is the least time between two batches of heartbeats.
	beatsApart = 50 * time.Millisecond
	// maxPerLife bounds how many failures, notices and phases of one life wait, each kind for itself.
	maxPerLife = 64
)

// queued is a word with the time at which it was said, so that its age is right when it is sent.
type queued struct {
	word *api.FromService
	at   time.Time
}

type lifeKey struct {
	incarnation   uint64
	rank, attempt uint32
}

func keyOf(l *api.Life) lifeKey {
	return lifeKey{l.GetIncarnation(), l.GetRank(), l.GetAttempt()}
}

// queuedBeat is a heartbeat with the time at which the worker said it.
type queuedBeat struct {
	beat *api.Beat
	at   time.Time
}

// outbox holds what a service has to say until it is sent. It is bounded by the number of lives, whatever a
// worker says:
//
//   - of a state (a heartbeat, a worker's state, a look at its CPU time, a checkpoint, a notice of one text) the
//     newest of each life stands;
//   - of what happened (failures, phases) the first maxPerLife of each life stand, but for phases that have ended,
//     which go first. What is dropped is counted.
//
// So no word of one kind or life can push out another's.
type outbox struct {
	wake chan struct{} // of capacity 1: there is something to send

	mu      sync.Mutex
	words   []queued
	beats   map[lifeKey]queuedBeat
	flushed time.Time
	dropped uint64
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), beats: map[lifeKey]queuedBeat{}}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// word queues a word.
func (o *outbox) word(w *api.FromService, now time.Time) {
	o.mu.Lock()
	o.queue(queued{word: w, at: now})
	o.mu.Unlock()
	o.signal()
}

// queue puts a word behind the others, in the place of one that it replaces. The caller has the lock.
func (o *outbox) queue(q queued) {
	if i := slices.IndexFunc(o.words, func(old queued) bool { return replaces(q.word, old.word) }); i >= 0 {
		o.words = slices.Delete(o.words, i, i+1)
	}
	if life := boundedBy(q.word); life != nil && o.waiting(q.word) >= maxPerLife && !o.makeRoom(q.word) {
		o.dropped++
		return
	}
	o.words = append(o.words, q)
}

// replaces reports whether a word is a newer value of the state that an older one is.
func replaces(w, old *api.FromService) bool {
	switch w := w.Word.(type) {
	case *api.FromService_Worker:
		was := old.GetWorker() // each state is told once: what it is the sign of happens at its first
		return was != nil && was.State == w.Worker.State && keyOf(was.Life) == keyOf(w.Worker.Life)
	case *api.FromService_Starved:
		was := old.GetStarved()
		if was == nil || keyOf(was.Life) != keyOf(w.Starved.Life) {
			return false
		}
		w.Starved.WaitedMs += was.WaitedMs
		return true
	case *api.FromService_Checkpoint:
		was := old.GetCheckpoint()
		return was != nil && keyOf(was.Life) == keyOf(w.Checkpoint.Life)
	case *api.FromService_Notice:
		was := old.GetNotice()
		return was != nil && was.Text == w.Notice.Text && keyOf(was.Life) == keyOf(w.Notice.Life)
	}
	return false
}

// boundedBy returns the life of a word of which several may wait; nil for others.
func boundedBy(w *api.FromService) *api.Life {
	switch w := w.Word.(type) {
	case *api.FromService_Failure:
		return w.Failure.GetLife()
	case *api.FromService_Notice:
		return w.Notice.GetLife()
	case *api.FromService_Phase:
		return w.Phase.GetLife()
	}
	return nil
}

// alike reports whether two words are of one kind and life.
func alike(a, b *api.FromService) bool {
	return sameKind(a, b) && keyOf(boundedBy(a)) == keyOf(boundedBy(b)) && a.GetFailure().GetWholeService() == b.GetFailure().GetWholeService()
}

func sameKind(a, b *api.FromService) bool {
	switch a.Word.(type) {
	case *api.FromService_Failure:
		return b.GetFailure() != nil
	case *api.FromService_Notice:
		return b.GetNotice() != nil
	case *api.FromService_Phase:
		return b.GetPhase() != nil
	}
	return false
}

func (o *outbox) waiting(w *api.FromService) int {
	n := 0
	for _, q := range o.words {
		if alike(q.word, w) {
			n++
		}
	}
	return n
}

// makeRoom drops the phase of the same life that has begun and ended longest ago, else its oldest. It reports
// false for what is no phase: of failures and notices the first stand.
func (o *outbox) makeRoom(w *api.FromService) bool {
	if w.GetPhase() == nil {
		return false
	}
	oldest := -1
	for i, q := range o.words {
		if !alike(q.word, w) {
			continue
		}
		if oldest < 0 {
			oldest = i
		}
		p := q.word.GetPhase()
		if !p.Begin {
			continue
		}
		end := slices.IndexFunc(o.words[i+1:], func(later queued) bool {
			return alike(later.word, w) && later.word.GetPhase().Name == p.Name
		})
		if end >= 0 {
			o.words = slices.Delete(o.words, i+1+end, i+2+end)
			o.words = slices.Delete(o.words, i, i+1)
			o.dropped += 2
			return true
		}
	}
	o.words = slices.Delete(o.words, oldest, oldest+1)
	o.dropped++
	return true
}

// beat queues a heartbeat. One without a step leaves the step of one that waits already.
func (o *outbox) beat(b *api.Beat, now time.Time) {
	o.mu.Lock()
	o.queueBeat(queuedBeat{b, now.Add(-time.Duration(b.AgeMs) * time.Millisecond)})
	o.mu.Unlock()
	o.signal()
}

// queueBeat takes a heartbeat in beside what waits of its life: the newest time and the newest step stand. The caller
// has the lock.
func (o *outbox) queueBeat(q queuedBeat) {
	key := keyOf(q.beat.GetLife())
	if was, ok := o.beats[key]; ok {
		older, newer := was, q
		if was.at.After(q.at) {
			older, newer = q, was
		}
		if b := older.beat; b.HasStep && !newer.beat.HasStep {
			newer.beat.HasStep, newer.beat.Step, newer.beat.Guessed = true, b.Step, b.Guessed
		}
		q = newer
	}
	o.beats[key] = q
}

// take returns what is to be sent now, heartbeats first, and if only heartbeats wait for their time, how
// long that is; 0 if nothing waits.
func (o *outbox) take(now time.Time) ([]queued, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rest := beatsApart - now.Sub(o.flushed)
	var out []queued
	switch {
	case len(o.beats) == 0:
	case rest > 0 && len(o.words) == 0:
		return nil, rest
	default:
		batch := &api.Beats{}
		for _, b := range o.beats {
			b.beat.AgeMs = max(now.Sub(b.at).Milliseconds(), 0)
			batch.Beats = append(batch.Beats, b.beat)
		}
		clear(o.beats)
		o.flushed = now
		out = append(out, queued{word: &api.FromService{Word: &api.FromService_Beats{Beats: batch}}, at: now})
	}
	out = append(out, o.words...)
	o.words = nil
	return out, 0
}

// broke takes back what a broken stream has not carried. Words that came since stand behind it.
func (o *outbox) broke(unsent []queued) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since := o.words
	o.words = nil
	for _, q := range unsent {
		batch := q.word.GetBeats()
		if batch == nil {
			o.queue(q)
			continue
		}
		for _, b := range batch.Beats {
			o.queueBeat(queuedBeat{b, q.at.Add(-time.Duration(b.AgeMs) * time.Millisecond)})
		}
	}
	for _, q := range since {
		o.queue(q)
	}
}

// toldByHello drops the words that the Hello of a new session tells, and answers, which belong to the session that
// brought the order. Heartbeats stay: each is newer than what the Hello says of its life, or as new.
func (o *outbox) toldByHello() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.words = nil
}

// lost returns how many words were dropped since it was last asked.
func (o *outbox) lost() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.dropped
	o.dropped = 0
	return n
}

// empty says whether nothing waits.
func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.words) == 0 && len(o.beats) == 0
}

// aged returns the word with its age at now.
func (q queued) aged(now time.Time) *api.FromService {
	return AgedBy(q.word, now.Sub(q.at))
}

// AgedBy returns a word as it is to be told when time has passed since it was made: every age in it is longer by that. The
// word itself is not changed.
func AgedBy(word *api.FromService, passed time.Duration) *api.FromService {
	ms := passed.Milliseconds()
	if ms <= 0 {
		return word
	}
	c := word
	switch word.Word.(type) {
	case *api.FromService_Beats:
		c = proto.CloneOf(word)
		for _, b := range c.GetBeats().Beats {
			b.AgeMs += ms
		}
	case *api.FromService_Failure:
		c = proto.CloneOf(word)
		c.GetFailure().AgeMs += ms
	case *api.FromService_Checkpoint:
		c = proto.CloneOf(word)
		c.GetCheckpoint().AgeMs += ms
	case *api.FromService_Phase:
		c = proto.CloneOf(word)
		c.GetPhase().AgeMs += ms
	}
	return c
}
