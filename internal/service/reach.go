package service

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"vigil/internal/job"
	"vigil/internal/proc"
)

// reach says who is sent the stop signal besides the workers' own processes, as the role has it.
func (s *Service) reach(spec *proc.StopSpec, kind stopKind, lives []*worker) {
	switch s.opts.Role.Stop.SignalTo {
	case job.SignalWorker:
		return
	case job.SignalTree:
		spec.Reach = proc.Everything
		return
	}
	if kind != stoppedInOrder {
		return
	}
	of := func(p *proc.Process) *worker {
		at := slices.IndexFunc(lives, func(w *worker) bool { return w.proc == p })
		return lives[at] // Stop was given the processes of these
	}
	spec.Reach = proc.IfIdle
	spec.AtWork = func(p *proc.Process) bool { return s.saves(of(p)) }
	spec.Speaker = func(p *proc.Process) int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return of(p).senders.speaker
	}
	spec.Told = func(p *proc.Process, h proc.Holder) {
		s.notice(of(p), fmt.Sprintf("its process (pid %d) has not reacted to %s in half of the grace of %s: pid %d %s, which runs below it, has it too (%s); stop.signal_to says who is to have it",
			p.PID(), unix.SignalName(spec.Signal), spec.Grace, h.PID, h.Name, h.Why))
	}
}

// saves reports whether a worker is in the middle of saving its work.
func (s *Service) saves(w *worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(w.phases.open, savingPhase)
}

// sayEndedEarly says which workers had less than their grace.
func (s *Service) sayEndedEarly(lives []*worker, held []proc.Holder) {
	for _, h := range held {
		if at := slices.IndexFunc(lives, func(w *worker) bool { return w.proc != nil && w.proc.Ident() == h.Ident }); h.Early && at >= 0 {
			s.notice(lives[at], fmt.Sprintf("%s; a stop.grace_on_failure that is written down is never made shorter", h.Why))
		}
	}
}
