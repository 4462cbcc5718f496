package service

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/job"
	"vigil/internal/proc"
)

const (
	// pipeSize is what the kernel holds for a worker while its service cannot read, in bytes. It is not
	// larger because of what pipe(7) says of pipe-user-pages-soft.
	pipeSize = 256 << 10
	// readSize is how much is read at once, in bytes.
	readSize = 64 << 10
	// drainTime bounds how long after a worker's end its output is still read where somebody else holds
	// it open and the life is to be cleared away.
	drainTime = 2 * time.Second
	// tailBytes is how much of the end of a stream is remembered, in bytes.
	tailBytes = 64 << 10
)

// output is what one worker life writes. Each life has pipes and files of its own, so that nothing of
// one can land in the files of another.
type output struct {
	stdout, stderr *outlet
	childEnds      []*os.File                // the worker's standard output and error, until it has been started
	limit          atomic.Pointer[time.Time] // how long close reads on; nil: not at all
}

// openOutput makes the pipes of a life and begins to read them. Where the disk is full it is not the
// worker that finds out, but notice, which is told in words. scan, when it is not nil, is given everything that is written.
func openOutput(files lifeFiles, logs job.Logs, scan func() func([]byte), notice func(string)) (*output, error) {
	o := &output{}
	for _, one := range []struct {
		at   **outlet
		path string
	}{{&o.stdout, files.stdout}, {&o.stderr, files.stderr}} {
		file, err := openLog(one.path, logs, notice)
		if err != nil {
			o.close()
			return nil, err
		}
		var each func([]byte)
		if scan != nil {
			each = scan()
		}
		out, childEnd, err := openOutlet(file, each)
		if err != nil {
			file.close()
			o.close()
			return nil, err
		}
		*one.at, o.childEnds = out, append(o.childEnds, childEnd)
	}
	return o, nil
}

// started gives up our share of the worker's ends: from here on the pipes end with those who write.
func (o *output) started() {
	for _, f := range o.childEnds {
		f.Close()
	}
	o.childEnds = nil
}

// drain takes in what the worker, which has ended, has written, and returns when it is in the files. A
// process that still holds the pipes open does not hold it up, nor does a disk that takes nothing.
func (o *output) drain() {
	limit := time.Now().Add(drainTime)
	o.limit.Store(&limit)
	o.stdout.drain()
	o.stderr.drain()
	o.stdout.log.flush(limit)
	o.stderr.log.flush(limit)
}

// close reads to the end, but not for longer than drainTime after the worker's, and closes everything.
func (o *output) close() {
	o.started()
	limit := time.Now()
	if later := o.limit.Load(); later != nil {
		limit = *later
	}
	for _, out := range []*outlet{o.stdout, o.stderr} {
		if out != nil {
			out.close(limit)
		}
	}
}

// outlet is one stream of one worker life: a pipe that is read as fast as it fills, whatever becomes of
// the log.
type outlet struct {
	pipe    *os.File
	raw     syscall.RawConn
	log     *logFile
	each    func([]byte) // nil: nobody else wants it
	ended   chan struct{}
	closing atomic.Bool

	reading sync.Mutex // guards what follows
	buf     []byte
	tail    tail
}

// openOutlet makes the pipe and begins to read it. childEnd is for the worker.
func openOutlet(log *logFile, each func([]byte)) (o *outlet, childEnd *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	childEnd = os.NewFile(uintptr(ends[1]), "|1")
	_, _ = unix.FcntlInt(uintptr(ends[0]), unix.F_SETPIPE_SZ, pipeSize) // else it has the usual size
	if err := unix.SetNonblock(ends[0], true); err != nil {
		unix.Close(ends[0])
		childEnd.Close()
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	o = &outlet{pipe: os.NewFile(uintptr(ends[0]), "|0"), log: log, each: each, ended: make(chan struct{}), buf: make([]byte, readSize)}
	if o.raw, err = o.pipe.SyscallConn(); err != nil {
		o.pipe.Close()
		childEnd.Close()
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	go o.read()
	return o, childEnd, nil
}

// read reads until nobody can write any more, or close.
func (o *outlet) read() {
	defer close(o.ended)
	_ = o.raw.Read(func(fd uintptr) bool {
		for {
			switch _, err := o.takeOne(int(fd)); {
			case errors.Is(err, unix.EAGAIN):
				return false
			case err != nil:
				return true
			}
		}
	})
}

// errEnded says that there is nothing more to read, ever.
var errEnded = errors.New("the pipe has ended")

// takeOne takes in what lies in the pipe, or readSize of it. The error is unix.EAGAIN when nothing does.
func (o *outlet) takeOne(fd int) (int, error) {
	o.reading.Lock()
	defer o.reading.Unlock()
	if o.closing.Load() {
		return 0, errEnded
	}
	n, err := unix.Read(fd, o.buf)
	switch {
	case errors.Is(err, unix.EINTR):
		return 0, nil
	case err != nil:
		return 0, err
	case n == 0:
		return 0, errEnded
	}
	data := o.buf[:n]
	o.tail.add(data)
	if o.each != nil {
		o.each(data)
	}
	o.log.put(data)
	return n, nil
}

// drain takes in what lies in the pipe now. As much as a pipe can hold is enough: what comes after that
// was not written by who has ended.
func (o *outlet) drain() {
	_ = o.raw.Control(func(fd uintptr) {
		for left := pipeSize; left > 0; {
			n, err := o.takeOne(int(fd))
			if err != nil {
				return
			}
			left -= n
		}
	})
}

// last returns the last n lines that were written; the last one need not have ended.
func (o *outlet) last(n int) []string {
	o.reading.Lock()
	defer o.reading.Unlock()
	return proc.LastLines(o.tail.text(), n)
}

func (o *outlet) close(limit time.Time) {
	timer := time.NewTimer(time.Until(limit))
	defer timer.Stop()
	select {
	case <-o.ended:
	case <-timer.C:
	}
	o.closing.Store(true)
	o.pipe.Close()
	<-o.ended
	o.log.close()
}

// tail is the end of a stream, up to tailBytes of it.
type tail struct{ buf []byte }

func (t *tail) add(data []byte) {
	switch {
	case len(data) >= tailBytes:
		t.buf = append(t.buf[:0], data[len(data)-tailBytes:]...)
		return
	case len(t.buf)+len(data) > 2*tailBytes: // moved seldom: half of the buffer is slack
		keep := tailBytes - len(data)
		t.buf = t.buf[:copy(t.buf, t.buf[len(t.buf)-keep:])]
	}
	t.buf = append(t.buf, data...)
}

func (t *tail) text() []byte { return t.buf[max(0, len(t.buf)-tailBytes):] }
