package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"vigil/api"
	"vigil/internal/proc"
	"vigil/internal/wire/roleapi"
)

// obey carries out one order of the controller and answers it. It is called from many goroutines.
func (s *Service) obey(ctx context.Context, order *api.ToService) *api.Answer {
	answer := &api.Answer{}
	var err error
	switch o := order.GetOrder().(type) {
	case *api.ToService_Run:
		answer.Step, err = s.run(ctx, o.Run)
	case *api.ToService_Stop:
		answer.Held, err = s.stopFor(ctx, o.Stop)
	case *api.ToService_GetStep:
		answer.Step, answer.Spoken = s.known()
	case *api.ToService_SetStep:
		answer.Step = o.SetStep.GetStep()
		answer.Pending, err = s.SetStep(ctx, o.SetStep.GetStep())
	case *api.ToService_StepKept:
		s.stepKept(o.StepKept.GetNumber())
	case *api.ToService_Peers:
		if err = s.regain(); err == nil {
			err = s.writePeers(o.Peers.GetJson())
		}
	case *api.ToService_Forward:
		err = s.forward(o.Forward.GetSignal())
	case *api.ToService_Lengthen:
		s.lengthen()
	case *api.ToService_Leave:
		if answer.Held, err = s.Stop(ctx, 0, stoppedInOrder); err == nil {
			s.leave()
		}
	default:
		err = fmt.Errorf("order %d: this version of the service does not know it", order.GetId())
	}
	if err != nil {
		s.log.Error("order is not carried out", "err", err)
		answer.Error = err.Error()
		if lack := proc.LackOf(err); lack != nil && order.GetRun() != nil {
			answer.Lack = lack.Limit
		}
		var held *roleapi.HeldError
		if errors.As(err, &held) {
			answer.Held = held.Held
		}
	}
	return answer
}

// leave lets Run end. The controller has asked for it.
func (s *Service) leave() { s.leaveOnce.Do(func() { close(s.leaving) }) }

// writePeers replaces VIGIL_PEERS_FILE at once: whoever reads it finds the old content or the new one.
func (s *Service) writePeers(json string) error {
	if json == "" {
		json = "{}"
	}
	s.writingPeers.Lock()
	defer s.writingPeers.Unlock()
	s.footing.peers = json
	next := strings.TrimSuffix(s.peersFile, filepath.Ext(s.peersFile)) + ".new"
	if err := proc.ReplaceBy(s.peersFile, next, []byte(json), 0o600); err != nil {
		return err
	}
	if s.footing.reader == 0 {
		return nil
	}
	return os.Lchown(s.peersFile, s.footing.reader, -1)
}
