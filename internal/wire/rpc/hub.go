package rpc

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"vigil/api"
	"vigil/internal/wire/caller"
)

const (
	controllerName = "controller"
	// noticeDeadline bounds the wait for services to take the notice that the controller stops.
	noticeDeadline = 2 * time.Second
	// maxReplaced is how many sessions are remembered after they were let go of.
	maxReplaced = 1024
	// maxSeeds is how many clients without a sender are registered at a time. One costs some 50 KB.
	maxSeeds = 128
)

// Hub is the controller's side: it answers the heartbeat, takes registrations and sessions, polls every
// registered service, and carries orders. NewHub makes one. Its methods may be called from any goroutine.
type Hub struct {
	o      HubOptions
	server *grpc.Server
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	work   sync.WaitGroup // pollers and session readers; added to under mu while not stopping

	mu       sync.Mutex
	stopping bool
	services map[string]*service // by Registration.Name
	let      []lapsed            // sessions let go of, oldest first
	orders   uint64              // the last order's id
	changed  chan struct{}       // closed and replaced whenever a session opens
}

// service is one registration and what hangs on it.
type service struct {
	reg    Registration
	conn   *grpc.ClientConn
	poller *poller
	ctx    context.Context // ends when polling shall
	cancel context.CancelFunc
	gone   chan struct{} // closed when the registration has ended

	// Under Hub.mu:
	ended   bool
	noticed bool     // it has said that it stops: silence is not its death
	session *session // open, or nil
	heard   uint64   // the highest number of a word of this process
}

// lapsed is a session that was let go of, and why.
type lapsed struct {
	session string
	of      ServiceID
	pid     int
	heard   uint64
	why     error
}

// NewHub returns a hub that listens nowhere yet.
func NewHub(o HubOptions) *Hub {
	o.fill()
	h := &Hub{o: o, services: map[string]*service{}, changed: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.server = newServer(o.Log, o.Server)
	api.RegisterHeartBeatServer(h.server, hubBeats{hub: h})
	api.RegisterSessionsServer(h.server, hubSessions{hub: h})
	reflect(h.server)
	return h
}

// Serve answers on a listener until Stop; then it returns nil. It may be called for several listeners. On
// a Unix socket it answers our own user and root only.
func (h *Hub) Serve(l net.Listener) error {
	err := h.server.Serve(caller.OwnersOnly(l, func(why error) { h.o.Refused("a connection to its socket: " + why.Error()) }))
	if errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Stop ends the hub: no verdict is passed any more, every registered service gets notice, sessions end,
// and all goroutines have ended when it returns. A service that does not answer delays it by no more
// than two seconds, and ctx may cut that short.
func (h *Hub) Stop(ctx context.Context) {
	h.mu.Lock()
	h.stopping = true
	var all []*service
	for _, s := range h.services {
		all = append(all, s)
	}
	h.mu.Unlock()

	h.cancel() // pollers end their wait at once
	ctx, cancel := context.WithTimeout(ctx, noticeDeadline)
	defer cancel()
	var notices sync.WaitGroup
	for _, s := range all {
		notices.Go(func() { h.notify(ctx, s) })
	}
	notices.Wait()

	for _, s := range all {
		h.end(s, errControllerStops)
	}
	graceful := make(chan struct{})
	go func() {
		h.server.GracefulStop()
		close(graceful)
	}()
	select {
	case <-graceful:
	case <-ctx.Done():
		h.server.Stop()
		<-graceful
	}
	h.work.Wait()
}

// notify tells a service that the controller stops on purpose.
func (h *Hub) notify(ctx context.Context, s *service) {
	if refusal(socketPath(s.reg.Address)) != "" {
		return
	}
	ctx, cancel := whileListening(ctx, s.reg.Address)
	defer cancel()
	if _, err := api.NewHeartBeatClient(s.conn).NotifyStopPoll(ctx, h.request(s.reg)); err != nil {
		h.o.Log.Debug("stop notice not taken", "service", s.reg.Name(), "err", err)
	}
}

// Registrations returns those that are neither unregistered, lost, forgotten nor replaced, by name.
func (h *Hub) Registrations() []Registration {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]Registration, 0, len(h.services))
	for _, s := range h.services {
		out = append(out, s.reg)
	}
	slices.SortFunc(out, func(a, b Registration) int {
		if c := strings.Compare(string(a.ID.Role), string(b.ID.Role)); c != 0 {
			return c
		}
		if a.ID.Index != b.ID.Index {
			return a.ID.Index - b.ID.Index
		}
		return strings.Compare(a.Address, b.Address)
	})
	return out
}

