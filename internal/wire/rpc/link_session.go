package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"vigil/api"
)

// runSession opens the stream and holds it until it ends. Its error is the stream's.
func (l *Link) runSession(ctx context.Context) error {
	if why := refusal(socketPath(l.o.Controller)); why != "" {
		return status.Error(codes.Unavailable, why)
	}
	l.words.ResetConnectBackoff()
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := api.NewSessionsClient(l.words).Open(streaming)
	if err != nil {
		return err
	}
	l.mu.Lock()
	session := l.session
	l.mu.Unlock()
	hello := &api.FromService{Word: &api.FromService_Hello{Hello: l.hello(session)}}
	clean(hello)
	if err := stream.Send(hello); err != nil {
		return ended(stream, err)
	}
	// Only a session that stands gets what waits. A stream that ends instead has no header.
	if header, err := stream.Header(); err != nil || header == nil {
		return ended(stream, io.EOF)
	}

	orders := newUnderway()
	heard := make(chan error, 1)
	broken := make(chan struct{})
	go func() {
		for {
			order, err := stream.Recv()
			if err != nil {
				close(broken)
				heard <- err
				return
			}
			orders.begin()
			go func() {
				defer orders.end()
				l.carryOut(ctx, order, broken)
			}()
		}
	}()
	err = l.say(streaming, stream, broken, orders)
	if err != nil {
		cancel()
	}
	if e := <-heard; !errors.Is(e, io.EOF) && status.Code(e) != codes.Canceled {
		err = e
	}
	return err
}

// hello returns what a session begins with, and drops the words that it tells.
func (l *Link) hello(session string) *api.Hello {
	hello := l.o.Hello(l.out.toldByHello)
	hello.Session, hello.Dropped = session, l.out.lost()
	if hello.Dropped > 0 {
		l.o.Log.Warn("words dropped: too many of one kind and worker waited for the controller", "words", hello.Dropped)
	}
	return hello
}

// carryOut has one order carried out and queues its answer, unless the session that brought it has
// ended meanwhile, or Run ends: what was cut short has no answer.
func (l *Link) carryOut(ctx context.Context, order *api.ToService, broken <-chan struct{}) {
	answer := l.o.Orders(ctx, order)
	if answer == nil {
		answer = &api.Answer{}
	}
	answer.Id = order.Id
	select {
	case <-ctx.Done():
		l.o.Log.Debug("answer dropped: the link ends", "order", orderName(order), "err", answer.Error)
	case <-broken:
		l.o.Log.Debug("answer dropped: its session has ended", "order", orderName(order), "err", answer.Error)
	default:
		l.Send(&api.FromService{Word: &api.FromService_Answer{Answer: answer}})
	}
}

// say sends what waits in the outbox until the stream breaks or the service leaves. On leaving it waits
// for the answers of orders under way, sends what is left, and closes its side.
func (l *Link) say(ctx context.Context, stream api.Sessions_OpenClient, broken <-chan struct{}, orders *underway) error {
	leave, last := l.leave, (<-chan struct{})(nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	leaving := false
	for {
		batch, wait := l.out.take(time.Now())
		for i, q := range batch {
			now := time.Now()
			if err := stream.Send(q.aged(now)); err != nil {
				l.out.broke(batch[i:])
				return err
			}
		}
		if leaving && l.out.empty() {
			return stream.CloseSend()
		}
		var later <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			later = timer.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-broken:
			return io.EOF
		case <-l.out.wake:
		case <-later:
		case <-leave:
			leave, last = nil, orders.none()
		case <-last:
			last, leaving = nil, true
		}
	}
}

// underway counts the orders that are being carried out.
type underway struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed while n is 0
}

func newUnderway() *underway {
	u := &underway{idle: make(chan struct{})}
	close(u.idle)
	return u
}

func (u *underway) begin() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == 0 {
		u.idle = make(chan struct{})
	}
	u.n++
}

func (u *underway) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n--; u.n == 0 {
		close(u.idle)
	}
}

// none is closed when no order is under way any more.
func (u *underway) none() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.idle
}

// ended returns the status with which a stream ended on which sending failed.
func ended(stream api.Sessions_OpenClient, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	_, err = stream.Recv()
	return err
}
