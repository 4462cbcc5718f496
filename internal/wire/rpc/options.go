package rpc

import (
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"

	"vigil/api"
)

// The defaults of the options, from the heartbeat that this one descends from.
const (
	DefaultPollEvery = 4 * time.Second
	DefaultFastPoll  = time.Second
	DefaultDeadAfter = 15 * time.Second
)

// HubOptions say how a Hub works. JobUID and Ears are required.
type HubOptions struct {
	JobUID string // a Sender of another job is refused
	Token  string // the job's secret; a Sender must carry it unless it is empty
	Epoch  uint64 // raised at each start of a controller on one state directory
	Node   string // told to peers; may be empty
	Ears   Ears

	PollEvery time.Duration // between polls of a service that answers; 4 s
	FastPoll  time.Duration // between polls of a suspect; 1 s
	DeadAfter time.Duration // from the last answer to the verdict; 15 s

	// Admit is asked before a registration is taken, when it is not nil; its error refuses it. Seed
	// clients are not asked about.
	Admit func(Registration) error
	// Dropped hears of words that were dropped: from a session that has ended, or not understood. It
	// must not call the Hub. May be nil.
	Dropped func(ServiceID, string)

	// Refused hears of callers that were turned away: of another user, or one client without a sender too
	// many. The text says why. It must not call the Hub. May be nil.
	Refused func(string)

	Server []grpc.ServerOption // further options of the server
	Dial   []grpc.DialOption   // for services beyond Unix sockets; without it those are refused
	Log    *slog.Logger        // nil: nothing is logged

	retry retryPolicy
}

// LinkOptions say how a Link works. Controller, JobUID, ID, Listener and Orders are required.
type LinkOptions struct {
	Controller  string // gRPC target of the controller, such as unix:///run/vigil/c.sock
	JobUID      string
	ID          ServiceID
	Node        string
	PID         int // 0: this process
	Incarnation int // of the role when the service was started
	Token       string
	Epoch       uint64 // of the controller that has started the service; an earlier one is not obeyed
	HTTPAddress string // HOST:PORT of the service; may be empty

	Listener net.Listener // the service's own; closed, and its socket file removed, by Close
	Address  string       // gRPC target of Listener; empty: derived from it

	PollEvery time.Duration // between polls of a controller that answers; 4 s
	FastPoll  time.Duration // between polls of one that missed a poll; 1 s
	DeadAfter time.Duration // from the last answer until it counts as lost; 15 s
	// Grace is the lease: how long Run goes on without a controller, counted from its last answer. 0:
	// Run ends as soon as the controller is lost.
	Grace time.Duration

	// Orders carries out one order and returns its answer; the id is filled in by the Link. Each order
	// has a goroutine of its own. The context ends with Run, not with the session that brought the
	// order. It must not call Unregister or Close and wait for it.
	Orders func(context.Context, *api.ToService) *api.Answer
	// Hello returns all that holds, for the first word of every session: session and dropped are filled in by the
	// Link. It calls told once, at a moment in which nobody calls Send: words sent before that are in what it
	// returns and are not sent, those sent later are not in it. May be nil.
	Hello func(told func()) *api.Hello
	// OnControllerLost is called once, before Run returns ErrControllerLost. May be nil.
	OnControllerLost func()
	// OnStopNotice is called once, when the controller gives notice that it stops. May be nil.
	OnStopNotice func()

	Server []grpc.ServerOption // further options of the server
	Dial   []grpc.DialOption   // for a controller beyond a Unix socket
	Log    *slog.Logger        // nil: nothing is logged

	retry retryPolicy
}

func (o *HubOptions) fill() {
	fillTimes(&o.PollEvery, &o.FastPoll, &o.DeadAfter)
	if o.Dropped == nil {
		o.Dropped = func(ServiceID, string) {}
	}
	if o.Refused == nil {
		o.Refused = func(string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.retry == (retryPolicy{}) {
		o.retry = defaultRetry
	}
}

func (o *LinkOptions) fill() {
	fillTimes(&o.PollEvery, &o.FastPoll, &o.DeadAfter)
	if o.PID == 0 {
		o.PID = os.Getpid()
	}
	if o.Hello == nil {
		o.Hello = func(told func()) *api.Hello {
			told()
			return &api.Hello{}
		}
	}
	if o.OnControllerLost == nil {
		o.OnControllerLost = func() {}
	}
	if o.OnStopNotice == nil {
		o.OnStopNotice = func() {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.retry == (retryPolicy{}) {
		o.retry = defaultRetry
	}
}

func fillTimes(every, fast, dead *time.Duration) {
	if *every <= 0 {
		*every = DefaultPollEvery
	}
	if *fast <= 0 {
		*fast = min(DefaultFastPoll, *every)
	}
	if *dead <= 0 {
		*dead = DefaultDeadAfter
	}
}
