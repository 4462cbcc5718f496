package service

import (
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// forward hands a signal that the controller was sent on to every worker that runs. Which worker has no use for it is
// said.
func (s *Service) forward(name string) error {
	sig := unix.SignalNum(name)
	if sig == 0 {
		return fmt.Errorf("forward signal %q: there is none of that name", name)
	}
	for _, w := range s.living() {
		s.mu.Lock()
		hears := s.listensTo(w) && w.running()
		p := w.proc
		s.mu.Unlock()
		if !hears {
			continue
		}
		told := s.keeper.Forward(p, sig)
		if len(told) == 0 {
			s.notice(w, fmt.Sprintf("%s is not handed on to it: no process of it has a handler for that, so it would be ended by it", name))
			continue
		}
		for _, h := range told {
			s.log.Info("signal handed on", "signal", name, "rank", w.life.Rank, "pid", h.PID, "name", h.Name)
		}
	}
	return nil
}

// followWarnings says of signals that warn, sent to the service by mistake, who is to have them. It ends when closed is
// closed.
func (s *Service) followWarnings(closed <-chan struct{}) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGUSR1, unix.SIGUSR2)
	s.running.Go(func() {
		defer signal.Stop(got)
		for {
			select {
			case sig := <-got:
				name := unix.SignalName(sig.(unix.Signal))
				s.log.Warn(name + " was sent to the service and is not handed on: send it to the controller, with --forward-signal")
			case <-closed:
				return
			}
		}
	})
}
