package rpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"vigil/api"
	"vigil/internal/proc"
)

// sender is that of a service of these tests.
func sender(id string, pid int64, incarnation uint64) *api.Sender {
	name, number, _ := strings.Cut(id, "/")
	index, err := strconv.Atoi(number)
	if err != nil {
		panic(err)
	}
	return &api.Sender{
		JobUid: testJob, Name: id, Role: name, Index: uint32(index), Pid: pid, Incarnation: incarnation, Token: testToken,
	}
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: got %v, want code %v", what, err, want)
	}
}

// shows: D1 D2 D30
func TestBothSidesAnswerIsBeatAndTakeAStopNotice(t *testing.T) {
	h := startHub(t, "", nil)
	noticed := make(chan struct{})
	l := startLink(t, h.target(), func(o *LinkOptions) { o.OnStopNotice = func() { close(noticed) } })
	h.ears.await(t, 1, "joined critic/0")
	fromService, fromController := sender("critic/0", int64(l.o.PID), 1), h.request(Registration{}).Sender
	for name, test := range map[string]struct {
		target string
		sender *api.Sender
	}{
		"controller": {h.target(), fromService},
		"service":    {l.address, fromController},
	} {
		reply, err := beatsOf(t, test.target).IsBeat(t.Context(), &api.HeartBeatRequest{Sender: test.sender})
		if err != nil || reply.Sender.GetJobUid() != testJob || reply.Sender.GetToken() != "" {
			t.Errorf("IsBeat to the %s: %v, %v", name, reply, err)
		}
		health, err := healthpb.NewHealthClient(plainConn(t, test.target)).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("gRPC health of the %s: %v, %v", name, health, err)
		}
	}
	if _, err := beatsOf(t, h.target()).NotifyStopPoll(t.Context(), &api.HeartBeatRequest{Sender: fromService}); err != nil {
		t.Errorf("stop notice to the controller: %v", err)
	}
	if _, err := beatsOf(t, l.address).NotifyStopPoll(t.Context(), &api.HeartBeatRequest{Sender: fromController}); err != nil {
		t.Errorf("stop notice to the service: %v", err)
	}
	<-noticed
}

