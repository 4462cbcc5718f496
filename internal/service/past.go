package service

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"vigil/api"
	"vigil/internal/wire/rpc"
)

// maxLasting bounds how many failures, and how many notices, of one life are told again.
const maxLasting = 8

// lasting is what has been said of a life, or of the role, and holds beyond the session in which it was told: a
// controller that was not there must hear it too. These words are numbered, so that one that was there does not take
// them in twice. It is guarded by Service.mu.
type lasting struct {
	failures   []retold // the first ones
	checkpoint *retold  // the newest
	notices    []retold // the newest of each text
}

// retold is a word and when it was said.
type retold struct {
	word *api.FromService
	at   time.Time
}

// asOf returns the word with its age.
func (s retold) asOf(now time.Time) *api.FromService {
	return proto.CloneOf(rpc.AgedBy(s.word, now.Sub(s.at)))
}

func (l *lasting) fail(s retold) {
	if len(l.failures) < maxLasting {
		l.failures = append(l.failures, s)
	}
}

func (l *lasting) notice(s retold) {
	text := s.word.GetNotice().GetText()
	l.notices = slices.DeleteFunc(l.notices, func(old retold) bool { return old.word.GetNotice().GetText() == text })
	if len(l.notices) < maxLasting {
		l.notices = append(l.notices, s)
	}
}

// saved is the newest step that the worker has said to have saved; nil: none.
func (l *lasting) saved() *int64 {
	if l.checkpoint == nil {
		return nil
	}
	step := l.checkpoint.word.GetCheckpoint().GetStep()
	return &step
}

// wentBack forgets a checkpoint that lies beyond the step from which the worker goes on.
func (l *lasting) wentBack(step int64) {
	if l.checkpoint != nil && l.checkpoint.word.GetCheckpoint().GetStep() > step {
		l.checkpoint = nil
	}
}

// keep numbers a word that is about to be told, and keeps what a later session must tell. Service.mu is held.
func (s *Service) keep(word *api.FromService, passing bool, now time.Time) {
	var life *api.Life
	next := s.numbered + 1
	switch word := word.Word.(type) {
	case *api.FromService_Failure:
		word.Failure.Number, life = next, word.Failure.GetLife()
	case *api.FromService_Checkpoint:
		word.Checkpoint.Number, life = next, word.Checkpoint.GetLife()
	case *api.FromService_Notice:
		if word.Notice.Text == "" { // a count, of which each is told once
			return
		}
		word.Notice.Number, life = next, word.Notice.GetLife()
	default:
		return
	}
	s.numbered = next
	this := retold{proto.CloneOf(word), now}
	if word.GetFailure().GetWholeService() {
		s.reported.fail(this)
		return
	}
	w := s.lives[int(life.GetRank())]
	if w == nil || passing || !proto.Equal(rpc.WireLife(w.life), life) {
		return
	}
	switch {
	case word.GetFailure() != nil:
		w.lasting.fail(this)
	case word.GetNotice() != nil:
		w.lasting.notice(this)
	default:
		w.lasting.checkpoint = &this
	}
}

// hello is what a session begins with: all that holds now. It calls told while nothing can be said.
func (s *Service) hello(told func()) *api.Hello {
	s.telling.Lock()
	defer s.telling.Unlock()
	told()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	hello := &api.Hello{StepSet: s.ownStep.asOf(now), Asked: s.asked(), Ending: s.ending()}
	for _, f := range s.reported.failures {
		hello.Failures = append(hello.Failures, f.asOf(now).GetFailure())
	}
	for _, w := range s.lives {
		state := w.wire()
		state.Past = s.past(w, now)
		hello.Workers = append(hello.Workers, state)
	}
	return hello
}

// past is what a worker has said so far, for a controller that was not there. Of one that is being stopped no failure
// is told: it is repaired. Service.mu is held.
func (s *Service) past(w *worker, now time.Time) *api.Past {
	p := &api.Past{}
	if !w.memory.word.IsZero() {
		p.Spoken, p.AgeMs = true, now.Sub(w.memory.word).Milliseconds()
	}
	if step, ok := s.steps.spoken[w.life.Rank]; ok {
		p.HasStep, p.Step, p.Guessed = true, step, !w.saysSteps
	}
	for _, open := range w.memory.phases {
		p.Phases = append(p.Phases, &api.Phase{Life: rpc.WireLife(w.life), Name: open.name, Begin: true, AgeMs: now.Sub(open.began).Milliseconds()})
	}
	if !w.stopping {
		for _, f := range w.lasting.failures {
			p.Failures = append(p.Failures, f.asOf(now).GetFailure())
		}
	}
	if c := w.lasting.checkpoint; c != nil {
		p.Checkpoint = c.asOf(now).GetCheckpoint()
	}
	for _, n := range w.lasting.notices {
		p.Notices = append(p.Notices, n.asOf(now).GetNotice())
	}
	return p
}
