package service

import (
	"time"

	"vigil/internal/proc"
)

// How often the service notes which processes are of its workers' trees: soon after their start, then ever less often.
// A look takes no more than a fiftieth of the time.
const (
	firstTreeLook = 100 * time.Millisecond
	treeLookEvery = 10 * time.Second
)

// followTree keeps a note of the workers' processes in the runtime directory, for the day on which service and
// controller are killed together. It ends when closed is closed.
func (s *Service) followTree(closed <-chan struct{}) {
	s.tree = s.keeper.NoteTree(s.runtime.TreeNote(proc.SeatOf(s.opts.JobUID, string(s.id.Role), s.id.Index)))
	s.atEnd(s.noteTree)
	s.running.Go(func() {
		timer := time.NewTimer(firstTreeLook)
		defer timer.Stop()
		pause := firstTreeLook
		for {
			select {
			case <-closed:
				return
			case <-s.grown:
				pause = firstTreeLook
			case <-timer.C:
				began := time.Now()
				s.noteTree()
				s.seeUsers()
				pause = max(min(2*pause, treeLookEvery), glanceShares*time.Since(began))
			}
			timer.Reset(pause)
		}
	})
}

// noteTree notes what there is of the workers' processes now.
func (s *Service) noteTree() {
	procs := s.processes()
	if len(procs) == 0 && s.tree.Empty() {
		return
	}
	s.treeNoted(s.tree.Look(procs))
}

// noteWorker notes a worker's process, at once.
func (s *Service) noteWorker(p *proc.Process) {
	s.treeNoted(s.tree.Add(p))
	select {
	case s.grown <- struct{}{}:
	default:
	}
}

func (s *Service) treeNoted(err error) {
	if err != nil {
		s.log.Warn("processes of the workers may be left behind if service and controller are killed", "err", err)
	}
}
