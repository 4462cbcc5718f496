package controller

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"
)

const (
	// outletHalf is how much of what nobody reads is kept from its beginning, and as much from its end, in
	// bytes.
	outletHalf = 512 << 10
	// outletFarewell is how long, at the end, what has not been read is waited for.
	outletFarewell = 2 * time.Second
)

// outlet writes for those who must not wait: a pipe that nobody empties, or a terminal that is held, holds
// up nobody but the outlet. What is given in one Write stays together and is written in order. When too
// much has gathered, its middle is left out, and that is said at its place. It may be used from many
// goroutines.
type outlet struct {
	to     io.Writer
	gap    func(records, bytes int) []byte // says what was left out
	mu     sync.Mutex
	first  [][]byte // to be written next
	last   [][]byte // after the gap
	kept   [2]int   // bytes in first and in last
	lost   [2]int   // records and bytes of the gap
	idle   chan struct{}
	writes bool // a goroutine does
}

// newOutlet returns an outlet to w. The format is that of the log, text or json.
func newOutlet(w io.Writer, format string) *outlet {
	idle := make(chan struct{})
	close(idle)
	return &outlet{to: w, idle: idle, gap: func(records, bytesLost int) []byte {
		var said bytes.Buffer
		if log, err := NewLogger(&said, format, "info"); err == nil {
			log.Warn("part of this log was not written: nobody read it", "records", records, "bytes", bytesLost)
		}
		return said.Bytes()
	}}
}

// Write takes a copy of b and never waits for whoever reads.
func (o *outlet) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := bytes.Clone(b)
	if len(o.last) == 0 && o.lost[0] == 0 && (o.kept[0]+len(text) <= outletHalf || len(o.first) == 0) {
		o.first = append(o.first, text)
		o.kept[0] += len(text)
	} else {
		o.last = append(o.last, text)
		o.kept[1] += len(text)
		for o.kept[1] > outletHalf && len(o.last) > 1 {
			o.lost[0]++
			o.lost[1] += len(o.last[0])
			o.kept[1] -= len(o.last[0])
			o.last = o.last[1:]
		}
	}
	if !o.writes {
		o.writes, o.idle = true, make(chan struct{})
		go o.drain()
	}
	return len(b), nil
}

// drain writes until there is nothing more.
func (o *outlet) drain() {
	for {
		text := o.next()
		if text == nil {
			return
		}
		_, _ = o.to.Write(text) // who has closed does not want it
	}
}

// next takes what is to be written next; nil says that there is nothing, and that drain has ended.
func (o *outlet) next() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.first) == 0 {
		o.first, o.last, o.kept = o.last, nil, [2]int{o.kept[1], 0}
		if o.lost[0] > 0 {
			text := o.gap(o.lost[0], o.lost[1])
			o.lost = [2]int{}
			return text
		}
	}
	if len(o.first) == 0 {
		o.writes = false
		close(o.idle)
		return nil
	}
	text := o.first[0]
	o.first = o.first[1:]
	o.kept[0] -= len(text)
	return text
}

// flush waits until everything is written, for outletFarewell at most: who reads nothing at the end does
// not keep the program.
func (o *outlet) flush(ctx context.Context) error {
	o.mu.Lock()
	idle := o.idle
	o.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, outletFarewell)
	defer cancel()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	return nil
}
