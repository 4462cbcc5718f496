package service

import (
	"context"
	"errors"
	"time"

	"vigil/internal/proc"
)

// seatEvery is how often it is tried to take the seat of a service that is ending.
const seatEvery = 20 * time.Millisecond

// takeSeat waits until no other service of this place runs on this machine: one that an earlier controller has
// started, and that is about to find out that it is replaced.
func (s *Service) takeSeat(ctx context.Context) error {
	again := time.NewTicker(seatEvery)
	defer again.Stop()
	for said := false; ; said = true {
		seat, err := s.seat()
		held := new(proc.LockedError)
		if !errors.As(err, &held) {
			s.footing.mu.Lock()
			defer s.footing.mu.Unlock()
			s.footing.seat = seat
			return err
		}
		if !said {
			s.log.Warn("another service of this place still runs: waiting for its end", "service", s.id.String(), "pid", held.PID)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Service) seat() (*proc.FileLock, error) {
	if err := s.runtime.Restore(); err != nil {
		return nil, err
	}
	return s.runtime.Seat(proc.SeatOf(s.opts.JobUID, string(s.id.Role), s.id.Index))
}
