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
	// maxQueued bounds the words that wait while there is no stream; the oldest go first.
	maxQueued = 1024
	// sayAgain is how far back words of a broken stream are said again on the next one: they may have
	// been written and not read. Failures, checkpoints and phases bear repetition.
	sayAgain = 2 * time.Second
)

// queued is a word with the time at which it was said, so that its age is right when it is sent.
type queued struct {
	word *api.FromService
	at   time.Time
	sent time.Time // zero until it was
}

type lifeKey struct {
	incarnation   uint64
	rank, attempt uint32
}

// outbox holds what a service has to say until it is sent. Words keep their order; of the heartbeats of
// one life the newest stands.
type outbox struct {
	wake chan struct{} // of capacity 1: there is something to send

	mu      sync.Mutex
	words   []queued
	recent  []queued // sent last, and worth repeating
	beats   map[lifeKey]*api.Beat
	said    map[lifeKey]time.Time
	flushed time.Time
	dropped int
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), beats: map[lifeKey]*api.Beat{}, said: map[lifeKey]time.Time{}}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// word queues a word; the oldest is dropped if there are too many, phases before others.
func (o *outbox) word(w *api.FromService, now time.Time) {
	o.mu.Lock()
	o.words = append(o.words, queued{word: w, at: now})
	for len(o.words) > maxQueued {
		// A worker may say phases without end: of what is lost, they go first.
		oldest := max(slices.IndexFunc(o.words, func(q queued) bool { return q.word.GetPhase() != nil }), 0)
		o.words = slices.Delete(o.words, oldest, oldest+1)
		o.dropped++
	}
	o.mu.Unlock()
	o.signal()
}

// beat queues a heartbeat. One without a step leaves the step of one that waits already.
func (o *outbox) beat(b *api.Beat, now time.Time) {
	l := b.GetLife()
	key := lifeKey{l.GetIncarnation(), l.GetRank(), l.GetAttempt()}
	o.mu.Lock()
	if was := o.beats[key]; was != nil && was.HasStep && !b.HasStep {
		b.HasStep, b.Step, b.Guessed = true, was.Step, was.Guessed
	}
	o.beats[key], o.said[key] = b, now
	o.mu.Unlock()
	o.signal()
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
		for key, b := range o.beats {
			b.AgeMs += now.Sub(o.said[key]).Milliseconds()
			batch.Beats = append(batch.Beats, b)
		}
		clear(o.beats)
		clear(o.said)
		o.flushed = now
		out = append(out, queued{word: &api.FromService{Word: &api.FromService_Beats{Beats: batch}}, at: now})
	}
	out = append(out, o.words...)
	o.words = nil
	return out, 0
}

// sent notes that a word went out.
func (o *outbox) sent(q queued, now time.Time) {
	switch q.word.Word.(type) {
	case *api.FromService_Failure, *api.FromService_Checkpoint, *api.FromService_Phase:
	default:
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recent = slices.DeleteFunc(o.recent, func(r queued) bool { return now.Sub(r.sent) > sayAgain })
	if len(o.recent) < maxQueued {
		q.sent = now
		o.recent = append(o.recent, q)
	}
}

// broke takes back what a broken stream may not have carried: the words that were not sent, and those
// that were sent last.
func (o *outbox) broke(unsent []queued, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	again := slices.DeleteFunc(o.recent, func(r queued) bool { return now.Sub(r.sent) > sayAgain })
	o.recent = nil
	o.words = slices.Concat(again, unsent, o.words)
}

// fresh makes ready for a new stream: answers go, because they belong to the session that brought the
// order, and states go, because the Hello that is taken next tells newer ones.
func (o *outbox) fresh() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.words = slices.DeleteFunc(o.words, func(q queued) bool {
		switch q.word.Word.(type) {
		case *api.FromService_Answer, *api.FromService_Worker:
			return true
		}
		return false
	})
}

// lost returns how many words were dropped since it was last asked.
func (o *outbox) lost() int {
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
	passed := now.Sub(q.at).Milliseconds()
	if passed <= 0 {
		return q.word
	}
	switch w := q.word.Word.(type) {
	case *api.FromService_Failure:
		c := proto.CloneOf(q.word)
		c.GetFailure().AgeMs = w.Failure.AgeMs + passed
		return c
	case *api.FromService_Checkpoint:
		c := proto.CloneOf(q.word)
		c.GetCheckpoint().AgeMs = w.Checkpoint.AgeMs + passed
		return c
	case *api.FromService_Phase:
		c := proto.CloneOf(q.word)
		c.GetPhase().AgeMs = w.Phase.AgeMs + passed
		return c
	}
	return q.word
}
