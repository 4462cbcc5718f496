package rpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"vigil/api"
)

// probeEvery is how often a Unix socket is looked at while the channel to it is not connected: a process
// that dies may close its connections a moment before its listener.
const probeEvery = 50 * time.Millisecond

// maxInFlight bounds the polls of one peer that wait for their answer.
const maxInFlight = 4

// poller asks one peer IsBeat again and again and tells what its watch makes of the answers.
type poller struct {
	watch   *watch
	conn    *grpc.ClientConn
	path    string // of the peer's Unix socket; "" if it has none
	request func() *api.HeartBeatRequest

	poked    chan struct{} // of capacity 1
	force    bool          // ask as soon as somebody listens, due or not
	inFlight int
	results  chan error
}

func newPoller(w *watch, conn *grpc.ClientConn, target string, request func() *api.HeartBeatRequest) *poller {
	return &poller{
		watch: w, conn: conn, path: socketPath(target), request: request,
		poked: make(chan struct{}, 1), results: make(chan error, maxInFlight),
	}
}

// poke asks for a look and a poll at once, because something broke. It never blocks.
func (p *poller) poke() {
	select {
	case p.poked <- struct{}{}:
	default:
	}
}

// run polls until ctx ends, which ends its wait at once, or until tell returns false. It tells every
// change of the verdict; the peer counts as alive at first. Its goroutines have ended when it returns.
func (p *poller) run(ctx context.Context, tell func(verdict, string) bool) {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	calls.Go(func() { p.follow(ctx) })

	timer := time.NewTimer(0)
	defer timer.Stop()
	last := alive
	for {
		now := time.Now()
		reachable := p.probe()
		v, why := p.watch.look(now)
		if v != last {
			last = v
			if !tell(v, why) {
				return
			}
		}
		if reachable && (p.force || p.watch.due(now)) {
			p.ask(ctx, &calls, now)
		}
		timer.Reset(p.pause())
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.poked:
			p.force = true
		case err := <-p.results:
			p.inFlight--
			if ctx.Err() != nil {
				return // a poll that was cut off by a wanted end says nothing
			}
			p.judge(err)
		}
	}
}

// judge takes in how a poll came back.
func (p *poller) judge(err error) {
	if err == nil {
		p.watch.answered(time.Now())
	} else {
		p.watch.failed()
	}
}

// revived says whether a peer whose silence was told as its death has answered since. It is for tell to
// ask, which may have taken its time. Proof of a death is not revised.
func (p *poller) revived() bool {
	for p.watch.gone == "" {
		select {
		case err := <-p.results:
			p.inFlight--
			p.judge(err)
		default:
			v, _ := p.watch.look(time.Now())
			return v != dead
		}
	}
	return false
}

// pause is how long to wait for the next look.
func (p *poller) pause() time.Duration {
	if p.path != "" && p.conn.GetState() != connectivity.Ready {
		return min(p.watch.period(), probeEvery)
	}
	return p.watch.period()
}

// probe looks at the peer's socket itself when the channel is not connected, so that no verdict has to
// wait for retries. It returns false, and notes the proof, when nobody listens.
func (p *poller) probe() bool {
	if p.path == "" || p.conn.GetState() == connectivity.Ready {
		return true
	}
	if why := refusal(p.path); why != "" {
		p.watch.refused(why)
		return false
	}
	if p.watch.gone != "" { // somebody listens again
		p.conn.ResetConnectBackoff()
		p.force = true
	}
	return true
}

func (p *poller) ask(ctx context.Context, calls *sync.WaitGroup, now time.Time) {
	if p.inFlight >= maxInFlight {
		return
	}
	p.inFlight++
	p.force = false
	p.watch.asked(now)
	calls.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, callDeadline)
		defer cancel()
		_, err := api.NewHeartBeatClient(p.conn).IsBeat(ctx, p.request())
		p.results <- err
	})
}

// follow pokes whenever the channel's connection comes or breaks.
func (p *poller) follow(ctx context.Context) {
	for state := p.conn.GetState(); p.conn.WaitForStateChange(ctx, state); {
		next := p.conn.GetState()
		if state == connectivity.Ready || next == connectivity.Ready {
			p.poke()
		}
		if next == connectivity.Idle {
			p.conn.Connect()
		}
		state = next
	}
}
