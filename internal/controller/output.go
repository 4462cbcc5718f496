package controller

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// pollOutput is how often a log that has nothing new is looked at again.
const pollOutput = 50 * time.Millisecond

// longestLine is how much of a line is shown at once; the log has it whole.
const longestLine = 64 << 10

// showOutput shows what the workers print as it comes, each line after its role and rank, and returns
// what shows the rest and ends that.
func (c *Controller) showOutput() func(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	var mu sync.Mutex // one line at a time
	done := make(chan struct{})
	go func() {
		defer close(done)
		cursor := uint64(0)
		for {
			events, more := c.events.Since(cursor)
			for _, e := range events {
				cursor = e.Seq
				if e.Kind != event.WorkerStarted {
					continue
				}
				dir := filepath.Join(c.ground.logs, string(e.Role), strconv.Itoa(e.Incarnation), fmt.Sprintf("%d.%d", e.Rank, 1))
				prefix := fmt.Sprintf("[%s %d] ", e.Role, e.Rank)
				gone := func() bool { return ctx.Err() != nil || c.over(e.Role, e.Incarnation) }
				for _, name := range []string{"stdout.log", "stderr.log"} {
					following.Go(func() { follow(filepath.Join(dir, name), gone, &prefixed{mu: &mu, w: c.opts.Output, prefix: prefix}) })
				}
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func(context.Context) error {
		cancel()
		<-done
		following.Wait()
		return nil
	}
}

// over reports whether that life of the role has been replaced.
func (c *Controller) over(name role.Name, incarnation int) bool {
	return c.engine.Status(name).Incarnation > incarnation+1
}

// follow copies a growing file until its writer is gone and all of it is read.
func follow(path string, gone func() bool, to *prefixed) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, longestLine)
	for {
		last := gone()
		for {
			part, err := in.ReadSlice('\n')
			to.write(part, errors.Is(err, bufio.ErrBufferFull))
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
		}
		if last {
			to.flush()
			return
		}
		<-time.After(pollOutput)
	}
}

// prefixed writes whole lines, each after a prefix.
type prefixed struct {
	mu     *sync.Mutex
	w      io.Writer
	prefix string
	rest   []byte // a line whose end has not come
}

// write takes in a part of the file. With full, it is shown although its line has not ended.
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
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.w.Write(line)
}
