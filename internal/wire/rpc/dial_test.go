package rpc

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"vigil/api"
)

// shows: D18
func TestUnavailableAloneIsRetriedFourTimesInAll(t *testing.T) {
	want := `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"1s","maxBackoff":"5s",` +
		`"backoffMultiplier":2.0,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
	if got := defaultRetry.serviceConfig(); got != want {
		t.Errorf("the policy is\n%s\nwant\n%s", got, want)
	}
	if all := (1 + 2 + 4) * time.Second * 12 / 10; callDeadline <= all {
		t.Errorf("the deadline %v cuts off the attempts, whose waits are up to %v", callDeadline, all)
	}
	for code, attempts := range map[codes.Code]int{codes.Unavailable: 4, codes.Internal: 1, codes.DeadlineExceeded: 1} {
		p := startPeer(t, &peerServer{isBeat: func(context.Context, int) error { return status.Error(code, "no") }})
		conn, err := dial(p.target(), retryPolicy{time.Millisecond * 10, 50 * time.Millisecond}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = api.NewHeartBeatClient(conn).IsBeat(t.Context(), &api.HeartBeatRequest{})
		conn.Close()
		wantCode(t, "the call", err, code)
		if p.polls() != attempts {
			t.Errorf("%v: %d attempts, want %d", code, p.polls(), attempts)
		}
	}
}

// shows: D19
func TestAnOutageThatTheRetriesOutlastIsNoDeath(t *testing.T) {
	h := startHub(t, "", func(o *HubOptions) {
		o.retry = retryPolicy{initial: 20 * time.Millisecond, max: 100 * time.Millisecond}
		o.PollEvery = 5 * time.Second
	})
	p := startPeer(t, &peerServer{isBeat: func(_ context.Context, n int) error {
		if n <= 3 {
			return status.Error(codes.Unavailable, "a moment")
		}
		return nil
	}})
	if _, err := beatsOf(t, h.target()).RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: p.target(), Sender: sender("critic/0", 5, 1)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the fourth attempt", func() bool { return p.polls() >= 4 })
	h.Stop(t.Context())
	if got := h.ears.all(); len(got) != 0 {
		t.Errorf("heard %v", got)
	}
}

// shows: D20
func TestAnAbsentPeerIsKnownByProof(t *testing.T) {
	h := startHub(t, "", func(o *HubOptions) { o.PollEvery, o.FastPoll, o.DeadAfter = 0, 0, 0 })
	dir := folder(t)
	refuses := filepath.Join(dir, "refuses.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: refuses}); err != nil { // bound, and nobody listens
		t.Fatal(err)
	}
	for i, path := range []string{refuses, filepath.Join(dir, "missing.sock")} {
		s := sender("critic/0", 5, uint64(i+1))
		if _, err := beatsOf(t, h.target()).RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: "unix://" + path, Sender: s}); err != nil {
			t.Fatal(err)
		}
		h.ears.await(t, i+1, "lost critic/0")
		if err := newLink(t, "unix://"+path, nil).Register(t.Context()); err == nil {
			t.Error("registered with nobody")
		}
	}
	if heard := strings.Join(h.ears.all(), "\n"); strings.Contains(heard, "suspected") || strings.Contains(heard, "no answer") {
		t.Errorf("that nobody is there was not known by proof, but by silence:\n%s", heard)
	}
}

func TestWhoIsNotOfThisJobIsRefused(t *testing.T) {
	h := startHub(t, "", nil)
	c := beatsOf(t, h.target())
	for name, test := range map[string]struct {
		change func(*api.Sender)
		want   codes.Code
	}{
		"wrong token":    {func(s *api.Sender) { s.Token = "guess" }, codes.Unauthenticated},
		"no token":       {func(s *api.Sender) { s.Token = "" }, codes.Unauthenticated},
		"another job":    {func(s *api.Sender) { s.JobUid = "rl-ffffffff" }, codes.PermissionDenied},
		"a taken role":   {func(s *api.Sender) { s.Role = "metrics" }, codes.InvalidArgument},
		"another's name": {func(s *api.Sender) { s.Name = "actor/0" }, codes.InvalidArgument},
		"no pid":         {func(s *api.Sender) { s.Pid = 0 }, codes.InvalidArgument},
		"a huge index":   {func(s *api.Sender) { s.Index = 1 << 31 }, codes.InvalidArgument},
	} {
		s := sender("critic/0", 5, 1)
		test.change(s)
		_, err := c.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: "unix:///tmp/x", Sender: s})
		wantCode(t, name, err, test.want)
	}
	for _, address := range []string{"", "unix:relative", "127.0.0.1:80", "unix:///a b", "unix:///" + strings.Repeat("x", 107), "dns:///host:1"} {
		_, err := c.RegisterWorkerProcess(t.Context(), &api.RegisterWorkerProcessRequest{WorkerAddress: address, Sender: sender("critic/0", 5, 1)})
		wantCode(t, fmt.Sprintf("address %q", address), err, codes.InvalidArgument)
	}
	if len(h.Registrations()) != 0 {
		t.Errorf("registered: %v", h.Registrations())
	}

	l := listenTCP(t)
	go h.Serve(l)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = api.NewHeartBeatClient(conn).IsBeat(t.Context(), &api.HeartBeatRequest{})
	wantCode(t, "a caller without a sender over TCP", err, codes.Unauthenticated)
}
