package service

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"vigil/api"
)

// keptTime is how long a step that was set at our own endpoint waits for the controller to record it. One that is
// away hears of it in the next Hello.
const keptTime = 2 * time.Second

// ownStep is a step that was set at our own endpoint and that the controller has not said to have kept.
type ownStep struct {
	word *api.StepSet
	at   time.Time
	kept chan struct{}
}

// asOf returns the word with its age; nil for none.
func (o *ownStep) asOf(now time.Time) *api.StepSet {
	if o == nil {
		return nil
	}
	word := proto.CloneOf(o.word)
	word.AgeMs = now.Sub(o.at).Milliseconds()
	return word
}

// setOwnStep sets the role's step as an operator asks at our own endpoint, and tells the controller, which owns it.
func (s *Service) setOwnStep(ctx context.Context, step int64) (bool, error) {
	done, err := s.stepTurn(ctx, step)
	if err != nil {
		return false, err
	}
	became := s.setStep(ctx, step)
	own := &ownStep{at: time.Now(), kept: make(chan struct{})}
	s.change(func(out *words) {
		own.word = &api.StepSet{Number: rand.Uint64() | 1, Step: step, Taken: became == stepTaken, Incarnation: uint64(s.incarnation)}
		s.ownStep = own
		out.other = append(out.other, &api.FromService{Word: &api.FromService_StepSet{StepSet: own.asOf(time.Now())}})
	})
	done()
	limit := time.NewTimer(keptTime)
	defer limit.Stop()
	select {
	case <-own.kept:
	case <-limit.C:
		s.log.Warn("the controller has not recorded the step that was set here; it is told when it is back", "step", step)
	case <-ctx.Done(): // whoever asked has gone; the step is set all the same
	}
	return became == stepPending, nil
}

// stepKept takes in that the controller has recorded a step that was set here.
func (s *Service) stepKept(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ownStep != nil && s.ownStep.word.Number == number {
		close(s.ownStep.kept)
		s.ownStep = nil
	}
}
