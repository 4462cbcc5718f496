package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"vigil/api"
	"vigil/internal/role"
)

// helloDeadline is how long an opened stream may take to say who it is.
const helloDeadline = 10 * time.Second

// session is one open stream of a service.
type session struct {
	orders chan *api.ToService
	heard  chan struct{} // closed when the last word was read and handed on
	done   chan struct{} // closed when it ends
	joined bool          // its hello was heard; under Hub.mu
	once   sync.Once
	why    error // of the end, for the peer; set before done is closed

	mu      sync.Mutex
	waiting map[uint64]chan *api.Answer
}

func newOpenSession() *session {
	return &session{
		orders: make(chan *api.ToService), heard: make(chan struct{}), done: make(chan struct{}),
		waiting: map[uint64]chan *api.Answer{},
	}
}

// finish ends the session; the first reason stands.
func (s *session) finish(why error) {
	s.once.Do(func() {
		s.why = why
		close(s.done)
	})
}

// answer hands an answer to whoever waits for it; it returns false when nobody does.
func (s *session) answer(a *api.Answer) bool {
	s.mu.Lock()
	waiter, found := s.waiting[a.Id]
	delete(s.waiting, a.Id)
	s.mu.Unlock()
	if found {
		waiter <- a // has room for one, and gets no more
	}
	return found
}

// hubSessions is the Hub as Sessions server.
type hubSessions struct {
	api.UnimplementedSessionsServer
	hub *Hub
}

// Open carries one session until it breaks, is replaced, or the hub stops.
func (ss hubSessions) Open(stream grpc.BidiStreamingServer[api.FromService, api.ToService]) error {
	h := ss.hub
	ses := newOpenSession()
	hello := make(chan *service, 1)
	h.mu.Lock()
	if h.stopping {
		h.mu.Unlock()
		return errControllerStops
	}
	h.work.Add(1)
	h.mu.Unlock()
	go func() {
		defer h.work.Done()
		defer close(ses.heard)
		var err error
		defer func() { ses.finish(err) }()
		defer recovered(h.o.Log, "/vigil.Sessions/Open", &err)
		err = h.listen(stream, ses, hello)
	}()

	timer := time.NewTimer(helloDeadline)
	defer timer.Stop()
	var of *service
	select {
	case of = <-hello:
	case <-ses.done:
		return ses.why
	case <-h.ctx.Done():
		return errControllerStops
	case <-timer.C:
		ses.finish(status.Errorf(codes.DeadlineExceeded, "no hello within %v", helloDeadline))
		return ses.why
	}
	// The header says that the session stands; before it the service says nothing but hello.
	if err := stream.SendHeader(nil); err != nil {
		ses.finish(err)
	}
	err := h.carry(stream, ses)
	h.detach(of, ses)
	return err
}

// carry sends orders until the session ends.
func (h *Hub) carry(stream grpc.BidiStreamingServer[api.FromService, api.ToService], ses *session) error {
	for {
		select {
		case <-ses.done:
			return ses.why
		case order := <-ses.orders:
			if err := stream.Send(order); err != nil {
				ses.finish(err)
				return err
			}
		}
	}
}

// detach takes a session from its service; a break is looked into at once.
func (h *Hub) detach(of *service, ses *session) {
	h.mu.Lock()
	if of.session == ses {
		of.session = nil
	}
	h.mu.Unlock()
	if ses.why != nil {
		of.poller.poke()
	}
}

// listen reads the words of a stream. The error is what its peer gets to see; nil is a good end.
func (h *Hub) listen(stream grpc.BidiStreamingServer[api.FromService, api.ToService], ses *session, hello chan<- *service) error {
	first, err := stream.Recv()
	if err != nil {
		return streamEnd(err)
	}
	if first.GetHello() == nil {
		return status.Error(codes.InvalidArgument, "the first word of a session must be hello")
	}
	of, err := h.attach(first.GetHello().Session, ses)
	if err != nil {
		return err
	}
	hello <- of
	h.o.Ears.Joined(of.reg)
	h.hearHello(of, first.GetHello())
	h.wake(ses)
	for {
		word, err := stream.Recv()
		if err != nil {
			return streamEnd(err)
		}
		select {
		case <-ses.done:
			h.o.Dropped(of.reg.ID, "word of a session that has ended")
			return ses.why
		default:
			h.hear(of, ses, word)
		}
	}
}

func streamEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// attach makes a stream the session of the service that it names.
func (h *Hub) attach(name string, ses *session) (*service, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if name == "" {
		return nil, errUnknown
	}
	for _, s := range h.services {
		if s.reg.Seed || s.reg.Session != name {
			continue
		}
		if s.session != nil {
			s.session.finish(errNewerStream)
		}
		s.session = ses
		return s, nil
	}
	if i := slices.IndexFunc(h.let, func(l lapsed) bool { return l.session == name }); i >= 0 {
		if !errors.Is(h.let[i].why, errLost) { // it is asked to register again
			h.o.Dropped(h.let[i].of, "hello of a session that has ended")
		}
		return nil, h.let[i].why
	}
	return nil, errUnknown
}

// wake lets WaitJoined see that a session is open.
func (h *Hub) wake(ses *session) {
	h.mu.Lock()
	ses.joined = true
	close(h.changed)
	h.changed = make(chan struct{})
	h.mu.Unlock()
}