// WaitJoined waits until the service has an open session. With a pid, only the registration of that
// process counts; 0 stands for any. The error is ctx's.
func (h *Hub) WaitJoined(ctx context.Context, id ServiceID, pid int) error {
	for {
		h.mu.Lock()
		s := h.services[id.String()]
		joined := s != nil && s.session != nil && s.session.joined && (pid == 0 || s.reg.PID == pid)
		changed := h.changed
		h.mu.Unlock()
		if joined {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// Forget ends a registration of which the controller knows better: it has proof of the process's death,
// or has stopped it. No Lost follows, but for one that is being told at this moment. Its session, if
// there is one, ends; the service will not register again by itself. A pid other than the registered
// one does nothing; 0 stands for any.
func (h *Hub) Forget(id ServiceID, pid int) {
	h.mu.Lock()
	s := h.services[id.String()]
	h.mu.Unlock()
	if s != nil && (pid == 0 || s.reg.PID == pid) {
		h.end(s, errLetGo)
	}
}

// end takes a registration out. It returns false if it was out already. The session, if open, ends with
// why; nil ends it well.
func (h *Hub) end(s *service, why error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.endLocked(s, why)
}

func (h *Hub) endLocked(s *service, why error) bool {
	if s.ended {
		return false
	}
	s.ended = true
	delete(h.services, s.reg.Name())
	if errors.Is(why, errLetGo) || errors.Is(why, errReplaced) || errors.Is(why, errLost) {
		h.let = append(h.let, lapsed{s.reg.Session, s.reg.ID, s.reg.PID, s.heard, why})
		if len(h.let) > maxReplaced {
			h.let = slices.Delete(h.let, 0, len(h.let)-maxReplaced)
		}
	}
	if s.session != nil {
		s.session.finish(why)
		s.session = nil
	}
	s.cancel()
	close(s.gone)
	return true
}

// request is what the hub sends to a peer: a seed client gets what it knows, nothing.
func (h *Hub) request(r Registration) *api.HeartBeatRequest {
	if r.Seed {
		return &api.HeartBeatRequest{}
	}
	sender := h.sender()
	sender.Token = h.o.Token
	return &api.HeartBeatRequest{Sender: sender}
}

// sender is the hub's without the token, as it stands in replies.
func (h *Hub) sender() *api.Sender {
	return &api.Sender{JobUid: h.o.JobUID, Name: controllerName, Node: h.o.Node, Pid: int64(ownPID), ControllerEpoch: h.o.Epoch}
}

// watchOver polls a service until its registration ends; it tells of suspicion and death.
func (h *Hub) watchOver(s *service) {
	defer s.conn.Close()
	s.poller.run(s.ctx, func(v verdict, why string) bool {
		switch v {
		case suspect:
			if !h.excused(s) {
				h.o.Ears.Suspected(s.reg, why)
			}
		case dead:
			h.drain(s)
			if h.excused(s) { // read again: it may have unregistered meanwhile
				return false
			}
			if s.poller.revived() { // a service that was stopped is let run on when its workers are ended
				return true
			}
			if h.end(s, errLost) {
				h.o.Ears.Lost(s.reg, why)
			}
			return false
		case alive:
			h.o.Log.Debug("service answers again", "service", s.reg.Name())
		}
		return true
	})
	// The channel stays open for the notice of Stop, and until the registration ends.
	<-s.gone
}

// excused says whether a service's silence has a good reason.
func (h *Hub) excused(s *service) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return s.ended || s.noticed || h.stopping
}

// drain lets the words that a service said before it died be heard before its death is told.
func (h *Hub) drain(s *service) {
	h.mu.Lock()
	open := s.session
	h.mu.Unlock()
	if open == nil {
		return
	}
	timer := time.NewTimer(250 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-open.heard:
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

// newSession returns an unguessable name.
func newSession() string { return rand.Text() }
