package service

import (
	"fmt"
	"strings"
	"time"

	"vigil/internal/proc"
	"vigil/internal/role"
)

const (
	// leftAfter is how long what a worker has left behind may take to end by itself before it is said.
	leftAfter = 2 * time.Second
	// leftAtStop is the same where it is about to be ended.
	leftAtStop = 300 * time.Millisecond
	// mostLeft is how many processes are named.
	mostLeft = 5
)

// followLeft says of a worker that has ended well what it has left running, as a script that starts its program in the
// background does. A worker is over when its process is.
func (s *Service) followLeft(w *worker) {
	wait := time.NewTimer(leftAfter)
	defer wait.Stop()
	select {
	case <-wait.C:
		s.sayLeft(w, 0, "it goes on only until the role is stopped")
	case <-w.probing.Done(): // it is being stopped, who does that says it
	}
}

// sayLeftBehind says what finished workers have left running that is ended now.
func (s *Service) sayLeftBehind(lives []*worker) {
	for _, w := range lives {
		s.mu.Lock()
		finished := w.state == role.WorkerFinished && w.proc != nil
		s.mu.Unlock()
		if finished {
			s.sayLeft(w, leftAtStop, "it is ended now")
		}
	}
}

// sayLeft says once per life which processes of a worker live on after it has ended well, if they do after patience.
func (s *Service) sayLeft(w *worker, patience time.Duration, what string) {
	var living []proc.Holder
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		living = living[:0]
		for _, h := range s.keeper.Remains(w.proc.Tree()) {
			if h.Alive() {
				living = append(living, h)
			}
		}
		if len(living) == 0 {
			return
		}
		if time.Now().After(deadline) {
			break
		}
	}
	s.mu.Lock()
	said := w.leftSaid
	w.leftSaid = true
	s.mu.Unlock()
	if said {
		return
	}
	var names []string
	for _, h := range living[:min(len(living), mostLeft)] {
		names = append(names, fmt.Sprintf("pid %d %s", h.PID, h.Name))
	}
	if more := len(living) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	s.notice(w, fmt.Sprintf("its process ended with exit code 0 and has left behind %s: %s. A worker is over when its process is: run the program in the foreground, or as the script's last line with exec",
		strings.Join(names, ", "), what))
}
