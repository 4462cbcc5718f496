package service

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/wire/rpc"
)

// endForSignal ends the workers in order because somebody has told this service to stop, and says so at once:
// whoever has sent the signal, it is no order about the role. No life is begun any more.
func (s *Service) endForSignal(ctx context.Context, why error) error {
	signal := "a signal"
	if s, ok := errors.AsType[*SignalError](why); ok {
		signal = unix.SignalName(s.Signal)
	}
	s.log.Info("stopping", "signal", signal)
	s.change(func(out *words) {
		s.signal = signal
		out.other = append(out.other, &api.FromService{Word: &api.FromService_Ending{Ending: s.ending()}})
	})
	s.lengthen()
	return s.endWithNote(ctx, "it was told to end by "+signal)
}

// ending is what the controller is told of the end; nil: there is none. Service.mu is held.
func (s *Service) ending() *api.Ending {
	if s.signal == "" {
		return nil
	}
	return &api.Ending{Signal: s.signal}
}

// askStop tells the controller that an operator has asked for the stop of the role, and ends the workers of this
// service.
func (s *Service) askStop(ctx context.Context) error {
	s.change(func(out *words) {
		s.numbered++
		s.askedStop = s.numbered
		out.other = append(out.other, &api.FromService{Word: &api.FromService_Asked{Asked: s.asked()}})
	})
	s.lengthen()
	_, err := s.Stop(ctx, 0, stoppedInOrder)
	return err
}

// asked is what an operator has asked for since the last life began; nil: nothing. Service.mu is held.
func (s *Service) asked() *api.Asked {
	if s.askedStop == 0 {
		return nil
	}
	return &api.Asked{What: rpc.AskedStop, Number: s.askedStop}
}
