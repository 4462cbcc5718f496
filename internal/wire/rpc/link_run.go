package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"vigil/api"
)

const (
	// reopenEvery is how often a service without a session tries to open one.
	reopenEvery = 250 * time.Millisecond
	// leaveWithin bounds how long a leaving service waits for its last words to be heard.
	leaveWithin = 2 * time.Second
)

// Run polls the controller and keeps a session open: it opens a broken one again while the controller
// answers, and registers again where the controller does not know it. It returns nil when ctx has ended
// or Unregister was called, and wraps ErrControllerLost when the controller has been lost for the grace,
// ErrControllerStopped when it has given notice and its session has ended, ErrReplaced when it has let
// go of this service. It is called once, after Register.
func (l *Link) Run(outer context.Context) error {
	ran := make(chan struct{})
	l.mu.Lock()
	l.ran = ran
	l.mu.Unlock()
	defer close(ran)

	ctx, end := context.WithCancelCause(outer)
	var work sync.WaitGroup
	p := newPoller(newWatch(l.o.PollEvery, l.o.FastPoll, l.o.DeadAfter, time.Now()), l.beats, l.o.Controller,
		func() *api.HeartBeatRequest { return &api.HeartBeatRequest{Sender: l.sender()} })
	work.Go(func() { l.pollController(ctx, p, end) })
	work.Go(func() { end(l.keepSession(ctx, p)) })
	work.Go(func() { l.limitEnd(ctx, end) })
	work.Wait()

	err := context.Cause(ctx)
	if errors.Is(err, errWantedEnd) || outer.Err() != nil && errors.Is(err, context.Cause(outer)) {
		return nil
	}
	return err
}

// errWantedEnd is the cause of Run's end after Unregister.
var errWantedEnd = errors.New("unregistered")

// limitEnd ends Run some time after a wanted end has begun, if the session does not end by itself.
func (l *Link) limitEnd(ctx context.Context, end context.CancelCauseFunc) {
	limit, why := leaveWithin, errWantedEnd
	select {
	case <-ctx.Done():
		return
	case <-l.leave:
	case <-l.noticed:
		limit, why = l.o.DeadAfter, errNoticed
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		end(why)
	}
}

var errNoticed = fmt.Errorf("poll controller: %w", ErrControllerStopped)

// pollController polls until Run ends, the service leaves, or the controller gives notice; each ends the
// wait at once. A controller that is lost for the grace ends Run.
func (l *Link) pollController(ctx context.Context, p *poller, end context.CancelCauseFunc) {
	polling, stop := context.WithCancel(ctx)
	defer stop()
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		defer stop()
		select {
		case <-polling.Done():
		case <-l.leave:
		case <-l.noticed:
		}
	})
	var lease *time.Timer // runs while the controller is lost
	defer func() {
		if lease != nil {
			lease.Stop()
		}
	}()
	p.run(polling, func(v verdict, why string) bool {
		if l.isLeaving() || l.wasNoticed() { // read again: its silence has a reason now
			return false
		}
		switch v {
		case suspect:
			l.o.Log.Debug("controller suspected", "why", why)
		case dead:
			left := max(time.Until(p.watch.answer.Add(l.o.Grace)), 0)
			if l.o.Grace == 0 || left == 0 {
				l.lost(why, end)
				return false
			}
			l.o.Log.Warn("controller lost", "why", why, "grace", left.Round(time.Second))
			lease = time.AfterFunc(left, func() {
				if polling.Err() == nil {
					l.lost(why, end)
				}
			})
		case alive:
			if lease != nil {
				lease.Stop()
				lease = nil
				l.o.Log.Info("controller is back")
			}
		}
		return true
	})
}

func (l *Link) lost(why string, end context.CancelCauseFunc) {
	l.losing.Do(func() {
		l.o.OnControllerLost()
		end(fmt.Errorf("%w: %s", ErrControllerLost, why))
	})
}

func (l *Link) isLeaving() bool {
	select {
	case <-l.leave:
		return true
	default:
		return false
	}
}

func (l *Link) wasNoticed() bool {
	select {
	case <-l.noticed:
		return true
	default:
		return false
	}
}

// keepSession holds a session open until Run shall end; it returns why.
func (l *Link) keepSession(ctx context.Context, p *poller) error {
	for {
		err := l.runSession(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case l.isLeaving():
			return errWantedEnd
		case l.wasNoticed():
			return errNoticed
		}
		p.poke() // is it dead, or only the stream?
		switch status.Code(err) {
		case codes.FailedPrecondition:
			return fmt.Errorf("%w: %w", ErrReplaced, plain(err))
		case codes.NotFound:
			err = l.register(ctx)
			if err == nil {
				continue
			}
			if c := status.Code(err); c == codes.FailedPrecondition || c == codes.PermissionDenied || c == codes.Unauthenticated {
				return fmt.Errorf("%w: %w", ErrReplaced, plain(err))
			}
		}
		l.o.Log.Debug("session ended", "err", err)
		timer := time.NewTimer(reopenEvery)
		select {
		case <-ctx.Done():
		case <-l.leave:
		case <-l.noticed:
		case <-timer.C:
		}
		timer.Stop()
	}
}
