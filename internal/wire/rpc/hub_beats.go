package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"vigil/api"
	"vigil/internal/role"
)

var ownPID = os.Getpid()

// Why a session ends, as its stream says it. NotFound invites to register again, FailedPrecondition
// does not.
var (
	errUnknown         = status.Error(codes.NotFound, "session is unknown: register again")
	errLost            = status.Error(codes.NotFound, "service was given up as lost: register again")
	errReplaced        = status.Error(codes.FailedPrecondition, "a newer registration of this service has its place")
	errLetGo           = status.Error(codes.FailedPrecondition, "the controller has let go of this service")
	errNewerStream     = status.Error(codes.Aborted, "a newer stream carries this session")
	errControllerStops = status.Error(codes.Unavailable, "the controller stops")
)

// hubBeats is the Hub as HeartBeat server.
type hubBeats struct {
	api.UnimplementedHeartBeatServer
	hub *Hub
}

// IsBeat answers while the controller lives.
func (b hubBeats) IsBeat(ctx context.Context, r *api.HeartBeatRequest) (*api.HeartBeatReply, error) {
	if err := authorize(ctx, r.Sender, b.hub.o.JobUID, b.hub.o.Token); err != nil {
		return nil, err
	}
	return b.reply(r.Sender), nil
}

// NotifyStopPoll ends the polling of its sender. A seed client does not say who it is: it gets its
// answer, and unregisters when it ends.
func (b hubBeats) NotifyStopPoll(ctx context.Context, r *api.HeartBeatRequest) (*api.HeartBeatReply, error) {
	if err := authorize(ctx, r.Sender, b.hub.o.JobUID, b.hub.o.Token); err != nil {
		return nil, err
	}
	if r.Sender != nil {
		b.hub.notice(ServiceID{Role: role.Name(r.Sender.Role), Index: int(r.Sender.Index)}, r.Sender)
	}
	return b.reply(r.Sender), nil
}

func (b hubBeats) reply(sender *api.Sender) *api.HeartBeatReply {
	if sender == nil {
		return &api.HeartBeatReply{}
	}
	return &api.HeartBeatReply{Sender: b.hub.sender()}
}

// notice stops the polling of a service that says it is about to stop.
func (h *Hub) notice(id ServiceID, sender *api.Sender) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.services[id.String()]
	if s != nil && s.reg.PID == int(sender.Pid) && s.reg.Incarnation == int(sender.Incarnation) {
		s.noticed = true
		s.cancel()
	}
}

// RegisterWorkerProcess makes a service known, and polled from now on.
func (b hubBeats) RegisterWorkerProcess(ctx context.Context, r *api.RegisterWorkerProcessRequest) (*api.RegisterWorkerProcessReply, error) {
	h := b.hub
	if err := authorize(ctx, r.Sender, h.o.JobUID, h.o.Token); err != nil {
		return nil, err
	}
	reg, err := readRegistration(r)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "register: %v", err)
	}
	if err := checkTarget(reg.Address, len(h.o.Dial) > 0 && !reg.Seed); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "register: %v", err)
	}
	if h.o.Admit != nil && !reg.Seed {
		if err := h.o.Admit(reg); err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "register %s: %v", reg.Name(), err)
		}
	}
	reg, err = h.register(reg)
	if status.Code(err) == codes.ResourceExhausted {
		h.o.Refused("a client without a sender: " + plain(err).Error())
	}
	if err != nil {
		return nil, err
	}
	if reg.Seed {
		return &api.RegisterWorkerProcessReply{}, nil
	}
	return &api.RegisterWorkerProcessReply{Session: reg.Session, ControllerEpoch: h.o.Epoch}, nil
}

func readRegistration(r *api.RegisterWorkerProcessRequest) (Registration, error) {
	reg := Registration{Address: r.WorkerAddress, HTTPAddress: r.HttpAddress}
	s := r.Sender
	if s == nil {
		reg.Seed = true
		return reg, nil
	}
	name, err := role.ParseName(s.Role)
	switch {
	case err != nil:
		return reg, err
	case s.Index > math.MaxInt32 || s.Incarnation > math.MaxInt32:
		return reg, errors.New("index or incarnation beyond all bounds")
	case len(s.Node) > maxTarget || len(r.HttpAddress) > maxTarget:
		return reg, fmt.Errorf("node or HTTP address of more than %d bytes", maxTarget)
	case s.Pid <= 0 || s.Pid > math.MaxInt32:
		return reg, errors.New("no pid")
	}
	reg.ID = ServiceID{Role: name, Index: int(s.Index)}
	if s.Name != "" && s.Name != reg.ID.String() {
		return reg, errors.New("name and role of the sender differ")
	}
	reg.Node, reg.PID, reg.Incarnation = s.Node, int(s.Pid), int(s.Incarnation)
	return reg, nil
}

