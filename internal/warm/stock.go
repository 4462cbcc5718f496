package warm

import (
	"sync"
	"time"
)

// mostSpares is how many processes stand ready at most.
const mostSpares = 16

// stock holds processes that were forked ahead, while nothing hurried: a restart then waits for no fork. There are
// as many as were ever taken together, since the workers of a role start together. They bear the fork server's
// signs and end with it.
type stock struct {
	after time.Duration // how long nothing must have been taken before it is filled up
	bear  func() (*born, error)

	mu     sync.Mutex
	ready  []*born
	wanted int             // how many shall stand ready
	asked  map[string]bool // who was started since the stock was last filled up
	fill   *time.Timer
	closed bool
}

// order says that a worker is about to be started, and has the stock filled up later. The same worker counts once, however
// often it is started in a row.
func (s *stock) order(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if s.asked == nil {
		s.asked = map[string]bool{}
	}
	s.asked[who] = true
	s.wanted = min(max(s.wanted, len(s.asked)), mostSpares)
	s.fillLater()
}

// expect has so many processes stand ready as did at an earlier fork server.
func (s *stock) expect(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == 0 || s.closed {
		return
	}
	s.wanted = max(s.wanted, n)
	s.fillLater()
}

// most is how many shall stand ready.
func (s *stock) most() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

// fillLater has the stock filled up once nothing has been started for a while. s.mu is held.
func (s *stock) fillLater() {
	if s.fill == nil {
		s.fill = time.AfterFunc(s.after, s.fillUp)
	} else {
		s.fill.Reset(s.after)
	}
}

// take returns a process that stands ready, nil if there is none.
func (s *stock) take() *born {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 {
		return nil
	}
	w := s.ready[0]
	s.ready = s.ready[1:]
	s.fillLater()
	return w
}

// fillUp forks ahead until the stock is full. What speaks against a fork will be said to who needs one.
func (s *stock) fillUp() {
	s.mu.Lock()
	clear(s.asked)
	s.mu.Unlock()
	for {
		s.mu.Lock()
		enough := s.closed || len(s.ready) >= s.wanted || len(s.asked) > 0
		s.mu.Unlock()
		if enough {
			return
		}
		w, err := s.bear()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			w.control.Close()
		} else {
			s.ready = append(s.ready, w)
		}
		s.mu.Unlock()
	}
}

// count is how many stand ready.
func (s *stock) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ready)
}

// close ends all that stand ready.
func (s *stock) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.fill != nil {
		s.fill.Stop()
	}
	for _, w := range s.ready {
		w.control.Close()
	}
	s.ready = nil
}
