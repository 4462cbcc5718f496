package service

import (
	"time"

	"vigil/api"
	"vigil/internal/wire/rpc"
)

// past is what a worker has said so far, for a controller that was not there. Service.mu is held.
func (s *Service) past(w *worker) *api.Past {
	now := time.Now()
	p := &api.Past{}
	if !w.memory.heard.IsZero() {
		p.Spoken, p.AgeMs = true, now.Sub(w.memory.heard).Milliseconds()
	}
	if step, ok := s.steps.spoken[w.life.Rank]; ok {
		p.HasStep, p.Step, p.Guessed = true, step, !w.saysSteps
	}
	for _, open := range w.memory.phases {
		p.Spoken = true
		p.Phases = append(p.Phases, &api.Phase{Life: rpc.WireLife(w.life), Name: open.name, Begin: true, AgeMs: now.Sub(open.began).Milliseconds()})
	}
	return p
}
