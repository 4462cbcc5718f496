package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"vigil/api"
)

// Link is the service's side: it answers the heartbeat, polls the controller, and holds the session.
// NewLink makes one; Register, Run, Unregister and Close are called in this order, by one goroutine but
// for Run, which has its own. Beat and Send may be called from any goroutine at any time.
type Link struct {
	o       LinkOptions
	address string
	server  *grpc.Server
	beats   *grpc.ClientConn // polls, registering
	words   *grpc.ClientConn // the session: a blocked one does not hold up the polls
	out     *outbox
	serving sync.WaitGroup
	start   sync.Once

	leave    chan struct{} // closed by Unregister and Close
	leaving  sync.Once
	noticed  chan struct{} // closed by the controller's stop notice
	noticing sync.Once
	losing   sync.Once
	refusing sync.Once // said that somebody was refused

	mu      sync.Mutex
	session string // from the last registration
	epoch   uint64
	ran     chan struct{} // nil before Run; closed when it has returned
}

// NewLink returns a link that neither answers nor calls yet. The error says what is wrong with the
// addresses.
func NewLink(o LinkOptions) (*Link, error) {
	o.fill()
	l := &Link{o: o, epoch: o.Epoch, address: o.Address, out: newOutbox(), leave: make(chan struct{}), noticed: make(chan struct{})}
	if l.address == "" {
		l.address = Target(o.Listener)
	}
	if err := checkTarget(o.Controller, len(o.Dial) > 0); err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	var err error
	if l.beats, err = dial(o.Controller, o.retry, o.Dial); err != nil {
		return nil, err
	}
	if l.words, err = dial(o.Controller, noRetry, o.Dial); err != nil {
		return nil, errors.Join(err, l.beats.Close())
	}
	l.server = newServer(o.Log, o.Server)
	api.RegisterHeartBeatServer(l.server, linkBeats{link: l})
	reflect(l.server)
	return l, nil
}

// Register begins to answer, and makes the service known to the controller. The error says why that
// could not be done; the service is of no use then. A socket that refuses is an error at once, a
// controller that does not answer is one after 15 s.
func (l *Link) Register(ctx context.Context) error {
	l.start.Do(func() {
		l.serving.Go(func() {
			if err := l.server.Serve(l.ownersOnly(l.o.Listener)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				l.o.Log.Error("serve heartbeat", "address", l.address, "err", err)
			}
		})
	})
	if err := l.register(ctx); err != nil {
		return fmt.Errorf("register %s with the controller at %s: %w", l.o.ID, l.o.Controller, plain(err))
	}
	return nil
}

func (l *Link) register(ctx context.Context) error {
	if why := refusal(socketPath(l.o.Controller)); why != "" {
		return status.Error(codes.Unavailable, why)
	}
	ctx, cancel := whileListening(ctx, l.o.Controller)
	defer cancel()
	reply, err := api.NewHeartBeatClient(l.beats).RegisterWorkerProcess(ctx, l.registration())
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if reply.ControllerEpoch < l.epoch { // it is not let know its session, so it can order nothing
		return status.Errorf(codes.Unavailable, "the controller has epoch %d, and one of epoch %d has been obeyed", reply.ControllerEpoch, l.epoch)
	}
	l.session, l.epoch = reply.Session, reply.ControllerEpoch
	return nil
}

// plain takes the words out of a status, where it has any.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && s.Message() != "" {
		return fmt.Errorf("%s (%s)", s.Message(), s.Code())
	}
	return err
}

func (l *Link) registration() *api.RegisterWorkerProcessRequest {
	return &api.RegisterWorkerProcessRequest{WorkerAddress: l.address, Sender: l.sender(), HttpAddress: l.o.HTTPAddress}
}

func (l *Link) sender() *api.Sender {
	s := l.self()
	s.Token = l.o.Token
	return s
}

// self is the sender without the token, as it stands in replies.
func (l *Link) self() *api.Sender {
	return &api.Sender{
		JobUid: l.o.JobUID, Name: l.o.ID.String(), Role: string(l.o.ID.Role), Index: uint32(l.o.ID.Index),
		Node: l.o.Node, Pid: int64(l.o.PID), Incarnation: uint64(l.o.Incarnation),
	}
}

