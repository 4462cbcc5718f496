package service

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"vigil/internal/proc"
)

// lookAtFooting is how often a service looks whether its files in the runtime directory are still there.
const lookAtFooting = time.Second

// footing is what a service has in the runtime directory: somebody may remove it while workers run.
type footing struct {
	mu     sync.Mutex
	socket string         // where the controller calls; empty when the service is being closed
	seat   *proc.FileLock // nil before it is taken
	peers  string         // content of the peers file; guarded by writingPeers
	reader int            // whose the peers file is, where that is another user; guarded by writingPeers
}

// followFooting makes again what is removed from the runtime directory, until the service is closed.
func (s *Service) followFooting() {
	closed := make(chan struct{})
	s.atEnd(func() {
		s.footing.mu.Lock()
		s.footing.socket = ""
		if s.footing.seat != nil {
			_ = s.footing.seat.Unlock() // the lock ends with us anyway
		}
		s.footing.mu.Unlock()
		close(closed)
	})
	s.running.Go(func() {
		tick := time.NewTicker(lookAtFooting)
		defer tick.Stop()
		for said := ""; ; {
			select {
			case <-closed:
				return
			case <-tick.C:
			}
			switch err := s.regain(); {
			case err == nil:
				said = ""
			case err.Error() != said:
				said = err.Error()
				s.log.Error("what was removed from the runtime directory is not back", "err", err)
			}
		}
	})
}

// regain makes again what has been removed from the runtime directory: the directory, the service's
// socket and seat, the peers file, the notify sockets of workers. What stands is not touched.
func (s *Service) regain() error {
	s.footing.mu.Lock()
	defer s.footing.mu.Unlock()
	if s.footing.socket == "" {
		return nil
	}
	if err := s.runtime.Restore(); err != nil {
		return err
	}
	var errs []error
	if s.givesAway() {
		errs = append(errs, s.runtime.LetThrough())
	}
	if proc.Gone(s.footing.socket) {
		s.log.Warn("files were removed from the runtime directory while the service runs: making them again", "dir", s.dir)
		errs = append(errs, s.listenAgain())
	}
	if s.footing.seat != nil && !s.footing.seat.Stands() {
		seat, err := s.seat()
		if err == nil {
			s.footing.seat = seat
		}
		errs = append(errs, err)
	}
	if s.hookFolder != "" && proc.Gone(s.hookFolder) {
		_, err := s.openHook()
		errs = append(errs, err)
	}
	if proc.Gone(s.peersFile) {
		s.writingPeers.Lock()
		peers := s.footing.peers
		s.writingPeers.Unlock()
		errs = append(errs, s.writePeers(peers))
	}
	for _, w := range s.living() {
		errs = append(errs, w.notify.Restore(), s.restoreOwn(w))
	}
	return errors.Join(errs...)
}

// listenAgain lets the controller find the service where it has been.
func (s *Service) listenAgain() error {
	l, err := proc.ListenUnix(s.footing.socket)
	if err != nil {
		return err
	}
	s.running.Go(func() {
		if err := s.link.ServeAlso(l); err != nil {
			s.log.Error("answer the controller at the socket that was made again", "err", err)
		}
	})
	return nil
}

// living returns the workers whose lives have not been discarded.
func (s *Service) living() []*worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.lives))
}
