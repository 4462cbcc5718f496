package service

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/role"
)

const (
	// timerSwitch and timerFile are the variables of torchelastic's file timer: a program asks for it by
	// setting the first to 1, and finds in the second where its timers are taken
	// (torch/distributed/elastic/agent/server/local_elastic_agent.py).
	timerSwitch, timerFile = "TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"
	// maxTimers is how many timers of one worker life may run.
	maxTimers = 1024
	// maxTimerLine is the longest request, in bytes: what a pipe takes in one piece.
	maxTimerLine = 4096
)

// timerRequest is a line that torchelastic's client writes: set a timer, or with a negative time release
// it (torch/distributed/elastic/timer/file_based_local_timer.py).
type timerRequest struct {
	PID     int     `json:"pid"`
	Scope   string  `json:"scope_id"`
	Expires float64 `json:"expiration_time"` // seconds since 1970, on the machine's clock
	Signal  int     `json:"signal"`          // that ends the process; none if not positive
}

type timerID struct {
	pid   int
	scope string
}

// fileTimers are the timers that one worker life has set. What torchelastic calls a file is the end of a
// pipe of ours: it needs no name in a directory, so that nothing of it can be left behind.
type fileTimers struct {
	read, write *os.File
	expired     func(timerRequest)
	junk        func(string)

	mu    sync.Mutex
	set   map[timerID]timerRequest
	alarm *time.Timer
	said  bool // junk was
}

// openTimers gives a worker that asks for it torchelastic's file timer.
func (s *Service) openTimers(w *worker) error {
	if !slices.Contains(w.env, timerSwitch+"=1") {
		return nil
	}
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("open file timer: %w", err)
	}
	t := &fileTimers{read: read, write: write, set: map[timerID]timerRequest{}}
	t.expired = func(r timerRequest) { s.timerExpired(w, r) }
	t.junk = func(what string) {
		s.log.Warn("worker sets a timer that cannot be meant; more of it is dropped", "rank", w.life.Rank, "request", what)
	}
	t.alarm = time.AfterFunc(math.MaxInt64, t.ring)
	w.timers = t
	// Fd would make the pipe blocking.
	raw, err := read.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			w.env = slices.DeleteFunc(w.env, func(pair string) bool { return strings.HasPrefix(pair, timerFile+"=") })
			w.env = append(w.env, fmt.Sprintf("%s=/proc/%d/fd/%d", timerFile, os.Getpid(), fd))
			slices.Sort(w.env)
		})
	}
	if err != nil {
		return fmt.Errorf("open file timer: %w", err)
	}
	s.running.Go(t.listen)
	return nil
}

// close forgets all timers. It may be called on nil.
func (t *fileTimers) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	clear(t.set)
	t.alarm.Stop()
	t.mu.Unlock()
	t.read.Close()
	t.write.Close()
}

// listen takes requests until the pipe is closed.
func (t *fileTimers) listen() {
	r := bufio.NewReaderSize(t.read, maxTimerLine)
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			line = []byte("a line of more than 4096 bytes")
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.ReadSlice('\n')
			}
		}
		if err != nil {
			return
		}
		t.take(line)
	}
}

// take takes one request.
func (t *fileTimers) take(line []byte) {
	var r timerRequest
	err := json.Unmarshal(line, &r)
	t.mu.Lock()
	id := timerID{r.PID, r.Scope}
	_, again := t.set[id]
	odd := err != nil || r.PID <= 0 || r.Expires >= 0 && !again && len(t.set) == maxTimers
	switch {
	case odd && !t.said:
		t.said = true
		defer t.junk(strings.ToValidUTF8(string(line[:min(len(line), 200)]), "\uFFFD"))
	case odd:
	case r.Expires < 0:
		delete(t.set, id)
	default:
		t.set[id] = r
	}
	t.arm()
	t.mu.Unlock()
}

// arm sets the alarm to the next timer. The lock is held.
func (t *fileTimers) arm() {
	next := math.Inf(1)
	for _, r := range t.set {
		next = min(next, r.Expires)
	}
	if math.IsInf(next, 1) {
		t.alarm.Stop()
		return
	}
	// Never longer than a second, since the machine's clock may be set.
	t.alarm.Reset(time.Duration(max(0, min(next-clock(), 1)) * float64(time.Second)))
}

// clock is the machine's time in seconds since 1970.
func clock() float64 { return float64(time.Now().UnixNano()) / 1e9 }

// ring tells the timers that have run out, one for each process: the first whose signal is one. All
// timers of that process are released then, as torchelastic does; of others only those that have run out.
func (t *fileTimers) ring() {
	t.mu.Lock()
	now := clock()
	var out []timerRequest
	for _, r := range t.set {
		if r.Expires <= now {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b timerRequest) int { return int(math.Copysign(1, a.Expires-b.Expires)) })
	first := map[int]bool{}
	var told []timerRequest
	for _, r := range out {
		if r.Signal > 0 && !first[r.PID] {
			first[r.PID] = true
			told = append(told, r)
		}
	}
	for id := range t.set {
		if first[id.pid] || t.set[id].Expires <= now {
			delete(t.set, id)
		}
	}
	t.arm()
	t.mu.Unlock()
	for _, r := range told {
		t.expired(r)
	}
}

// timerExpired ends the process whose timer has run out, as it has asked for, and tells the failure. Only
// a process of the worker's own session is ended.
func (s *Service) timerExpired(w *worker, r timerRequest) {
	session, err := unix.Getsid(r.PID)
	if err != nil {
		return // it has ended
	}
	s.change(func(out *words) {
		switch {
		case !s.listensTo(w) || w.proc == nil:
		case session != w.proc.PID():
			s.log.Warn("a timer of a stranger has run out; nothing is done", "rank", w.life.Rank, "pid", r.PID)
		default:
			scope := r.Scope[:min(len(r.Scope), 200)]
			out.failure(role.Failure{Life: w.life, Cause: role.Stuck, At: time.Now(), Log: w.files.stderr,
				Detail: fmt.Sprintf("its torchelastic timer %q has run out (pid %d)", scope, r.PID)})
			if r.PID == w.proc.PID() {
				err = w.proc.Signal(unix.Signal(r.Signal))
			} else {
				err = unix.Kill(r.PID, unix.Signal(r.Signal))
			}
		}
	})
	if err != nil {
		s.log.Warn("a process whose timer has run out is not ended", "rank", w.life.Rank, "pid", r.PID, "err", err)
	}
}
