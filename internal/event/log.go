package event

import "sync"

// Log keeps the newest events and numbers them. Its methods may be called from any goroutine.
type Log struct {
	mu      sync.Mutex
	seq     uint64
	kept    []Event // a ring once full; oldest at next
	next    int
	size    int
	hooks   []func(Event)
	changed chan struct{}
}

// NewLog returns a log that keeps the newest size events. Each hook is called for every event, in
// order and one at a time, so it must not block and must not call the log.
func NewLog(size int, hooks ...func(Event)) *Log {
	return &Log{size: size, hooks: hooks, changed: make(chan struct{})}
}

// Record numbers the event, keeps it and hands it on. It never fails and never waits for a reader.
func (l *Log) Record(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq = l.seq
	if len(l.kept) < l.size {
		l.kept = append(l.kept, e)
	} else {
		l.kept[l.next] = e
		l.next = (l.next + 1) % l.size
	}
	for _, h := range l.hooks {
		h(e)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// Since returns the kept events with a number above cursor, oldest first, and a channel that is
// closed when there are more. A reader that fell behind what is kept sees a gap in the numbers.
func (l *Log) Since(cursor uint64) ([]Event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Event
	for i := range l.kept {
		e := l.kept[(l.next+i)%len(l.kept)]
		if e.Seq > cursor {
			out = append(out, e)
		}
	}
	return out, l.changed
}