// hear hands one word on.
func (h *Hub) hear(of *service, ses *session, word *api.FromService) {
	now := time.Now()
	switch w := word.Word.(type) {
	case *api.FromService_Beats:
		for _, b := range w.Beats.GetBeats() {
			life, err := readLife(h.o.JobUID, of.reg.ID.Role, b.Life)
			if err != nil {
				h.o.Dropped(of.reg.ID, err.Error())
				continue
			}
			if b.Guessed && b.HasStep {
				h.o.Ears.Guess(life, b.Step, before(now, b.AgeMs))
			} else {
				h.o.Ears.Beat(life, b.Step, b.HasStep, before(now, b.AgeMs))
			}
		}
	case *api.FromService_Failure:
		h.count(of, w.Failure.Number)
		h.hearFailure(of, w.Failure, now)
	case *api.FromService_Worker:
		h.hearWorker(of, w.Worker, news)
	case *api.FromService_Checkpoint:
		h.count(of, w.Checkpoint.Number)
		h.hearCheckpoint(of, w.Checkpoint, now)
	case *api.FromService_StepSet:
		h.hearStepSet(of, w.StepSet, now)
	case *api.FromService_Phase, *api.FromService_Starved:
		h.hearWatch(of, word, now)
	case *api.FromService_Notice:
		h.count(of, w.Notice.Number)
		h.hearNotice(of, w.Notice)
	case *api.FromService_Asked:
		h.count(of, w.Asked.Number)
		h.o.Ears.Asked(of.reg, w.Asked.What)
	case *api.FromService_Ending:
		h.o.Ears.Ending(of.reg, w.Ending.Signal)
	case *api.FromService_Answer:
		if !ses.answer(w.Answer) {
			h.o.Log.Debug("answer that nobody waits for", "service", of.reg.Name(), "id", w.Answer.Id)
		}
	default: // a second hello, or a word of a newer service
		h.o.Dropped(of.reg.ID, fmt.Sprintf("word not understood: %T", word.Word))
	}
}

// hearWatch hands on what changes how a worker's silence is judged.
func (h *Hub) hearWatch(of *service, word *api.FromService, now time.Time) {
	said := word.GetPhase().GetLife()
	if s := word.GetStarved(); s != nil {
		said = s.Life
	}
	life, err := readLife(h.o.JobUID, of.reg.ID.Role, said)
	p := word.GetPhase()
	switch {
	case err != nil:
		h.o.Dropped(of.reg.ID, err.Error())
	case p == nil:
		waited := min(max(word.GetStarved().WaitedMs, 0), maxAge.Milliseconds())
		h.o.Ears.Starved(life, time.Duration(waited)*time.Millisecond)
	case p.Name == "" || len(p.Name) > role.MaxPhase:
		h.o.Dropped(of.reg.ID, fmt.Sprintf("a phase with a name of %d bytes", len(p.Name)))
	default:
		h.o.Ears.Phase(life, p.Name, p.Begin, before(now, p.AgeMs))
	}
}

func (h *Hub) hearWorker(of *service, w *api.WorkerState, when telling) {
	state, err := readWorker(h.o.JobUID, of.reg.ID.Role, w)
	if err != nil {
		h.o.Dropped(of.reg.ID, err.Error())
		return
	}
	state.Again = when == again
	h.o.Ears.Worker(of.reg.ID, state)
}

// telling says why a worker's state is told.
type telling int

const (
	news  telling = iota // it has changed
	again                // a session begins
)

// Call gives an order to a service and waits for its answer. It wraps ErrNoSession if the service has no
// open session or its session ends before it answers, and returns an *OrderError if it answers with an
// error. It does not change the order; its id is chosen here.
func (h *Hub) Call(ctx context.Context, id ServiceID, order *api.ToService) (*api.Answer, error) {
	what := orderName(order)
	h.mu.Lock()
	h.orders++
	number := h.orders
	var ses *session
	if s := h.services[id.String()]; s != nil {
		ses = s.session
	}
	h.mu.Unlock()
	if ses == nil {
		return nil, fmt.Errorf("order %s to %s: %w", what, id, ErrNoSession)
	}
	order = proto.CloneOf(order)
	order.Id = number
	if _, err := proto.Marshal(order); err != nil { // it would break the stream
		return nil, fmt.Errorf("order %s to %s: %w", what, id, err)
	}

	answers := make(chan *api.Answer, 1)
	ses.mu.Lock()
	ses.waiting[number] = answers
	ses.mu.Unlock()
	defer func() {
		ses.mu.Lock()
		delete(ses.waiting, number)
		ses.mu.Unlock()
	}()
	select {
	case ses.orders <- order:
	case <-ses.done:
		return nil, fmt.Errorf("order %s to %s: its session ended: %w", what, id, ErrNoSession)
	case <-ctx.Done():
		return nil, fmt.Errorf("order %s to %s: not taken: %w", what, id, ctx.Err())
	}
	select {
	case a := <-answers:
		return readAnswer(id, what, a)
	case <-ses.heard:
		select {
		case a := <-answers: // it was the last word
			return readAnswer(id, what, a)
		default:
		}
		return nil, fmt.Errorf("order %s to %s: its session ended before the answer: %w", what, id, ErrNoSession)
	case <-ctx.Done():
		return nil, fmt.Errorf("order %s to %s: no answer: %w", what, id, ctx.Err())
	}
}

func readAnswer(id ServiceID, what string, a *api.Answer) (*api.Answer, error) {
	if a.Error != "" {
		return a, &OrderError{Service: id, Order: what, Text: a.Error, Held: a.Held, Lack: a.Lack}
	}
	return a, nil
}

// orderName returns the order in words, such as "get_step".
func orderName(o *api.ToService) string {
	m := o.ProtoReflect()
	if f := m.WhichOneof(m.Descriptor().Oneofs().ByName("order")); f != nil {
		return string(f.Name())
	}
	return "nothing"
}
