package service

import (
	"errors"
	"fmt"
	"os"

	"vigil/internal/proc"
)

// seeUsers looks for workers that have changed their user themselves, by setpriv, gosu or su, and gives each its files.
func (s *Service) seeUsers() {
	if s.user != nil {
		return // they have them
	}
	lives := map[int]*worker{}
	var procs []*proc.Process
	s.mu.Lock()
	for _, w := range s.lives {
		if w.proc != nil && !w.stopping && w.changed == nil {
			lives[w.proc.PID()] = w
			procs = append(procs, w.proc)
		}
	}
	s.mu.Unlock()
	if len(procs) == 0 {
		return
	}
	for pid, who := range s.keeper.OtherUsers(procs) {
		s.handOver(lives[pid], who)
	}
}

// handOver gives a life's files to the user that its worker has changed to, and says so once. Only root can.
func (s *Service) handOver(w *worker, who proc.OtherUser) {
	s.mu.Lock()
	w.changed = &who
	s.mu.Unlock()
	is := fmt.Sprintf("pid %d (%s) of it runs as user %d", who.PID, who.Name, who.UID)
	if os.Geteuid() != 0 {
		s.notice(w, is+", who reaches neither its notify socket nor its inbox, and whom only root can end: its words come by VIGIL_SERVICE_URL")
		return
	}
	if err := errors.Join(s.runtime.LetThrough(), s.giveTo(who.UID, w)); err != nil {
		s.notice(w, is+", and its files cannot be given to that user: "+err.Error())
		return
	}
	s.notice(w, is+", whose notify socket, inbox and peers file they are now; user: in the job file gives them from the start, and the error file")
}

// userOf is the user that a life's files belong to.
func (s *Service) userOf(w *worker) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.changed != nil && os.Geteuid() == 0 {
		return w.changed.UID
	}
	return s.workerUID()
}

// givesAway says whether files in the runtime directory belong to users that must be able to pass through it.
func (s *Service) givesAway() bool {
	s.writingPeers.Lock()
	defer s.writingPeers.Unlock()
	return s.user != nil || s.footing.reader != 0
}
