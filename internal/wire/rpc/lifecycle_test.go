package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"vigil/api"
	"vigil/internal/proc"
)

// TestMain lets the test binary be a controller or a service, to be killed by a test.
func TestMain(m *testing.M) {
	switch os.Getenv("RPC_TEST_BE") {
	case "controller":
		beController()
	case "service":
		beService()
	default:
		os.Exit(m.Run())
	}
}

func beController() {
	l, err := proc.ListenUnix(os.Getenv("RPC_TEST_SOCKET"))
	if err != nil {
		panic(err)
	}
	h := NewHub(HubOptions{JobUID: testJob, Token: testToken, Epoch: 1, Ears: newRecorder()})
	os.Stdout.WriteString("up\n")
	panic(h.Serve(l))
}

func beService() {
	socket := os.Getenv("RPC_TEST_SOCKET")
	listener, err := proc.ListenUnix(socket + ".service")
	if err != nil {
		panic(err)
	}
	l, err := NewLink(LinkOptions{
		Controller: "unix://" + socket, JobUID: testJob, ID: critic, Incarnation: 1, Token: testToken, Listener: listener,
		Orders: func(context.Context, *api.ToService) *api.Answer { return nil },
	})
	if err != nil {
		panic(err)
	}
	if err := l.Register(context.Background()); err != nil {
		panic(err)
	}
	os.Stdout.WriteString("up\n")
	panic(l.Run(context.Background()))
}

// start runs the test binary as another process and waits until it is up.
func start(t *testing.T, be, socket string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "RPC_TEST_BE="+be, "RPC_TEST_SOCKET="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("%s did not come up: %q, %v", be, line, err)
	}
	return cmd
}

// shows: D11 D20
func TestAKilledServiceIsKnownDeadByProofInUnderASecondAndToldOnce(t *testing.T) {
	// The machine may be busy: that it can be known within a second counts, in one of many times.
	for began := time.Now(); !knownDeadInUnderASecond(t); {
		if time.Since(began) > patience {
			t.Fatal("its death was never known in under a second")
		}
	}
}