// Beat says that a worker gets on. It never blocks. Beats are sent in batches, at most one each 50 ms,
// the first after a quiet time at once; of the beats of one life the newest stands. AgeMs is the age at
// the call. The beat belongs to the link from now on.
func (l *Link) Beat(b *api.Beat) { l.out.beat(b, time.Now()) }

// Send says a word, at once and in order. It never waits for the controller: what waits is bounded for each kind of
// word and each life, so that no word pushes out another's. What a broken stream has not carried is told by the Hello
// of the next one; see LinkOptions.Hello. What cannot be UTF-8 in a word is replaced; a word of more than 4 MiB is
// dropped, with a line in the log. The word belongs to the link from now on.
func (l *Link) Send(w *api.FromService) {
	clean(w)
	if size := proto.Size(w); size > maxMessage {
		l.o.Log.Error("word dropped: too large", "bytes", size, "limit", maxMessage)
		return
	}
	l.out.word(w, time.Now())
}

// Unregister ends the session well, what was said before it included, lets Run return nil, and takes the
// registration back, so that the end of this service is no failure. That the controller is gone, or does
// not know the service any more, is no error. Call it before ending Run's context.
func (l *Link) Unregister(ctx context.Context) error {
	l.leaving.Do(func() { close(l.leave) })
	l.mu.Lock()
	ran := l.ran
	l.mu.Unlock()
	if ran != nil {
		select {
		case <-ran:
		case <-ctx.Done():
		}
	}
	if refusal(socketPath(l.o.Controller)) != "" {
		return nil
	}
	ctx, cancel := whileListening(ctx, l.o.Controller)
	defer cancel()
	_, err := api.NewHeartBeatClient(l.beats).UnregisterWorkerProcess(ctx, l.registration())
	if err == nil || status.Code(err) == codes.NotFound || refusal(socketPath(l.o.Controller)) != "" {
		return nil
	}
	return fmt.Errorf("unregister %s: %w", l.o.ID, plain(err))
}

// Close ends everything: Run, the server, its listener and the channels. All goroutines have ended when
// it returns, but for orders that do not heed their context. Calls under way get until ctx ends.
func (l *Link) Close(ctx context.Context) {
	l.leaving.Do(func() { close(l.leave) })
	l.mu.Lock()
	ran := l.ran
	l.mu.Unlock()
	if ran != nil {
		select {
		case <-ran:
		case <-ctx.Done():
		}
	}
	graceful := make(chan struct{})
	go func() {
		l.server.GracefulStop()
		close(graceful)
	}()
	select {
	case <-graceful:
	case <-ctx.Done():
		l.server.Stop()
		<-graceful
	}
	l.beats.Close()
	l.words.Close()
	l.o.Listener.Close() // if it was never served
	l.serving.Wait()
	if ran != nil {
		<-ran // with its channels closed it cannot stay
	}
}

// linkBeats is the Link as HeartBeat server; registering is the controller's business.
type linkBeats struct {
	api.UnimplementedHeartBeatServer
	link *Link
}

// IsBeat answers while the service lives.
func (b linkBeats) IsBeat(ctx context.Context, r *api.HeartBeatRequest) (*api.HeartBeatReply, error) {
	if err := authorize(ctx, r.Sender, b.link.o.JobUID, b.link.o.Token); err != nil {
		return nil, err
	}
	return b.reply(r.Sender), nil
}

// NotifyStopPoll ends the polling of the controller, if it is the controller that says so, and not one
// that has been replaced.
func (b linkBeats) NotifyStopPoll(ctx context.Context, r *api.HeartBeatRequest) (*api.HeartBeatReply, error) {
	l := b.link
	if err := authorize(ctx, r.Sender, l.o.JobUID, l.o.Token); err != nil {
		return nil, err
	}
	l.mu.Lock()
	epoch := l.epoch
	l.mu.Unlock()
	if s := r.Sender; s != nil && (s.Name != controllerName || s.ControllerEpoch < epoch) {
		return nil, status.Errorf(codes.FailedPrecondition, "stop notice of %q, epoch %d: this service's controller has epoch %d", s.Name, s.ControllerEpoch, epoch)
	}
	l.noticing.Do(func() {
		close(l.noticed)
		l.o.OnStopNotice()
	})
	return b.reply(r.Sender), nil
}

func (b linkBeats) reply(sender *api.Sender) *api.HeartBeatReply {
	if sender == nil {
		return &api.HeartBeatReply{}
	}
	return &api.HeartBeatReply{Sender: b.link.self()}
}
