package health

import (
	"fmt"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// FenceWorker raises a worker's attempt; see Table.FenceWorker.
func (s *Store) FenceWorker(name role.Name, rank int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	return s.table.FenceWorker(name, rank, time.Now())
}

// BeginWorker says that one worker is about to run again, from the given step.
func (s *Store) BeginWorker(name role.Name, rank int, step int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.BeginWorker(name, rank, step, time.Now())
}

// Restore makes a role what an earlier controller knew of it; see Table.Restore.
func (s *Store) Restore(name role.Name, was Before) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	s.table.Restore(name, was, time.Now())
}

// Recall takes in what a worker has said to an earlier controller.
func (s *Store) Recall(life role.Life, past Past) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.Recall(life, past, time.Now())
}

// NotReadyError says that a worker cannot be admitted, because it is something else than ready.
type NotReadyError struct {
	Role role.Name
	Rank int
	Is   role.WorkerState
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("admit %s rank %d: it is %s, not ready", e.Role, e.Rank, e.Is)
}

// Admit ends the quarantine of a worker that is ready. One that needs no admission is well. The error is
// a *NotReadyError for one that is not ready.
func (s *Store) Admit(name role.Name, rank int) error {
	s.mu.Lock()
	is, changed, ok := s.table.Admit(name, rank)
	var e event.Event
	if r, k := s.table.worker(name, rank); changed {
		e = about(time.Now(), event.WorkerReady, r.lifeOf(rank), "admitted")
		e.PID = k.pid
		s.change()
	}
	s.mu.Unlock()
	switch {
	case !ok:
		return &NotReadyError{name, rank, is}
	case changed:
		s.record(e)
	}
	return nil
}

// Available returns how many of the role's workers are ready, admitted and well.
func (s *Store) Available(name role.Name) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.Available(name)
}

// PauseWorker stops watching one worker for silence for the duration.
func (s *Store) PauseWorker(name role.Name, rank int, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.table.PauseWorker(name, rank, now.Add(d), now)
}

// ResumeWorker watches one worker again.
func (s *Store) ResumeWorker(name role.Name, rank int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.ResumeWorker(name, rank, time.Now())
}
