package service

import (
	"context"
	"fmt"
	"time"

	"vigil/internal/wire/notify"
)

// ackTime is how long workers have to acknowledge a step that they were told.
const ackTime = 2 * time.Second

// steps is what is known of the role's step on this service.
type steps struct {
	given  int64         // what the current life was started from
	spoken map[int]int64 // highest step of each rank that has spoken in this life
	ended  map[int]bool  // ranks of this life that have ended well
}

// begin forgets all words: the next life starts from given.
func (s *steps) begin(given int64) {
	s.given, s.spoken, s.ended = given, map[int]int64{}, map[int]bool{}
}

// said notes a rank's word. A lower step than it has said before is not a step back, only late.
func (s *steps) said(rank int, step int64) {
	if old, ok := s.spoken[rank]; !ok || step > old {
		s.spoken[rank] = step
	}
}

// forget drops what a rank is taken to have said.
func (s *steps) forget(rank int) {
	delete(s.spoken, rank)
	delete(s.ended, rank)
}

// took notes that a rank goes on from step, even if that is lower than what it said before.
func (s *steps) took(rank int, step int64) { s.spoken[rank] = step }

// role returns the role's step: the least over the ranks that have spoken in this life, before that
// the one that was given. A rank that has ended well does not hold back those that go on.
func (s *steps) role() int64 {
	least, spoken, atWork := s.given, false, false
	for rank, step := range s.spoken {
		works := !s.ended[rank]
		if !spoken || works && !atWork || works == atWork && step < least {
			least = step
		}
		spoken, atWork = true, atWork || works
	}
	return least
}

// toldStep is a step that a worker was told to go on from.
type toldStep struct {
	seq, step int64
	ack       chan struct{} // closed when the worker has taken it
	taken     bool
}

// Step returns the role's step on this service.
func (s *Service) Step() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pendingStep != nil && len(s.lives) == 0 {
		return *s.pendingStep
	}
	return s.steps.role()
}

// known returns the role's step on this service, and what of it the ranks have said themselves in the life that runs.
func (s *Service) known() (step int64, spoken map[uint32]int64) {
	step, spoken = s.Step(), map[uint32]int64{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for rank, said := range s.steps.spoken {
		spoken[uint32(rank)] = said
	}
	return step, spoken
}

// SetStep sets the role's step. Where no worker runs it is what the next life starts from. Running
// workers are told, and SetStep returns when all have acknowledged it; if one does not listen, or not
// within two seconds, pending is true and the step is taken at the next start.
//
// It comes from the controller: what was set at our own endpoint before is replaced.
func (s *Service) SetStep(ctx context.Context, step int64) (pending bool, err error) {
	done, err := s.stepTurn(ctx, step)
	if err != nil {
		return false, err
	}
	defer done()
	s.mu.Lock()
	s.ownStep = nil
	s.mu.Unlock()
	return s.setStep(ctx, step) == stepPending, nil
}

// stepTurn waits until nobody else sets the step.
func (s *Service) stepTurn(ctx context.Context, step int64) (done func(), err error) {
	if step < 0 {
		return nil, fmt.Errorf("set step of %s: %d is negative", s.id, step)
	}
	select {
	case s.settingStep <- struct{}{}:
		return func() { <-s.settingStep }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("set step of %s: %w", s.id, ctx.Err())
	}
}

// settled says what became of a step that was set.
type settled string

const (
	stepIdle    settled = "idle"    // nothing runs: the next life starts from it
	stepTaken   settled = "taken"   // the workers have taken it
	stepPending settled = "pending" // they run, and have not: it is taken at the next start
)

func (s *Service) setStep(ctx context.Context, step int64) settled {
	running, nobody := s.tellStep(step)
	switch {
	case nobody:
		s.log.Info("step set", "step", step)
		return stepIdle
	case len(running) > 0 && s.acknowledged(ctx, running, step):
		s.mu.Lock()
		s.pendingStep = nil
		s.steps.given = step
		s.mu.Unlock()
		s.log.Info("workers took the step", "step", step)
		return stepTaken
	default:
		s.log.Info("step will be taken at the next start", "step", step)
		return stepPending
	}
}

// tellStep notes step, and that each running worker is being told it. Until all have acknowledged it,
// it is pending. With nothing of a life left, it is set, and idle is true.
func (s *Service) tellStep(step int64) (running []*worker, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lives) == 0 {
		s.pendingStep = nil
		s.steps.begin(step)
		return nil, true
	}
	s.pendingStep = &step
	s.seq++
	for _, w := range s.lives {
		if w.running() && !w.stopping {
			w.told = &toldStep{seq: s.seq, step: step, ack: make(chan struct{})}
			running = append(running, w)
		}
	}
	return running, false
}

// acknowledged tells the workers the step, unless one of them does not listen, for then they would
// part ways. It reports whether all of them took it in time.
func (s *Service) acknowledged(ctx context.Context, running []*worker, step int64) bool {
	for _, w := range running {
		if !notify.Listens(w.inbox) {
			return false
		}
	}
	for _, w := range running {
		if err := notify.Send(w.inbox, notify.SetStep(step, w.told.seq)); err != nil {
			s.log.Warn("worker cannot be told its step", "rank", w.life.Rank, "err", err)
			return false
		}
	}
	limit := time.NewTimer(ackTime)
	defer limit.Stop()
	for _, w := range running {
		select {
		case <-w.told.ack:
		case <-w.ended:
			return false
		case <-limit.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}
