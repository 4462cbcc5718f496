package service

import (
	"slices"

	"vigil/api"
	"vigil/internal/wire/notify"
	"vigil/internal/wire/rpc"
)

// maxPhases is how many phases of a worker may be open; see health.MaxPhases.
const maxPhases = 16

// savingPhase is the name of the phase in which a worker saves its work: it gets the full grace then.
const savingPhase = "checkpoint"

// phases is what a worker has said of its phases. It is guarded by Service.mu.
type phases struct {
	open    []string // oldest first
	bare    string   // the one that the next bare name closes
	refused bool     // one too many has been told
}

func (o *words) phase(w *worker, name string, begin bool) {
	o.other = append(o.other, &api.FromService{Word: &api.FromService_Phase{Phase: &api.Phase{Life: rpc.WireLife(w.life), Name: name, Begin: begin}}})
}

// takePhase takes a word of a phase. Service.mu is held.
func (s *Service) takePhase(w *worker, word notify.Word, out *words) {
	p := &w.phases
	if word.Kind == notify.PhaseNext && p.bare != "" && p.bare != word.Text {
		s.endPhase(w, p.bare, out)
	}
	switch word.Kind {
	case notify.PhaseNext:
		if s.beginPhase(w, word.Text, out) {
			p.bare = word.Text
		}
	case notify.PhaseBegin:
		s.beginPhase(w, word.Text, out)
	default:
		s.endPhase(w, word.Text, out)
	}
}

// takePhases takes in which phases a worker that is being stopped has entered and left. Nobody is told. Service.mu is
// held.
func (s *Service) takePhases(w *worker, said []notify.Word) {
	for _, word := range said {
		switch word.Kind {
		case notify.PhaseBegin, notify.PhaseEnd, notify.PhaseNext:
			s.takePhase(w, word, &words{})
		default:
		}
	}
}

// beginPhase opens a phase, anew if it is open. One too many is told once, since the controller says so
// to the user, and not taken.
func (s *Service) beginPhase(w *worker, name string, out *words) bool {
	p := &w.phases
	p.open = slices.DeleteFunc(p.open, func(open string) bool { return open == name })
	if len(p.open) == maxPhases {
		if !p.refused {
			out.phase(w, name, true)
		}
		p.refused = true
		return false
	}
	p.open = append(p.open, name)
	out.phase(w, name, true)
	return true
}

// endPhase closes a phase. That one is not open is for the controller to say.
func (s *Service) endPhase(w *worker, name string, out *words) {
	p := &w.phases
	p.open = slices.DeleteFunc(p.open, func(open string) bool { return open == name })
	if p.bare == name {
		p.bare = ""
	}
	out.phase(w, name, false)
}

// isSaving reports whether a worker is in the middle of saving its work.
func (s *Service) isSaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.lives {
		if w.running() && slices.Contains(w.phases.open, savingPhase) {
			return true
		}
	}
	return false
}
