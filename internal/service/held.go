package service

import (
	"context"
	"fmt"
	"slices"
	"time"

	"vigil/internal/devices"
	"vigil/internal/proc"
)

// How long a driver may keep devices for processes that have ended, and how often it is asked. It lets
// go in a moment, or not before it is reset.
const (
	deviceTime  = 10 * time.Second
	deviceEvery = 200 * time.Millisecond
)

// freeDevices proves that no device is held by the processes, which have ended, if the lives were given
// any. It returns what is held still; those processes are asked for again at the next stop.
func (s *Service) freeDevices(ctx context.Context, lives []*worker, ended []proc.Ident) []string {
	if !slices.ContainsFunc(lives, func(w *worker) bool { return w.devices > 0 }) {
		return nil
	}
	s.ended = append(s.ended, ended...)
	held := s.awaitDevices(ctx, s.ended)
	if len(held) == 0 {
		s.ended = nil
	}
	return held
}

// awaitDevices waits until nvidia-smi lists none of the processes, which have ended, as holding a
// device. It returns those that it lists still, such as "device GPU-1f still held by pid 4711". Where
// nobody can be asked, nothing is known and nothing is held.
func (s *Service) awaitDevices(ctx context.Context, ended []proc.Ident) []string {
	ctx, cancel := context.WithTimeout(ctx, deviceTime)
	defer cancel()
	tick := time.NewTicker(deviceEvery)
	defer tick.Stop()
	var held []string
	for {
		users, err := devices.Holders(ctx, pidsOf(ended))
		if err != nil && ctx.Err() == nil {
			s.log.Warn("nobody says whether the workers' devices are free", "err", err)
			return nil
		}
		if err == nil {
			held = heldDevices(users)
		}
		if err == nil && len(held) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if held == nil {
				s.log.Warn("nobody says whether the workers' devices are free", "err", err)
			}
			return held
		}
	}
}

// heldDevices says who holds what, but for pids that others have by now.
func heldDevices(users []devices.User) []string {
	var held []string
	for _, u := range users {
		if now, err := proc.Identify(u.PID); err == nil && now.Alive() {
			continue // our process has ended, that was proved
		}
		held = append(held, fmt.Sprintf("device %s still held by %s", u.UUID, u))
	}
	return held
}

func pidsOf(ended []proc.Ident) []int {
	var pids []int
	for _, id := range ended {
		pids = append(pids, id.PID)
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}