func knownDeadInUnderASecond(t *testing.T) bool {
	t.Helper()
	h := startHub(t, "", func(o *HubOptions) { o.PollEvery, o.FastPoll, o.DeadAfter = 0, 0, 0 }) // the defaults
	cmd := start(t, "service", h.path)
	if err := h.WaitJoined(t.Context(), critic, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	cmd.Process.Kill()
	h.ears.await(t, 1, "lost critic/0 seed=false")
	took := time.Since(begin)
	if heard := strings.Join(h.ears.all(), "\n"); strings.Contains(heard, "suspected") || strings.Contains(heard, "no answer") {
		t.Errorf("its death was not known by proof, but by its silence:\n%s", heard)
	}
	cmd.Wait()
	if len(h.Registrations()) != 0 {
		t.Errorf("still registered: %v", h.Registrations())
	}
	h.Stop(t.Context())
	if n := h.ears.count("lost"); n != 1 {
		t.Errorf("told %d times", n)
	}
	return took < time.Second
}

// shows: D11
func TestAServiceThatHangsIsSuspectedAndThenDeadAndMayComeBack(t *testing.T) {
	slow(t)
	h := startHub(t, "", func(o *HubOptions) {
		o.PollEvery, o.FastPoll, o.DeadAfter = 50*time.Millisecond, 20*time.Millisecond, time.Second
	})
	cmd := start(t, "service", h.path)
	h.ears.await(t, 1, "joined")
	cmd.Process.Signal(syscall.SIGSTOP)
	h.ears.await(t, 1, "lost critic/0 seed=false")
	if heard := strings.Join(h.ears.all(), "\n"); !regexp.MustCompile(`lost critic/0 .* no answer for ([1-9]|\d\d|\d+m)`).MatchString(heard) {
		t.Errorf("dead before a silence of 1 s, which is the limit:\n%s", heard)
	}
	if h.ears.count("suspected") == 0 {
		t.Error("dead without suspicion")
	}
	if h.ears.count("lost") != 1 {
		t.Errorf("told %d times", h.ears.count("lost"))
	}
	cmd.Process.Signal(syscall.SIGCONT)
	h.ears.await(t, 2, "joined")
}

// shows: D14
func TestAKilledControllerIsNoticedAndTheServiceGoesOnForItsGraceOnly(t *testing.T) {
	for _, grace := range []time.Duration{0, 700 * time.Millisecond} {
		t.Run(grace.String(), func(t *testing.T) {
			socket := filepath.Join(folder(t), "c.sock")
			cmd := start(t, "controller", socket)
			var lost atomic.Int32
			l := startLink(t, "unix://"+socket, func(o *LinkOptions) {
				o.Grace = grace
				o.PollEvery, o.FastPoll, o.DeadAfter = 0, 0, 0 // the defaults
				o.OnControllerLost = func() { lost.Add(1) }
			})
			eventually(t, "an answered poll", func() bool { return l.beats.GetState().String() == "READY" })
			cmd.Process.Kill()
			err := l.awaitEnd(t)
			if !errors.Is(err, ErrControllerLost) || lost.Load() != 1 {
				t.Errorf("Run ended with %v, the callback was called %d times", err, lost.Load())
			}
			if strings.Contains(fmt.Sprint(err), "no answer") {
				t.Errorf("the death was not known by proof, but by silence: %v", err)
			}
			if err := l.Unregister(t.Context()); err != nil {
				t.Errorf("unregister from a dead controller: %v", err)
			}
		})
	}
}

// shows: D14 D15
func TestTheLeaseCountsFromTheLastAnswerAndNeedsNoCallback(t *testing.T) {
	var mute atomic.Bool
	var last, refused atomic.Int64 // when a poll was answered last, on the test's clock; how many were refused since
	began := time.Now()
	p := startPeer(t, &peerServer{isBeat: func(context.Context, int) error {
		if mute.Load() {
			refused.Add(1)
			return status.Error(codes.Unavailable, "mute")
		}
		last.Store(int64(time.Since(began)))
		return nil
	}})
	l := startLink(t, p.target(), func(o *LinkOptions) { o.Grace = 500 * time.Millisecond })
	eventually(t, "polls", func() bool { return p.polls() > 2 })
	mute.Store(true)
	eventually(t, "a refused poll, and so the answer of the one before", func() bool { return refused.Load() > 0 })
	p.server.Stop()
	if err := l.awaitEnd(t); !errors.Is(err, ErrControllerLost) {
		t.Errorf("Run ended with %v", err)
	}
	if took := time.Since(began) - time.Duration(last.Load()); took < 500*time.Millisecond { // its answer came later
		t.Errorf("it ended %v after the last answer, with a grace of 500 ms", took)
	}
}

// shows: D5 D16
func TestAStopOfTheControllerWakesEverybodyAndHangsNowhere(t *testing.T) {
	// The machine may be busy: the time that a call takes at the same moment is allowed for, and one of many
	// times has to keep the promise.
	over := time.Hour
	for began := time.Now(); over > 100*time.Millisecond && time.Since(began) < patience; {
		h := startHub(t, "", func(o *HubOptions) { o.PollEvery = time.Hour })
		var noticed atomic.Int32
		l := startLink(t, h.target(), func(o *LinkOptions) {
			o.PollEvery = time.Hour
			o.OnStopNotice = func() { noticed.Add(1) }
			o.OnControllerLost = func() { t.Error("a normal stop was taken for a loss") }
		})
		h.ears.await(t, 1, "joined")
		pace := slowestOf(t, beatsOf(t, l.address), 20)
		begin := time.Now()
		h.Stop(t.Context())
		if err := l.awaitEnd(t); !errors.Is(err, ErrControllerStopped) || noticed.Load() != 1 {
			t.Fatalf("Run ended with %v after %d notices", err, noticed.Load())
		}
		over = min(over, time.Since(begin)-10*pace)
		if err := <-h.served; err != nil {
			t.Errorf("serving ended with %v", err)
		}
		if _, err := os.Stat(h.path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
		if n := h.ears.count("lost"); n != 0 {
			t.Errorf("%d lost in a normal stop", n)
		}
	}
	if over > 100*time.Millisecond {
		t.Errorf("a wait of an hour ended %v after the notice, and what ten calls take", over)
	}
}

// slowestOf returns how long the slowest of so many calls takes.
func slowestOf(t *testing.T, peer api.HeartBeatClient, calls int) (slowest time.Duration) {
	t.Helper()
	for range calls {
		began := time.Now()
		if _, err := peer.IsBeat(t.Context(), &api.HeartBeatRequest{}); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(began))
	}
	return slowest
}

// shows: D5
func TestAStopNoticeThatCameBeforeTheWaitEndsIt(t *testing.T) {
	p := startPeer(t, &peerServer{open: func(api.Sessions_OpenServer) error { return status.Error(codes.Unavailable, "not yet") }})
	l := &testLink{Link: newLink(t, p.target(), func(o *LinkOptions) { o.PollEvery, o.DeadAfter = time.Hour, time.Hour }), ran: make(chan error, 1)}
	if err := l.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := beatsOf(t, l.address).NotifyStopPoll(t.Context(), &api.HeartBeatRequest{}); err != nil {
		t.Fatal(err)
	}
	go func() { l.ran <- l.Run(t.Context()) }()
	if err := l.awaitEnd(t); !errors.Is(err, ErrControllerStopped) {
		t.Errorf("Run ended with %v", err)
	}
}

func TestAStopNoticeOfAServiceConcernsItsSenderOnly(t *testing.T) {
	h := startHub(t, "", nil)
	for _, id := range []string{"critic/0", "critic/1"} {
		p := startPeer(t, &peerServer{})
		c := beatsOf(t, h.target())
		s := sender(id, 100, 1)
		if _, err := c.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: p.target(), Sender: s}); err != nil {
			t.Fatal(err)
		}
		if id == "critic/0" {
			if _, err := c.NotifyStopPoll(t.Context(), &api.HeartBeatRequest{Sender: s}); err != nil {
				t.Fatal(err)
			}
		}
		p.server.Stop()
	}
	h.ears.await(t, 1, "lost critic/1")
	if n := h.ears.count("lost critic/0"); n != 0 {
		t.Error("one who said that it stops was taken for dead")
	}
}

