package service

import (
	"context"
	"fmt"
	"time"

	"vigil/internal/job"
	"vigil/internal/role"
)

// alivePeriod is the time between two askings where the role names none.
const alivePeriod = 10 * time.Second

// stayAlive asks a worker that is ready, again and again, until ctx ends. So many bad answers in a row
// as the role says are a failure, told again after as many more: while watching is paused the controller
// does not take it. An answer that a starved worker did not give in time does not count, for as
// long as the start limit.
func (s *Service) stayAlive(ctx context.Context, w *worker, p job.Alive) {
	if p.Period <= 0 {
		p.Period = alivePeriod
	}
	if p.Timeout <= 0 {
		p.Timeout = probeTimeout
	}
	tick := time.NewTicker(p.Period)
	defer tick.Stop()
	asked := time.Now()
	var excused excuse
	for bad := 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		err := s.askAlive(ctx, w, p.Probe, asked)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			bad, excused = 0, excuse{}
		case s.wasStarved(w, asked) && excused.holds(asked, s.opts.Role.Limits.Start):
			s.log.Debug("a starved worker has not answered", "rank", w.life.Rank, "err", err)
		default:
			if bad++; bad%max(p.Failures, 1) == 0 {
				s.tellMute(w, bad, err)
			}
		}
		asked = time.Now()
	}
}

// excuse is for how long a worker has had one for its bad answers.
type excuse struct{ since time.Time }

// holds reports whether the excuse holds still at the time given: for no longer than the limit.
func (e *excuse) holds(now time.Time, limit time.Duration) bool {
	if e.since.IsZero() {
		e.since = now
	}
	return now.Sub(e.since) <= limit
}

// askAlive asks once. By notify the answer is a heartbeat since the time given.
func (s *Service) askAlive(ctx context.Context, w *worker, p job.Probe, since time.Time) error {
	if p.Notify {
		s.mu.Lock()
		defer s.mu.Unlock()
		if w.memory.heard.Before(since) {
			return fmt.Errorf("probe: no heartbeat for %s", time.Since(since).Round(time.Millisecond))
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	return s.ask(ctx, w, p)
}

// tellMute tells that a worker runs and does not answer.
func (s *Service) tellMute(w *worker, bad int, err error) {
	s.change(func(out *words) {
		if s.listensTo(w) {
			out.passingFailure(role.Failure{Life: w.life, Cause: role.Stuck, At: time.Now(), Log: w.files.stderr,
				Detail: fmt.Sprintf("its alive probe has failed %d times in a row: %v", bad, err)})
		}
	})
}