// register takes a registration, or returns the one that it repeats. One that is not older than the
// present one of the same service replaces it.
func (h *Hub) register(reg Registration) (Registration, error) {
	conn, err := dial(reg.Address, h.o.retry, h.o.Dial)
	if err != nil {
		return reg, status.Errorf(codes.InvalidArgument, "register %s: %v", reg.Name(), err)
	}
	reg.Session = newSession()
	s := &service{reg: reg, conn: conn, gone: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(h.ctx)
	s.poller = newPoller(newWatch(h.o.PollEvery, h.o.FastPoll, h.o.DeadAfter, time.Now()), conn, reg.Address,
		func() *api.HeartBeatRequest { return h.request(reg) })

	had, err := h.enter(s)
	if err != nil || had != nil {
		s.cancel()
		conn.Close()
		if had != nil {
			return had.reg, nil
		}
		return reg, err
	}
	if reg.Seed {
		h.o.Ears.Joined(reg)
	}
	go func() {
		defer h.work.Done()
		h.watchOver(s)
	}()
	return reg, nil
}

// enter puts a service into the table, or returns the one that is there and the same.
func (h *Hub) enter(s *service) (*service, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping {
		return nil, status.Error(codes.FailedPrecondition, "register: the controller stops")
	}
	seeds := 0
	for _, other := range h.services {
		if other.reg.Address == s.reg.Address && other.reg.Name() != s.reg.Name() {
			return nil, status.Errorf(codes.AlreadyExists, "register %s: %s has this address", s.reg.Name(), other.reg.Name())
		}
		if other.reg.Seed {
			seeds++
		}
	}
	if _, known := h.services[s.reg.Name()]; s.reg.Seed && !known && seeds >= maxSeeds {
		return nil, status.Errorf(codes.ResourceExhausted, "register: %d clients without a sender are registered, and more are not taken", seeds)
	}
	if had := h.services[s.reg.Name()]; had != nil {
		a, b := had.reg, s.reg
		if a.Address == b.Address && a.Incarnation == b.Incarnation && a.PID == b.PID {
			return had, nil
		}
		if b.Incarnation < a.Incarnation {
			return nil, status.Errorf(codes.FailedPrecondition,
				"register %s: incarnation %d is over, pid %d is registered with %d", b.Name(), b.Incarnation, a.PID, a.Incarnation)
		}
		h.endLocked(had, errReplaced)
	}
	for _, l := range h.let { // the same process, under another session
		if l.of == s.reg.ID && l.pid == s.reg.PID && !s.reg.Seed {
			s.heard = max(s.heard, l.heard)
		}
	}
	h.services[s.reg.Name()] = s
	h.work.Add(1) // register starts its watch
	return nil, nil
}

// UnregisterWorkerProcess takes a registration back.
func (b hubBeats) UnregisterWorkerProcess(ctx context.Context, r *api.RegisterWorkerProcessRequest) (*api.RegisterWorkerProcessReply, error) {
	h := b.hub
	if err := authorize(ctx, r.Sender, h.o.JobUID, h.o.Token); err != nil {
		return nil, err
	}
	h.mu.Lock()
	var s *service
	for _, other := range h.services {
		if other.reg.Address == r.WorkerAddress {
			s = other
		}
	}
	h.mu.Unlock()
	switch {
	case s == nil:
		return nil, status.Errorf(codes.NotFound, "unregister: nobody is registered at %q", r.WorkerAddress)
	case s.reg.Seed != (r.Sender == nil), r.Sender != nil && s.reg.PID != int(r.Sender.Pid):
		return nil, status.Errorf(codes.PermissionDenied, "unregister: %q is another's address", r.WorkerAddress)
	}
	if !h.end(s, nil) {
		return nil, status.Errorf(codes.NotFound, "unregister: nobody is registered at %q any more", r.WorkerAddress)
	}
	h.o.Ears.Left(s.reg)
	return &api.RegisterWorkerProcessReply{}, nil
}
