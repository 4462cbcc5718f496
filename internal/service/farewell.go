package service

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"vigil/internal/farewell"
	"vigil/internal/proc"
)

// endWithNote ends the workers in order and leaves a note of that for the next controller: that it was an order, which
// step they were at, and which of them had ended before. Without workers there is nothing to say.
func (s *Service) endWithNote(ctx context.Context, why string) error {
	note, any := s.farewell(why)
	if any {
		s.writeNote(note)
	}
	_, err := s.Stop(context.WithoutCancel(ctx), 0, stoppedInOrder)
	if err != nil || !any {
		return err
	}
	note.Ended, note.At = true, time.Now()
	s.writeNote(note)
	return nil
}

// writeNote writes the note. Without it the next controller takes the service for lost, which is no reason not to end.
func (s *Service) writeNote(note farewell.Note) {
	if err := farewell.Write(s.opts.LogDir, note); err != nil {
		s.log.Warn("the next controller will take this service for lost", "err", err)
	}
}

// farewell is the note as things stand, and whether there are workers to speak of.
func (s *Service) farewell(why string) (farewell.Note, bool) {
	self, _ := proc.Identify(os.Getpid())
	s.mu.Lock()
	defer s.mu.Unlock()
	note := farewell.Note{
		Role: s.id.Role, Index: s.id.Index, Services: s.services, Incarnation: s.incarnation, PID: self.PID, Start: self.StartTime,
		Why: why, Step: s.steps.role(), At: time.Now(),
	}
	note.Unsaid = len(s.steps.spoken) == 0 && s.pendingStep == nil
	if s.pendingStep != nil {
		note.Step = *s.pendingStep
	}
	for _, rank := range slices.Sorted(maps.Keys(s.lives)) {
		w := s.lives[rank]
		note.Workers = append(note.Workers, farewell.Worker{
			Life: w.life, Finished: w.exit != nil && w.failed == nil && !w.stopping, Saved: w.lasting.saved(), Failure: w.failed,
		})
	}
	return note, len(note.Workers) > 0
}
