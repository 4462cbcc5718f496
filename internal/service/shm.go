package service

import (
	"maps"
	"slices"
	"time"

	"vigil/internal/proc"
)

// How often the workers' shared memory is looked at: soon after their start, since that is when most of
// it is made, then ever less often. A look takes no more than a fiftieth of the time.
const (
	firstGlance  = 100 * time.Millisecond
	glanceEvery  = 2 * time.Second
	glanceShares = 50
)

// followShm notes what shared memory the workers make while they run, for the day on which one of them
// is killed: what is dead shows no mappings. It ends when closed is closed.
func (s *Service) followShm(closed <-chan struct{}) {
	s.shm = s.keeper.FollowShm(proc.ShmNote(s.opts.LogDir, string(s.id.Role), s.id.Index))
	s.running.Go(func() {
		timer := time.NewTimer(firstGlance)
		defer timer.Stop()
		pause := firstGlance
		for {
			select {
			case <-closed:
				return
			case <-s.begun:
				pause = firstGlance
			case <-timer.C:
				began := time.Now()
				s.noted(s.shm.Glance(s.processes()))
				pause = max(min(2*pause, glanceEvery), glanceShares*time.Since(began))
			}
			timer.Reset(pause)
		}
	})
}

// beginShm says that workers are about to be started; alone: beside others of their role.
func (s *Service) beginShm(alone bool) {
	if !alone {
		s.shm.Begin()
	}
	select {
	case s.begun <- struct{}{}:
	default:
	}
}

// clearShm removes the shared memory that these processes, which have ended, have left behind.
func (s *Service) clearShm(ended []*proc.Process) {
	removed, err := s.shm.Clear(ended)
	s.noted(err)
	if len(removed) > 0 {
		s.log.Info("shared memory of the workers removed", "files", removed)
	}
}

func (s *Service) noted(err error) {
	if err != nil {
		s.log.Warn("shared memory may be left behind", "err", err)
	}
}

// processes are those of the current lives, ended or not.
func (s *Service) processes() []*proc.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return processesOf(slices.Collect(maps.Values(s.lives)))
}

func processesOf(lives []*worker) []*proc.Process {
	var procs []*proc.Process
	for _, w := range lives {
		if w.proc != nil {
			procs = append(procs, w.proc)
		}
	}
	return procs
}
