package rpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"vigil/api"
	"vigil/internal/role"
)

// wires joins a hub and a link in one synctest bubble, without sockets: the controller is whichever hub serves now.
type wires struct {
	mu         sync.Mutex
	controller *bufconn.Listener // nil: there is none
	service    *bufconn.Listener
}

func (w *wires) dial(ctx context.Context, target string) (net.Conn, error) {
	w.mu.Lock()
	at := w.service
	if strings.HasSuffix(target, "controller") {
		at = w.controller
	}
	w.mu.Unlock()
	if at == nil {
		return nil, fmt.Errorf("nobody listens at %s", target)
	}
	return at.DialContext(ctx)
}

func (w *wires) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(w.dial), grpc.WithTransportCredentials(insecure.NewCredentials())}
}

// begin serves a new hub with ears of its own.
func (w *wires) begin(epoch uint64) (*Hub, *timed) {
	ears := &timed{recorder: newRecorder(), at: map[string]time.Time{}}
	h := NewHub(HubOptions{JobUID: testJob, Token: testToken, Epoch: epoch, Ears: ears, Dial: w.options(), Dropped: func(id ServiceID, what string) { ears.note("dropped %s %s", id, what) }})
	l := bufconn.Listen(1 << 20)
	w.mu.Lock()
	w.controller = l
	w.mu.Unlock()
	go h.Serve(l)
	return h, ears
}

// die ends the hub as kill -9 does: no notice.
func (w *wires) die(h *Hub) {
	w.mu.Lock()
	w.controller = nil
	w.mu.Unlock()
	h.server.Stop()
}

// timed is a recorder that notes when failures and checkpoints are said to have happened.
type timed struct {
	*recorder
	at map[string]time.Time // under recorder.mu
}

func (e *timed) Failed(f role.Failure, id ServiceID) {
	e.recorder.Failed(f, id)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at["failed"] = f.At
}

func (e *timed) Checkpoint(l role.Life, step int64, at time.Time) {
	e.recorder.Checkpoint(l, step, at)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at["checkpoint"] = at
}

func (e *timed) Worker(id ServiceID, w WorkerState) {
	e.recorder.Worker(id, w)
	if w.Past == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range w.Past.Phases {
		e.at["phase "+p.Name] = p.Began
	}
}

// told is what a service knows of its 64 workers, told in each Hello.
type told struct {
	mu    sync.Mutex
	began time.Time
	fail  *api.Failure
	saved *api.Checkpoint
}

func (k *told) hello(fresh func()) *api.Hello {
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh()
	age := time.Since(k.began).Milliseconds()
	hello := &api.Hello{}
	for rank := range 64 {
		w := &api.WorkerState{Life: WireLife(life(1, rank)), State: "ready", Past: &api.Past{Spoken: true, AgeMs: age}}
		if rank == 0 && k.fail != nil {
			f, c := proto.CloneOf(k.fail), proto.CloneOf(k.saved)
			f.AgeMs, c.AgeMs = age, age
			w.Past.Failures, w.Past.Checkpoint = []*api.Failure{f}, c
			w.Past.Phases = []*api.Phase{{Life: w.Life, Name: "epoch", Begin: true, AgeMs: age}}
		}
		hello.Workers = append(hello.Workers, w)
	}
	return hello
}

// A controller is away for nine minutes. 64 slow workers are looked at every two seconds, a failure and a checkpoint
// happen in the first second. The next controller knows both, with their time and once, and so it stays when its
// stream breaks.
//
// shows: FAULT-D1
func TestAControllerAwayForNineMinutesHearsOfTheFailureAndTheCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wires{service: bufconn.Listen(1 << 20)}
		first, _ := w.begin(1)
		known := &told{}
		l, err := NewLink(LinkOptions{
			Controller: "passthrough:///controller", JobUID: testJob, ID: critic, Incarnation: 1, Token: testToken,
			Listener: w.service, Address: "passthrough:///service", Grace: time.Hour, Dial: w.options(),
			Orders: func(context.Context, *api.ToService) *api.Answer { return &api.Answer{} }, Hello: known.hello,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Register(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- l.Run(ctx) }()
		if err := first.WaitJoined(ctx, critic, 0); err != nil {
			t.Fatal(err)
		}
		w.die(first)
		time.Sleep(time.Second)

		known.mu.Lock()
		known.began = time.Now()
		said, saved := failure("loss is NaN"), checkpointOf(0, 4000)
		said.GetFailure().Number, saved.GetCheckpoint().Number = 1, 2
		known.fail, known.saved = proto.CloneOf(said.GetFailure()), proto.CloneOf(saved.GetCheckpoint())
		l.Send(said)
		l.Send(saved)
		known.mu.Unlock()
		for range 9 * 60 / 2 {
			for rank := range 64 {
				l.Send(&api.FromService{Word: &api.FromService_Starved{Starved: &api.Starved{Life: WireLife(life(1, rank)), WaitedMs: 5}}})
			}
			time.Sleep(2 * time.Second)
		}
		next, ears := w.begin(2)
		if err := next.WaitJoined(ctx, critic, 0); err != nil {
			t.Fatal(err)
		}
		ears.await(t, 1, "failed critic/0 rl-0123abcd/critic/1/0/1 reported: loss is NaN")
		ears.await(t, 1, "checkpoint rl-0123abcd/critic/1/0/1 4000")
		for what, at := range ears.at {
			if off := at.Sub(known.began).Abs(); off > 2*time.Second {
				t.Errorf("%s is told to have happened %s apart from when it did", what, off)
			}
		}
		if len(ears.at) != 3 {
			t.Errorf("told of %v", ears.at)
		}

		next.mu.Lock()
		open := next.services[critic.String()].session
		next.mu.Unlock()
		open.finish(errNewerStream) // the stream breaks, the controller is there
		ears.await(t, 2, "joined critic/0")
		time.Sleep(time.Second)
		if n := ears.count("failed") + ears.count("checkpoint"); n != 2 {
			t.Errorf("a controller that knew it was told %d times:\n%s", n, strings.Join(slices.DeleteFunc(ears.all(), func(s string) bool { return strings.HasPrefix(s, "worker") }), "\n"))
		}
		stop()
		<-ran
		l.Close(t.Context())
		next.Stop(t.Context())
		first.Stop(t.Context())
		synctest.Wait()
	})
}
