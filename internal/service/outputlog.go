package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/job"
)

const (
	// maxPending is how much of a log may wait for the disk, in bytes.
	maxPending = 4 << 20
	// maxSpare is how much memory a quiet log holds on to, in bytes.
	maxSpare = 256 << 10
	// stallTime is for how long a disk that is behind may hold a worker up before output is dropped.
	stallTime = time.Second
	// retryTime is when a write that failed is tried again.
	retryTime = time.Second
)

// logFile writes a log behind the back of whoever fills it. While the disk takes something, the one
// waits for the other; a disk that takes nothing costs output, never time.
type logFile struct {
	sink  io.WriteCloser
	retry time.Duration
	say   func(error) // called at the first write that fails

	mu      sync.Mutex
	pending []byte
	busy    bool          // a batch is being written
	stuck   bool          // the disk takes nothing: what has no room is dropped at once
	failed  bool          // said already
	closing bool          // nothing comes any more
	gap     int64         // bytes dropped since the last that was taken
	lost    int64         // bytes dropped in all
	changed chan struct{} // closed and made anew at every change
	done    chan struct{}
}

// openLog opens a log for appending. A full disk is no error here: the log is written when there is
// room.
func openLog(path string, logs job.Logs, notice func(string)) (*logFile, error) {
	say := func(err error) { notice(fmt.Sprintf("%s: %v", filepath.Base(path), err)) }
	file := &appending{path: path}
	if _, err := file.Write(nil); err != nil && !full(err) {
		return nil, fmt.Errorf("open log: %w", err)
	}
	if logs.MaxSize > 0 {
		file.Close()
		return startLog(newSegmented(path, logs), retryTime, say), nil
	}
	return startLog(file, retryTime, say), nil
}

// full says whether an error is the disk's, and may pass.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func startLog(sink io.WriteCloser, retry time.Duration, say func(error)) *logFile {
	l := &logFile{sink: sink, retry: retry, say: say, changed: make(chan struct{}), done: make(chan struct{})}
	go l.write()
	return l
}

// put takes data over. It waits where the disk is behind, and drops where it is stuck.
func (l *logFile) put(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stuck && !l.hasRoom(len(data)) {
		l.stuck = !l.await(time.Now().Add(stallTime), func() bool { return l.hasRoom(len(data)) || l.stuck })
	}
	if !l.hasRoom(len(data)) {
		l.gap += int64(len(data))
		l.lost += int64(len(data))
		return
	}
	if l.gap > 0 {
		l.pending = fmt.Appendf(l.pending, "\n[vigil: %d bytes of output are missing here: the log could not be written]\n", l.gap)
		l.gap = 0
	}
	l.pending = append(l.pending, data...)
	l.tell()
}

func (l *logFile) hasRoom(n int) bool { return len(l.pending)+n <= maxPending }

// tell wakes everybody who waits for a change. The lock is held.
func (l *logFile) tell() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// await waits, with the lock held before and after, until ok or limit. It reports ok.
func (l *logFile) await(limit time.Time, ok func() bool) bool {
	timer := time.NewTimer(time.Until(limit))
	defer timer.Stop()
	for !ok() {
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
			l.mu.Lock()
		case <-timer.C:
			l.mu.Lock()
			return ok()
		}
	}
	return true
}

// flush returns when everything is in the file, at limit, or at once where the disk takes nothing.
func (l *logFile) flush(limit time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.await(limit, func() bool { return l.stuck || len(l.pending) == 0 && !l.busy })
}

// dropped is how many bytes could not be kept.
func (l *logFile) dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// close writes what waits, once more where that has failed, and closes the file. A disk that hangs
// does not hold it up for longer than stallTime.
func (l *logFile) close() {
	l.mu.Lock()
	if !l.closing {
		l.closing = true
		l.tell()
	}
	l.mu.Unlock()
	timer := time.NewTimer(stallTime)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
	}
}

// write is the goroutine that writes.
func (l *logFile) write() {
	defer close(l.done)
	defer l.sink.Close()
	var spare []byte
	for {
		batch, more := l.next(spare)
		if !more {
			break
		}
		spare = l.writeOut(batch)
	}
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	if lost > 0 {
		l.say(fmt.Errorf("%d bytes of output were dropped because it could not be written", lost))
	}
}

// next waits for something to write, and leaves spare to be filled meanwhile.
func (l *logFile) next(spare []byte) (batch []byte, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 && cap(spare) > maxSpare {
		spare = nil
	}
	for len(l.pending) == 0 && !l.closing {
		changed := l.changed
		l.mu.Unlock()
		<-changed
		l.mu.Lock()
	}
	batch, l.pending = l.pending, spare[:0]
	l.busy = len(batch) > 0
	l.tell()
	return batch, l.busy
}

// writeOut writes a batch, again and again if need be, and returns its memory.
func (l *logFile) writeOut(batch []byte) []byte {
	for rest := batch; len(rest) > 0; {
		n, err := l.sink.Write(rest)
		rest = rest[n:]
		if err == nil && len(rest) > 0 {
			err = io.ErrShortWrite
		}
		if err != nil && !l.pause(err) {
			l.mu.Lock()
			l.lost += int64(len(rest))
			l.mu.Unlock()
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy, l.stuck = false, false
	l.tell()
	return batch
}

// pause waits after a write that failed. It is false when nothing comes any more: that was the last try.
func (l *logFile) pause(err error) bool {
	l.mu.Lock()
	first := !l.failed
	l.stuck, l.failed = true, true
	l.tell()
	l.mu.Unlock()
	if first {
		l.say(fmt.Errorf("it cannot be written; what does not fit into 4 MiB of memory until it can is dropped and counted: %w", err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return false
	}
	l.await(time.Now().Add(l.retry), func() bool { return l.closing })
	return true
}

// appending is a file that is made when it is first written to.
type appending struct {
	path string
	file *os.File
}

func (a *appending) Write(p []byte) (int, error) {
	if a.file == nil {
		if err := os.MkdirAll(filepath.Dir(a.path), 0o750); err != nil {
			return 0, err
		}
		f, err := os.OpenFile(a.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
		if err != nil {
			return 0, err
		}
		a.file = f
	}
	return a.file.Write(p)
}

func (a *appending) Close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}