func TestASeedClientIsPolledMournedAndToldOfTheEnd(t *testing.T) {
	h := startHub(t, "", nil)
	c := beatsOf(t, h.target())
	var peers []*peerServer
	for range 3 {
		p := startPeer(t, &peerServer{})
		peers = append(peers, p)
		for range 2 { // it is idempotent
			reply, err := c.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: p.target()})
			if err != nil || reply.Session != "" {
				t.Fatalf("%v, %v", reply, err)
			}
		}
		h.ears.await(t, 1, "joined "+p.target())
		eventually(t, "polls", func() bool { return p.polls() > 2 })
		if first := p.firstPoll(); first.Sender != nil {
			t.Errorf("a seed client is told %v", first)
		}
	}
	if _, err := c.IsBeat(t.Context(), &api.HeartBeatRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := c.NotifyStopPoll(t.Context(), &api.HeartBeatRequest{}); err != nil {
		t.Error(err)
	}
	peers[0].server.Stop()
	h.ears.await(t, 1, "lost "+peers[0].target()+" seed=true")
	if _, err := c.UnregisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: peers[1].target()}); err != nil {
		t.Error(err)
	}
	h.ears.await(t, 1, "left "+peers[1].target())
	if got := h.Registrations(); len(got) != 1 || !got[0].Seed || got[0].Address != peers[2].target() {
		t.Errorf("registered are %v", got)
	}
	h.Stop(t.Context())
	if peers[2].noticed() != 1 || peers[1].noticed() != 0 {
		t.Errorf("%d and %d stop notices", peers[2].noticed(), peers[1].noticed())
	}
	if n := h.ears.count("lost"); n != 1 {
		t.Errorf("%d lost", n)
	}
}

func TestASeedClientCannotTakeAServiceOut(t *testing.T) {
	h := startHub(t, "", nil)
	l := startLink(t, h.target(), nil)
	c := beatsOf(t, h.target())
	_, err := c.UnregisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: l.address})
	wantCode(t, "unregister a service without a sender", err, codes.PermissionDenied)
	_, err = c.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: l.address})
	wantCode(t, "register a service's address", err, codes.AlreadyExists)
}

// shows: D16
func TestNoGoroutineIsLeftBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	h := startHub(t, "", nil)
	l := startLink(t, h.target(), nil)
	p := startPeer(t, &peerServer{})
	c, err := dial(h.target(), noRetry, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.NewHeartBeatClient(c).RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: p.target()}); err != nil {
		t.Fatal(err)
	}
	h.ears.await(t, 2, "joined")
	c.Close()
	h.Stop(t.Context())
	l.awaitEnd(t)
	l.Close(t.Context())
	p.server.Stop()
	eventually(t, "as few goroutines as before", func() bool { return runtime.NumGoroutine() <= before })
}