// shows: D3
func TestTheControllerPollsEveryRegisteredService(t *testing.T) {
	h := startHub(t, "", nil)
	var peers []*peerServer
	for i := range 3 {
		p := startPeer(t, &peerServer{})
		peers = append(peers, p)
		_, err := beatsOf(t, h.target()).RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{
			WorkerAddress: p.target(), Sender: sender(fmt.Sprintf("rollout/%d", i), 100, 1),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range peers {
		eventually(t, "ten polls of a registered service", func() bool { return p.polls() >= 10 })
	}
	if got := peers[0].firstPoll().Sender; got.GetName() != "controller" || got.GetToken() != testToken || got.GetControllerEpoch() != 1 {
		t.Errorf("the controller polls as %v", got)
	}
}

// shows: D4
func TestAServicePollsTheControllerWhileItsSessionIsBlocked(t *testing.T) {
	p := startPeer(t, &peerServer{}) // never reads the session
	l := startLink(t, p.target(), nil)
	for range 40 {
		l.Send(&api.FromService{Word: &api.FromService_Failure{Failure: &api.Failure{Life: &api.Life{}, Detail: strings.Repeat("x", 1<<16)}}})
	}
	before := p.polls()
	eventually(t, "ten more polls", func() bool { return p.polls() >= before+10 })
	if _, err := beatsOf(t, l.address).IsBeat(t.Context(), &api.HeartBeatRequest{}); err != nil {
		t.Errorf("the service does not answer while its session is blocked: %v", err)
	}
	if l.beats == l.words {
		t.Error("polls and session share a channel")
	}
	l.stop()
	if err := l.awaitEnd(t); err != nil {
		t.Errorf("Run with a blocked session ended with %v", err)
	}
}

// shows: D6
func TestAServiceIsListedOnceHoweverOftenItRegisters(t *testing.T) {
	h := startHub(t, "", nil)
	p := startPeer(t, &peerServer{})
	request := &api.RegisterWorkerProcessRequest{WorkerAddress: p.target(), Sender: sender("critic/0", 100, 2), HttpAddress: "127.0.0.1:9"}
	first, err := beatsOf(t, h.target()).RegisterWorkerProcess(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	again, err := beatsOf(t, h.target()).RegisterWorkerProcess(t.Context(), request)
	if err != nil || again.Session != first.Session {
		t.Errorf("registered again: %v, %v; the first session was %s", again, err, first.Session)
	}
	got := h.Registrations()
	want := Registration{
		ID: ServiceID{"critic", 0}, Address: p.target(), HTTPAddress: "127.0.0.1:9", Session: first.Session, PID: 100, Incarnation: 2,
	}
	if len(got) != 1 || got[0] != want {
		t.Errorf("registrations are %v, want %v", got, want)
	}
	request.Sender = sender("critic/0", 99, 1)
	_, err = beatsOf(t, h.target()).RegisterWorkerProcess(t.Context(), request)
	wantCode(t, "an earlier incarnation", err, codes.FailedPrecondition)
}

func TestAFailedRegistrationSaysWhy(t *testing.T) {
	h := startHub(t, "", func(o *HubOptions) {
		o.Admit = func(r Registration) error { return errors.New("there is no role critic") }
	})
	for name, test := range map[string]struct {
		controller, token, want string
	}{
		"no socket":   {"unix:///tmp/vigil-no-such-folder/c.sock", testToken, "does not exist"},
		"wrong token": {h.target(), "guess", "the token is not this job's"},
		"refused":     {h.target(), testToken, "there is no role critic"},
	} {
		l := newLink(t, test.controller, func(o *LinkOptions) {
			o.Token = test.token
			o.retry = retryPolicy{initial: time.Hour, max: time.Hour} // nothing of that is tried again
		})
		if err := l.Register(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
}

// shows: D8 D17
func TestAServiceThatEndsNormallyIsNeverTakenForDead(t *testing.T) {
	h := startHub(t, "", func(o *HubOptions) { o.PollEvery, o.FastPoll = time.Millisecond, time.Millisecond })
	for i := range 20 {
		l := startLink(t, h.target(), func(o *LinkOptions) { o.Incarnation = i + 1 })
		h.ears.await(t, i+1, "joined critic/0")
		if err := l.Unregister(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.awaitEnd(t); err != nil {
			t.Fatalf("Run after unregistering: %v", err)
		}
		l.Close(t.Context())
	}
	h.ears.await(t, 20, "left critic/0")
	h.Stop(t.Context())
	if n := h.ears.count("lost"); n != 0 {
		t.Errorf("normal ends were taken for %d deaths:\n%s", n, strings.Join(h.ears.all(), "\n"))
	}
	if len(h.Registrations()) != 0 {
		t.Errorf("still registered: %v", h.Registrations())
	}
}

// shows: D8
func TestUnregisteringTheUnknownIsNotFound(t *testing.T) {
	h := startHub(t, "", nil)
	c := beatsOf(t, h.target())
	_, err := c.UnregisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/nobody", Sender: sender("critic/0", 1, 1)})
	wantCode(t, "unknown service", err, codes.NotFound)
	_, err = c.UnregisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/nobody"})
	wantCode(t, "unknown seed client", err, codes.NotFound)
	_, err = c.IsBeat(t.Context(), &api.HeartBeatRequest{})
	wantCode(t, "the controller afterwards", err, codes.OK)
}

// shows: D9 D16
func TestAHubWithoutServicesIdlesAndStops(t *testing.T) {
	h := startHub(t, "", nil)
	if _, err := beatsOf(t, h.target()).IsBeat(t.Context(), &api.HeartBeatRequest{}); err != nil {
		t.Fatal(err)
	}
	h.Stop(t.Context())
	if err := <-h.served; err != nil {
		t.Errorf("serving ended with %v", err)
	}
	if got := h.ears.all(); len(got) != 0 {
		t.Errorf("heard %v", got)
	}
}

// shows: D10
func TestManyRegisterAndUnregisterAtOnceAndTheCountsAreRight(t *testing.T) {
	h := startHub(t, "", nil)
	hangs, err := proc.ListenUnix(filepath.Join(folder(t), "hangs.sock")) // accepts nothing: calls to it hang
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	var work sync.WaitGroup
	for i := range 12 {
		work.Go(func() {
			c := beatsOf(t, h.target())
			p := startPeer(t, &peerServer{})
			s := sender(fmt.Sprintf("rollout/%d", i), int64(i+1), 1)
			for range 5 {
				r := &api.RegisterWorkerProcessRequest{WorkerAddress: p.target(), Sender: s}
				if _, err := c.RegisterWorkerProcess(t.Context(), r); err != nil {
					t.Errorf("register: %v", err)
				}
				if _, err := c.UnregisterWorkerProcess(t.Context(), r); err != nil {
					t.Errorf("unregister: %v", err)
				}
			}
			_, err := c.UnregisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/nobody", Sender: s})
			wantCode(t, "unregister again", err, codes.NotFound)
			if i%2 == 0 {
				if _, err := c.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: p.target(), Sender: s}); err != nil {
					t.Errorf("register: %v", err)
				}
			}
		})
	}
	work.Go(func() {
		if _, err := beatsOf(t, h.target()).RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: Target(hangs), Sender: sender("actor/0", 1, 1)}); err != nil {
			t.Errorf("register one that hangs: %v", err)
		}
	})
	work.Wait()
	if got := len(h.Registrations()); got != 7 {
		t.Errorf("%d registrations, want 7", got)
	}
	if n := h.ears.count("left"); n != 12*5 {
		t.Errorf("%d left, want %d", n, 12*5)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		h.Stop(ctx)
	}()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("Stop waits for a service that hangs")
	}
}

// shows: D28
func TestAServiceRefusesRegistrationsAndGoesOn(t *testing.T) {
	h := startHub(t, "", nil)
	l := startLink(t, h.target(), nil)
	c := beatsOf(t, l.address)
	_, err := c.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/x"})
	wantCode(t, "register", err, codes.Unimplemented)
	_, err = c.UnregisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/x"})
	wantCode(t, "unregister", err, codes.Unimplemented)
	_, err = c.IsBeat(t.Context(), &api.HeartBeatRequest{})
	wantCode(t, "IsBeat afterwards", err, codes.OK)
}

// shows: D29
func TestRegisterPollUnregisterAndStopAtOnceAreSafe(t *testing.T) {
	for range 3 {
		h := startHub(t, "", func(o *HubOptions) { o.PollEvery, o.FastPoll = time.Millisecond, time.Millisecond })
		var work sync.WaitGroup
		for i := range 8 {
			l := newLink(t, h.target(), func(o *LinkOptions) { o.ID.Index = i })
			work.Go(func() {
				if l.Register(t.Context()) != nil {
					return // the hub was faster
				}
				ran := make(chan error, 1)
				go func() { ran <- l.Run(t.Context()) }()
				for step := range int64(50) {
					l.Beat(&api.Beat{Life: &api.Life{Incarnation: 1}, HasStep: true, Step: step})
				}
				if i%2 == 0 {
					l.Unregister(t.Context())
				}
				l.Close(t.Context())
				<-ran
			})
		}
		work.Go(func() { h.Registrations(); h.Forget(ServiceID{"critic", 1}, 0) })
		work.Go(func() { h.ears.await(t, 4, ""); h.Stop(t.Context()) })
		work.Wait()
	}
}

func TestJunkGetsAStatusAndHarmsNobody(t *testing.T) {
	h := startHub(t, "", nil)
	l := startLink(t, h.target(), nil)
	h.ears.await(t, 1, "joined")
	chance := rand.New(rand.NewPCG(1, 2))
	junk := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(chance.Uint32())
		}
		return b
	}
	for _, path := range []string{h.path, socketPath(l.address)} {
		for range 30 {
			c, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			b := junk(200)
			if chance.IntN(2) == 0 {
				b = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), b...)
			}
			c.Write(b)
			c.Close()
		}
		conn := plainConn(t, "unix://"+path)
		for _, method := range []string{"/heart_beat.HeartBeat/IsBeat", "/heart_beat.HeartBeat/RegisterWorkerProcess", "/heart_beat.HeartBeat/UnregisterWorkerProcess", "/vigil.Sessions/Open", "/no/such"} {
			for range 20 {
				var reply []byte
				err := conn.Invoke(t.Context(), method, junk(chance.IntN(100)), &reply, grpc.ForceCodec(bytesCodec{}))
				if _, isStatus := status.FromError(err); !isStatus {
					t.Errorf("%s: %v is no status", method, err)
				}
			}
		}
	}
	stream, err := api.NewSessionsClient(plainConn(t, h.target())).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream.Send(&api.FromService{Word: &api.FromService_Beats{}})
	_, err = stream.Recv()
	wantCode(t, "a session that does not begin with hello", err, codes.InvalidArgument)
	l.Beat(&api.Beat{Life: &api.Life{Incarnation: 1}, HasStep: true, Step: 7})
	h.ears.await(t, 1, "beat rl-0123abcd/critic/1/0/0 step=7 has=true")
	if n := h.ears.count("lost"); n != 0 {
		t.Errorf("%d services lost to junk", n)
	}
}

// bytesCodec sends what it is given.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (bytesCodec) Name() string                       { return "proto" }

func TestACallThatPanicsGetsAStatus(t *testing.T) {
	h := startHub(t, "", func(o *HubOptions) { o.Admit = func(Registration) error { panic("oh") } })
	c := beatsOf(t, h.target())
	_, err := c.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/x", Sender: sender("critic/0", 5, 1)})
	wantCode(t, "a call that panics", err, codes.Internal)
	_, err = c.IsBeat(t.Context(), &api.HeartBeatRequest{})
	wantCode(t, "the controller afterwards", err, codes.OK)
}
