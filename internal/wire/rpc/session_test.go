package rpc

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"vigil/api"
	"vigil/internal/role"
)

var critic = ServiceID{"critic", 0}

func getStep() *api.ToService {
	return &api.ToService{Order: &api.ToService_GetStep{GetStep: &api.GetStep{}}}
}

func stopOrder() *api.ToService {
	return &api.ToService{Order: &api.ToService_Stop{Stop: &api.Stop{}}}
}

func life(incarnation, rank int) role.Life {
	return role.Life{Job: testJob, Role: "critic", Incarnation: incarnation, Rank: rank, Attempt: 1}
}

func failure(detail string) *api.FromService { return failureOf(0, detail) }

func failureOf(rank int, detail string) *api.FromService {
	return WireFailure(role.Failure{Life: life(1, rank), Cause: role.Reported, Detail: detail, At: time.Now()}, time.Now())
}

func TestASessionBringsWhatRunsAlreadyAndWhatHappens(t *testing.T) {
	h := startHub(t, "", nil)
	l := startLink(t, h.target(), func(o *LinkOptions) {
		o.Hello = func(told func()) *api.Hello {
			told()
			return &api.Hello{Workers: []*api.WorkerState{{Life: WireLife(life(1, 0)), State: "ready"}, {Life: WireLife(life(1, 1)), State: "down"}}}
		}
	})
	if err := h.WaitJoined(t.Context(), critic, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	l.Send(failure("CUDA out of memory \xff"))
	l.Send(&api.FromService{Word: &api.FromService_Worker{Worker: &api.WorkerState{Life: WireLife(life(1, 1)), State: "starting"}}})
	l.Send(&api.FromService{Word: &api.FromService_Checkpoint{Checkpoint: &api.Checkpoint{Life: WireLife(life(1, 0)), Step: 40}}})
	l.Send(&api.FromService{})
	l.Beat(&api.Beat{Life: WireLife(life(1, 0)), HasStep: true, Step: 41})
	h.ears.await(t, 1, "beat rl-0123abcd/critic/1/0/1 step=41 has=true")
	h.ears.await(t, 1, "checkpoint")
	want := []string{
		"joined critic/0",
		"worker critic/0 rl-0123abcd/critic/1/0/1 ready",
		"worker critic/0 rl-0123abcd/critic/1/1/1 down",
		"failed critic/0 rl-0123abcd/critic/1/0/1 reported: CUDA out of memory \ufffd",
		"worker critic/0 rl-0123abcd/critic/1/1/1 starting",
		"checkpoint rl-0123abcd/critic/1/0/1 40",
	}
	var got []string
	for _, line := range h.ears.all() {
		if !strings.HasPrefix(line, "beat") && !strings.HasPrefix(line, "suspected") {
			got = append(got, line)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("heard\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestPhasesGuessesAndHungerAreHandedOnAndWhatCannotBeOneIsDropped(t *testing.T) {
	h := startHub(t, "", nil)
	l := startLink(t, h.target(), nil)
	if err := h.WaitJoined(t.Context(), critic, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	phase := func(name string, begin bool) {
		l.Send(&api.FromService{Word: &api.FromService_Phase{Phase: &api.Phase{Life: WireLife(life(1, 0)), Name: name, Begin: begin}}})
	}
	phase("", true)
	phase(strings.Repeat("p", 65), true)
	l.Send(&api.FromService{Word: &api.FromService_Phase{Phase: &api.Phase{Name: "of no life"}}})
	phase("eval", true)
	phase("eval", false)
	l.Send(&api.FromService{Word: &api.FromService_Starved{Starved: &api.Starved{Life: WireLife(life(1, 0)), WaitedMs: 1500}}})
	l.Send(&api.FromService{Word: &api.FromService_Notice{Notice: &api.Notice{Life: WireLife(life(1, 0)), Text: "its log cannot be written"}}})
	l.Send(&api.FromService{Word: &api.FromService_Notice{Notice: &api.Notice{Life: WireLife(life(1, 1)), Text: "its file is no file", Unreadable: true}}})
	l.Send(&api.FromService{Word: &api.FromService_Notice{Notice: &api.Notice{Life: WireLife(life(1, 1)), Foreign: 7}}})
	l.Beat(&api.Beat{Life: WireLife(life(1, 1)), HasStep: true, Step: 41, Guessed: true})
	h.ears.await(t, 1, "notice rl-0123abcd/critic/1/0/1 its log cannot be written")
	h.ears.await(t, 1, "notice rl-0123abcd/critic/1/1/1 its file is no file")
	h.ears.await(t, 1, "foreign rl-0123abcd/critic/1/1/1 7")
	h.ears.await(t, 1, "unreadable rl-0123abcd/critic/1/1/1")
	h.ears.await(t, 1, "guess rl-0123abcd/critic/1/1/1 step=41")
	h.ears.await(t, 1, "starved rl-0123abcd/critic/1/0/1 1.5s")
	got := slices.DeleteFunc(h.ears.all(), func(line string) bool { return !strings.HasPrefix(line, "phase") })
	want := []string{"phase rl-0123abcd/critic/1/0/1 eval begin=true", "phase rl-0123abcd/critic/1/0/1 eval begin=false"}
	if !slices.Equal(got, want) {
		t.Errorf("heard %q, want %q", got, want)
	}
}

func TestAnOrderIsAnsweredWhileAnotherIsUnderWay(t *testing.T) {
	h := startHub(t, "", nil)
	release, under := make(chan struct{}), make(chan struct{})
	startLink(t, h.target(), func(o *LinkOptions) {
		o.Orders = func(_ context.Context, order *api.ToService) *api.Answer {
			if order.GetStop() != nil {
				close(under)
				<-release
				return &api.Answer{Error: "still running 30s after SIGKILL", Held: []string{"rank 2 pid 4711 python3"}}
			}
			return &api.Answer{Step: 17}
		}
	})
	if err := h.WaitJoined(t.Context(), critic, 0); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() {
		_, err := h.Call(t.Context(), critic, stopOrder())
		stopped <- err
	}()
	<-under
	answer, err := h.Call(t.Context(), critic, getStep())
	if err != nil || answer.Step != 17 {
		t.Errorf("get_step during stop: %v, %v", answer, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	close(release)
	var refused *OrderError
	if err := <-stopped; !errors.As(err, &refused) || len(refused.Held) != 1 {
		t.Errorf("stop answered %v", err)
	} else if want := "order stop to critic/0: still running 30s after SIGKILL (held by rank 2 pid 4711 python3)"; err.Error() != want {
		t.Errorf("error reads %q, want %q", err, want)
	}
	if err := h.WaitJoined(short, ServiceID{"actor", 0}, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for one who never joins: %v", err)
	}
}

func TestHeartbeatsGoOnWhileAnOrderIsBlocked(t *testing.T) {
	h := startHub(t, "", nil)
	release, under := make(chan struct{}), make(chan struct{})
	l := startLink(t, h.target(), func(o *LinkOptions) {
		o.Orders = func(context.Context, *api.ToService) *api.Answer {
			close(under)
			<-release
			return nil
		}
	})
	if err := h.WaitJoined(t.Context(), critic, 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := h.Call(t.Context(), critic, stopOrder())
		done <- err
	}()
	<-under
	for step := range 5 {
		l.Beat(&api.Beat{Life: WireLife(life(1, step)), HasStep: true, Step: int64(step)})
	}
	h.ears.await(t, 5, "beat")
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestACallEndsWhenTheSessionBreaks(t *testing.T) {
	h := startHub(t, "", nil)
	if _, err := h.Call(t.Context(), critic, getStep()); !errors.Is(err, ErrNoSession) {
		t.Errorf("order to nobody: %v", err)
	}
	under := make(chan struct{})
	l := startLink(t, h.target(), func(o *LinkOptions) {
		o.Orders = func(ctx context.Context, _ *api.ToService) *api.Answer {
			close(under)
			<-ctx.Done()
			return nil
		}
	})
	if err := h.WaitJoined(t.Context(), critic, 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := h.Call(t.Context(), critic, getStep())
		done <- err
	}()
	<-under
	l.stop()
	if err := <-done; !errors.Is(err, ErrNoSession) {
		t.Errorf("order whose session broke: %v", err)
	}
}

// shows: R53
func TestALateWordOverAReplacedSessionChangesNothingAndIsCounted(t *testing.T) {
	var dropped atomic.Int32
	h := startHub(t, "", func(o *HubOptions) { o.Dropped = func(ServiceID, string) { dropped.Add(1) } })
	old, young := startPeer(t, &peerServer{}), startPeer(t, &peerServer{})
	c := plainConn(t, h.target())
	open := func(p *peerServer, pid int64, incarnation uint64) (api.Sessions_OpenClient, string) {
		reply, err := api.NewHeartBeatClient(c).RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{
			WorkerAddress: p.target(), Sender: sender("critic/0", pid, incarnation),
		})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := api.NewSessionsClient(c).Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&api.FromService{Word: &api.FromService_Hello{Hello: &api.Hello{Session: reply.Session}}}); err != nil {
			t.Fatal(err)
		}
		if err := h.WaitJoined(t.Context(), critic, int(pid)); err != nil {
			t.Fatal(err)
		}
		return stream, reply.Session
	}
	first, session := open(old, 100, 1)
	second, _ := open(young, 200, 2)
	first.Send(failure("late"))
	_, err := first.Recv()
	wantCode(t, "the replaced session", err, codes.FailedPrecondition)
	again, err := api.NewSessionsClient(c).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again.Send(&api.FromService{Word: &api.FromService_Hello{Hello: &api.Hello{Session: session}}})
	again.Send(failure("later"))
	_, err = again.Recv()
	wantCode(t, "opening the replaced session again", err, codes.FailedPrecondition)
	second.Send(failure("in time"))
	h.ears.await(t, 1, "failed critic/0 rl-0123abcd/critic/1/0/1 reported: in time")
	if n := h.ears.count("failed"); n != 1 {
		t.Errorf("%d failures heard, want the one of the present session", n)
	}
	if n := h.ears.count("lost"); n != 0 {
		t.Errorf("the replaced one was lost %d times", n)
	}
	if dropped.Load() == 0 {
		t.Error("nothing counted as dropped")
	}
}

func TestAServiceThatIsReplacedEnds(t *testing.T) {
	h := startHub(t, "", nil)
	first := startLink(t, h.target(), nil)
	h.ears.await(t, 1, "joined")
	startLink(t, h.target(), func(o *LinkOptions) { o.Incarnation = 2 })
	if err := first.awaitEnd(t); !errors.Is(err, ErrReplaced) {
		t.Errorf("the replaced service ended with %v", err)
	}
}

func TestAForgottenServiceIsNotLostAndDoesNotComeBack(t *testing.T) {
	h := startHub(t, "", nil)
	l := startLink(t, h.target(), nil)
	h.ears.await(t, 1, "joined")
	h.Forget(critic, 1)
	if len(h.Registrations()) != 1 {
		t.Fatal("forgotten by another's pid")
	}
	h.Forget(critic, os.Getpid())
	if err := l.awaitEnd(t); !errors.Is(err, ErrReplaced) {
		t.Errorf("Run ended with %v", err)
	}
	if err := l.Unregister(t.Context()); err != nil {
		t.Errorf("unregister after that: %v", err)
	}
	l.Close(t.Context())
	h.Stop(t.Context())
	if n := h.ears.count("lost") + h.ears.count("left"); n != 0 {
		t.Errorf("told %d times of the end of one who was forgotten: %v", n, h.ears.all())
	}
}

func TestANewControllerIsFoundAndToldWhatWasSaidMeanwhile(t *testing.T) {
	h := startHub(t, "", nil)
	var log lockedText
	var mu sync.Mutex
	now := &api.WorkerState{Life: WireLife(life(1, 0)), State: "ready"}
	l := startLink(t, h.target(), func(o *LinkOptions) {
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		o.Hello = func(told func()) *api.Hello {
			mu.Lock()
			defer mu.Unlock()
			told()
			return &api.Hello{Workers: []*api.WorkerState{proto.CloneOf(now)}}
		}
	})
	h.ears.await(t, 1, "joined")
	h.server.Stop() // as by kill -9: no notice, the socket refuses
	eventually(t, "a broken session", func() bool { return strings.Contains(log.String(), "session ended") })
	said := failure("said to nobody")
	mu.Lock()
	now.State, now.Past = "down", &api.Past{Failures: []*api.Failure{proto.CloneOf(said.GetFailure())}}
	now.Past.Failures[0].Number = 1
	l.Send(stateOf(0, "down"))
	l.Send(said)
	mu.Unlock()
	next := startHub(t, h.path, func(o *HubOptions) { o.Epoch = 2 })
	next.ears.await(t, 1, "worker critic/0 rl-0123abcd/critic/1/0/1 down")
	if next.ears.count("joined critic/0") != 1 || next.ears.count("failed critic/0 rl-0123abcd/critic/1/0/1 reported: said to nobody") != 1 {
		t.Errorf("the new controller heard %v", next.ears.all())
	}
	_, err := beatsOf(t, l.address).NotifyStopPoll(t.Context(), h.request(Registration{}))
	wantCode(t, "a stop notice of the old controller", err, codes.FailedPrecondition)
}

func TestUnregisteringWaitsForAnswersAndLastWords(t *testing.T) {
	h := startHub(t, "", nil)
	var l *testLink
	release, under := make(chan struct{}), make(chan struct{})
	l = startLink(t, h.target(), func(o *LinkOptions) {
		o.Orders = func(context.Context, *api.ToService) *api.Answer {
			close(under)
			<-release
			return &api.Answer{Step: 3}
		}
	})
	if err := h.WaitJoined(t.Context(), critic, 0); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		if a, err := h.Call(t.Context(), critic, &api.ToService{Order: &api.ToService_Leave{Leave: &api.Leave{}}}); err != nil || a.Step != 3 {
			t.Errorf("leave: %v, %v", a, err)
		}
	})
	l.Send(failure("last"))
	l.Beat(&api.Beat{Life: WireLife(life(1, 0))})
	l.Beat(&api.Beat{Life: WireLife(life(1, 0)), HasStep: true, Step: 9})
	h.ears.await(t, 1, "failed")
	<-under
	go func() {
		<-l.leave
		<-time.After(50 * time.Millisecond) // enough for a session that would not wait to end
		close(release)
	}()
	if err := l.Unregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	work.Wait()
	lines := h.ears.all()
	if n := len(lines); n < 2 || lines[n-1] != "left critic/0" {
		t.Errorf("the last word is not that it left: %v", lines)
	}
	if h.ears.count("beat rl-0123abcd/critic/1/0/1 step=9") != 1 {
		t.Errorf("the last heartbeat is missing: %v", lines)
	}
}

// slowEars take their time over a failure.
type slowEars struct{ *recorder }

func (s slowEars) Failed(f role.Failure, id ServiceID) {
	<-time.After(10 * time.Millisecond)
	s.recorder.Failed(f, id)
}

func TestWhatAServiceSaidBeforeItDiedIsHeardBeforeItsDeath(t *testing.T) {
	ears := newRecorder()
	h := startHub(t, "", func(o *HubOptions) { o.Ears = slowEars{ears} })
	p := startPeer(t, &peerServer{})
	c := plainConn(t, h.target())
	reply, err := api.NewHeartBeatClient(c).RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{
		WorkerAddress: p.target(), Sender: sender("critic/0", 100, 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := api.NewSessionsClient(c).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stream.Send(&api.FromService{Word: &api.FromService_Hello{Hello: &api.Hello{Session: reply.Session}}})
	for range 5 {
		stream.Send(failure("a last word"))
	}
	ears.await(t, 1, "failed")
	p.server.Stop()
	c.Close()
	ears.await(t, 1, "lost")
	h.Stop(t.Context())
	if lines := ears.all(); !strings.HasPrefix(lines[len(lines)-1], "lost") {
		t.Errorf("heard after its death: %v", lines)
	}
}

// shows: FAULT-D1
func TestHowMuchWasDroppedIsToldWithTheNextSession(t *testing.T) {
	heard := newRecorder()
	h := startHub(t, "", func(o *HubOptions) {
		o.Dropped = func(id ServiceID, what string) { heard.note("dropped %s %s", id, what) }
	})
	l := newLink(t, h.target(), nil)
	for range maxPerLife + 36 {
		l.Send(failure("again"))
	}
	if err := l.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- l.Run(ctx) }()
	heard.await(t, 1, "dropped critic/0 36 words were dropped by the service")
	stop()
	<-ran
}
