package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
	"vigil/internal/wire/notify"
	"vigil/internal/wire/roleapi"
)

// deafTime is for how long a worker whose peer has failed may sleep in a call of C and not run its handler. One
// that looks at what its handler has noted once a second or more often is at work.
const deafTime = time.Second

// stopKind says how much time workers get to end by themselves.
type stopKind int

const (
	stoppedInOrder      stopKind = iota // a wanted end: the role's grace
	stoppedAfterFailure                 // a rank of the role has failed: the short grace, unless a worker saves its work
	stoppedBetween                      // only what ended lives have left behind: none
)

// endTime bounds the wait for the end of a worker to be told once its process has gone.
const endTime = 5 * time.Second

// Stop ends all workers of incarnations below below (0: of any) in order and proves that nothing of
// them is left. It returns who held on until it was killed; the error is a *roleapi.HeldError when
// somebody is there still. With nothing to stop it does nothing.
func (s *Service) Stop(ctx context.Context, below uint64, kind stopKind) (held []string, err error) {
	if err := s.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer s.endTurn()
	return s.endLives(ctx, below, kind)
}

// endLives is Stop for those whose turn it is. Once begun it goes on to the proof, whatever becomes of
// ctx: a stop that is given up half way would leave a life that nobody counts.
func (s *Service) endLives(ctx context.Context, below uint64, kind stopKind) ([]string, error) {
	return s.endThese(ctx, kind, s.beginStop(below, nil))
}

// endThese ends the lives that beginStop has returned.
func (s *Service) endThese(ctx context.Context, kind stopKind, lives []*worker) ([]string, error) {
	if len(lives) == 0 {
		return nil, nil
	}
	s.noted(s.shm.Look(s.processes()))
	s.sayLeftBehind(lives)
	procs := processesOf(lives)
	spec := s.stopSpec(kind)
	s.reach(&spec, kind, lives)
	for _, w := range lives {
		if w.proc == nil {
			continue
		}
		// Who does not listen is told by the signal.
		if err := notify.Send(w.inbox, notify.Stop); err != nil && !errors.Is(err, notify.ErrNobody) {
			s.log.Warn("worker is not told by its inbox to stop", "rank", w.life.Rank, "err", err)
		}
	}
	report := s.keeper.Stop(context.WithoutCancel(ctx), procs, spec)
	s.sayEndedEarly(lives, report.Held)
	for _, w := range lives {
		w.probes.Wait()
	}
	s.awaitEnds(lives)
	held := s.name(lives, report.Held)
	if len(report.Left) > 0 {
		left := s.name(lives, report.Left)
		s.log.Error("workers cannot be stopped", "left", left, "took", report.Took)
		return held, &roleapi.HeldError{Role: s.id.Role, Held: left}
	}
	s.clearProbes(context.WithoutCancel(ctx), lives)
	s.clearShm(procs)
	if left := s.freeDevices(context.WithoutCancel(ctx), lives, report.Seen); len(left) > 0 {
		s.log.Error("workers have ended, their devices are not free", "left", left)
		return append(held, left...), &roleapi.HeldError{Role: s.id.Role, Held: left}
	}
	for _, w := range lives {
		s.discard(w)
	}
	s.finishStop(lives)
	s.noteTree()
	s.log.Info("workers stopped, nothing of them is left", "workers", len(lives), "held", held, "took", report.Took)
	return held, nil
}

// beginStop returns the lives to end, all or those of the ranks given, and from here on drops what they
// say. None, when there are none or they are not of an incarnation below the limit.
func (s *Service) beginStop(below uint64, ranks []uint32) []*worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	if below > 0 && uint64(s.incarnation) >= below {
		return nil
	}
	if len(ranks) == 0 {
		s.reported = lasting{} // the role is repaired, or wanted to stop
	}
	lives := make([]*worker, 0, len(s.lives))
	for _, w := range s.lives {
		if len(ranks) > 0 && !slices.Contains(ranks, uint32(w.life.Rank)) {
			continue
		}
		w.stopping = true
		w.endProbes()
		lives = append(lives, w)
	}
	return lives
}

// finishStop forgets lives that have ended. With none left the service is idle; what it knows of the
// role's step stays until the next life.
func (s *Service) finishStop(lives []*worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range lives {
		delete(s.lives, w.life.Rank)
	}
	if len(s.lives) == 0 {
		s.steps.begin(s.steps.role())
		return
	}
	for _, w := range lives {
		s.steps.forget(w.life.Rank)
	}
}

// awaitEnds waits until the end of every worker has been told, bounded, for a process that cannot be
// killed has no end.
func (s *Service) awaitEnds(lives []*worker) {
	limit := time.NewTimer(endTime)
	defer limit.Stop()
	for _, w := range lives {
		select {
		case <-w.ended:
		case <-limit.C:
			return
		}
	}
}

func (s *Service) stopSpec(kind stopKind) proc.StopSpec {
	policy := s.opts.Role.Stop
	spec := proc.StopSpec{Signal: unix.SignalNum("SIG" + strings.TrimPrefix(policy.Signal, "SIG"))}
	switch kind {
	case stoppedInOrder:
		spec.Grace = policy.Grace
	case stoppedAfterFailure:
		spec.Grace, spec.Deaf = policy.GraceOnFailure, deafTime
		if policy.GraceWritten {
			spec.Deaf = 0 // it was asked for in so many words
		}
		spec.Longer, spec.LongGrace = s.longer(), policy.Grace
		if s.isSaving() {
			spec.Grace, spec.Deaf = max(spec.Grace, policy.Grace), 0
		}
	case stoppedBetween:
	}
	return spec
}

// lengthen gives the stops that are under way, and all until the next life, the grace of a wanted stop. It may
// be called more than once.
func (s *Service) lengthen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.lengthened:
	default:
		close(s.lengthened)
	}
}

// longer is closed when stops have the grace of a wanted one, whatever they were begun for.
func (s *Service) longer() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lengthened
}

// name says who holders are: "rank 2 pid 4711 python3", without the rank where they are below one.
func (s *Service) name(lives []*worker, holders []proc.Holder) []string {
	names := make([]string, 0, len(holders))
	for _, h := range holders {
		name := fmt.Sprintf("pid %d %s", h.PID, h.Name)
		for _, w := range lives {
			if w.proc != nil && w.proc.PID() == h.PID {
				name = fmt.Sprintf("rank %d %s", w.life.Rank, name)
			}
		}
		names = append(names, name)
	}
	return names
}

// takeTurn waits until no other order starts or ends workers.
func (s *Service) takeTurn(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for an earlier order on %s: %w", s.id, ctx.Err())
	}
}

func (s *Service) endTurn() { <-s.turn }
