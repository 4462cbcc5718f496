// Package rpc is the wire between controller and services: gRPC, over Unix sockets on one machine.
//
// The controller runs a Hub, each service a Link. Both answer IsBeat and NotifyStopPoll of
// api/heart_beat.proto and both poll the other, each on a channel of its own, so that either notices
// the death of the other. A service registers, and then opens one session (api/vigil.proto): a stream
// on which its words go up (heartbeats in batches, failures at once) and orders come down.
//
// The order of a life: NewLink, Register, Run, Unregister, Close on the service; NewHub, Serve, Stop on
// the controller. What the Hub hears it hands to its Ears; what it makes of a peer's silence is judged
// by the watch, which is pure.
//
// A peer that sends no Sender is a seed client: it knows the four calls and worker_address only. It is
// accepted on Unix sockets, whose mode 0600 says who may connect.
package rpc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"vigil/internal/role"
)

// ServiceID names a service: the role whose workers it runs, and its index among the role's services.
type ServiceID struct {
	Role  role.Name
	Index int
}

// String returns ROLE/INDEX, such as "critic/0".
func (id ServiceID) String() string { return string(id.Role) + "/" + strconv.Itoa(id.Index) }

// Registration is what a service has said of itself when it registered.
type Registration struct {
	ID          ServiceID // zero for a seed client
	Address     string    // gRPC target of its own server, such as unix:///run/vigil/x.sock
	HTTPAddress string    // HOST:PORT; may be empty
	Node        string
	Session     string // names the registration; its session stream opens with it
	PID         int    // 0 for a seed client
	Incarnation int    // of the role when the service was started
	Seed        bool   // a client that knows the four calls of the seed only
}

// Name returns the service's id, or for a seed client its address.
func (r Registration) Name() string {
	if r.Seed {
		return r.Address
	}
	return r.ID.String()
}

// WorkerState is what a service says of one of its workers.
type WorkerState struct {
	Life    role.Life
	PID     int
	State   role.WorkerState
	Exit    *role.Exit // when State is finished or down and the worker has run
	Status  string     // in the worker's own words; may be empty
	Unready string     // while it is starting: what its ready probe met last; may be empty
	Again   bool       // told with the first word of a session, not because it has changed
	Past    *Past      // what it has said so far, where it is told again; nil: nothing
}

// Past is what a worker has said in its life before this session.
type Past struct {
	At      time.Time // of its last word
	Step    *int64    // nil: it has said none
	Guessed bool      // the step was guessed
	Phases  []Phase   // that are open, outermost first
}

// Phase is an open phase.
type Phase struct {
	Name  string
	Began time.Time
}

// Ears hears what services say. The methods return quickly and may be called from many goroutines; what
// one session says arrives in order. They may call the Hub.
type Ears interface {
	// Joined says that a session stream is open and its Hello was read; Worker follows for each worker
	// of the Hello. It is told again when a broken stream was reopened. A seed client, which has no
	// session, joins by registering.
	Joined(Registration)
	// Left says that a service has unregistered: not a failure.
	Left(Registration)
	// Suspected says that a poll was missed, once per silence. The text says how.
	Suspected(Registration, string)
	// Lost says that a service is dead: once per registration, DeadAfter after its last answer, or at
	// once when its Unix socket refuses. The text says what the verdict rests on. A service that was
	// only cut off may register, and join, again.
	Lost(Registration, string)
	// Beat hands on a worker's word that it gets on; at is when it was said.
	Beat(life role.Life, step int64, hasStep bool, at time.Time)
	// Guess hands on a step that the service has guessed from a worker's output, a file or a hook.
	Guess(life role.Life, step int64, at time.Time)
	// Phase says that a worker has entered a phase, or with begin false left it.
	Phase(life role.Life, name string, begin bool, at time.Time)
	// Starved says for how long lately a silent worker has waited for a CPU.
	Starved(life role.Life, waited time.Duration)
	// Notice says what a person should know of a worker and what is no failure.
	Notice(life role.Life, text string)
	// Foreign says how many datagrams of processes that may not speak for a worker were dropped since it was said last.
	Foreign(life role.Life, datagrams uint64)
	// Unreadable says that a worker's steps cannot be read where they are noted: nobody knows whether it gets on.
	Unreadable(life role.Life)
	// StepSet says that the role's step was set at the service's own endpoint. It may be told more than once, before
	// the workers of a Hello.
	StepSet(ServiceID, StepSet)
	// Failed hands on a failure that a service reports.
	Failed(role.Failure, ServiceID)
	// Worker hands on what a worker is doing.
	Worker(ServiceID, WorkerState)
	// Checkpoint says that a worker has saved its work of a step completely.
	Checkpoint(life role.Life, step int64, at time.Time)
	// Asked says what an operator has asked a service for at its own endpoints: AskedStop.
	Asked(r Registration, what string)
	// Ending says that a service ends its workers in order and then itself, because of a signal. It may be said
	// twice.
	Ending(r Registration, signal string)
}

// StepSet is a step that was set at a service's own endpoint.
type StepSet struct {
	Number      uint64 // names it
	Step        int64
	Taken       bool // the workers of Incarnation have taken it; else it is for the next life
	Incarnation int
	At          time.Time
}

// AskedStop is what an operator asks for with stop_service.
const AskedStop = "stop_service"

// OrderError says that a service has answered an order with an error.
type OrderError struct {
	Service ServiceID
	Order   string   // such as "stop"
	Text    string   // the service's words
	Held    []string // for stop: who held on, "rank 2 pid 4711 python3"
	Lack    string   // for run: the limit of the machine that kept it from being carried out; empty: none did
}

// Error says which order was not carried out, by whom and why.
func (e *OrderError) Error() string {
	s := fmt.Sprintf("order %s to %s: %s", e.Order, e.Service, e.Text)
	if len(e.Held) > 0 {
		s += " (held by " + strings.Join(e.Held, ", ") + ")"
	}
	return s
}

var (
	// ErrNoSession is wrapped by Hub.Call when the service has no open session, or lost it before it
	// answered.
	ErrNoSession = errors.New("no open session")
	// ErrControllerLost is wrapped by Link.Run when the controller has been lost for the grace.
	ErrControllerLost = errors.New("controller lost")
	// ErrControllerStopped is wrapped by Link.Run when the controller has given notice that it stops.
	ErrControllerStopped = errors.New("controller stopped")
	// ErrReplaced is wrapped by Link.Run when the controller has let go of this service: a newer one
	// has its place, or it was told to end.
	ErrReplaced = errors.New("controller has let go of this service")
)
