package rpc

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"vigil/api"
	"vigil/internal/proc"
	"vigil/internal/role"
)

const (
	testJob   = "rl-0123abcd"
	testToken = "secret"
	patience  = 2 * time.Minute // for what must come, also on a machine that is much too busy
)

// folder returns a new folder with a path short enough for sockets.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// recorder is Ears that write down what they hear, a line each.
type recorder struct {
	mu      sync.Mutex
	lines   []string
	changed chan struct{}
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) note(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, a...))
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) Joined(reg Registration)              { r.note("joined %s", reg.Name()) }
func (r *recorder) Left(reg Registration)                { r.note("left %s", reg.Name()) }
func (r *recorder) Suspected(reg Registration, _ string) { r.note("suspected %s", reg.Name()) }
func (r *recorder) Lost(reg Registration, why string) {
	r.note("lost %s seed=%v pid=%d: %s", reg.Name(), reg.Seed, reg.PID, why)
}
func (r *recorder) Beat(l role.Life, step int64, has bool, _ time.Time) {
	r.note("beat %s step=%d has=%v", l, step, has)
}
func (r *recorder) Failed(f role.Failure, id ServiceID) {
	r.note("failed %s %s %s: %s", id, f.Life, f.Cause, f.Detail)
}
func (r *recorder) Worker(id ServiceID, w WorkerState) {
	r.note("worker %s %s %s", id, w.Life, w.State)
}
func (r *recorder) Guess(l role.Life, step int64, _ time.Time) { r.note("guess %s step=%d", l, step) }
func (r *recorder) Phase(l role.Life, name string, begin bool, _ time.Time) {
	r.note("phase %s %s begin=%v", l, name, begin)
}
func (r *recorder) Starved(l role.Life, waited time.Duration) { r.note("starved %s %s", l, waited) }
func (r *recorder) Notice(l role.Life, text string)           { r.note("notice %s %s", l, text) }
func (r *recorder) Foreign(l role.Life, n uint64)             { r.note("foreign %s %d", l, n) }
func (r *recorder) StepSet(id ServiceID, s StepSet) {
	r.note("step set %s %d taken=%v inc=%d", id, s.Step, s.Taken, s.Incarnation)
}
func (r *recorder) Asked(reg Registration, what string) { r.note("asked %s %s", reg.Name(), what) }
func (r *recorder) Ending(reg Registration, signal string) {
	r.note("ending %s %s", reg.Name(), signal)
}
func (r *recorder) Unreadable(l role.Life) { r.note("unreadable %s", l) }
func (r *recorder) Checkpoint(l role.Life, step int64, _ time.Time) {
	r.note("checkpoint %s %d", l, step)
}

// count returns how many lines begin with prefix.
func (r *recorder) count(prefix string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, l := range r.lines {
		if strings.HasPrefix(l, prefix) {
			n++
		}
	}
	return n
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// await waits until n lines begin with prefix.
func (r *recorder) await(t *testing.T, n int, prefix string) {
	t.Helper()
	limit := time.After(patience)
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if r.count(prefix) >= n {
			return
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("heard %q fewer than %d times; heard:\n%s", prefix, n, strings.Join(r.all(), "\n"))
		}
	}
}

// eventually polls a condition that nothing announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}

// lockedText is where a log goes that is read while it is written.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

type testHub struct {
	*Hub
	ears   *recorder
	path   string
	served chan error
}

func (h *testHub) target() string { return "unix://" + h.path }

// startHub serves a hub at path; an empty path is a new one. Polls are fast unless set tells otherwise.
func startHub(t *testing.T, path string, set func(*HubOptions)) *testHub {
	t.Helper()
	if path == "" {
		path = filepath.Join(folder(t), "c.sock")
	}
	ears := newRecorder()
	o := HubOptions{
		JobUID: testJob, Token: testToken, Epoch: 1, Ears: ears,
		PollEvery: 50 * time.Millisecond, FastPoll: 20 * time.Millisecond, DeadAfter: patience,
	}
	if set != nil {
		set(&o)
	}
	l, err := proc.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	h := &testHub{Hub: NewHub(o), ears: ears, path: path, served: make(chan error, 1)}
	go func() { h.served <- h.Serve(l) }()
	t.Cleanup(func() { h.Stop(t.Context()) })
	return h
}

type testLink struct {
	*Link
	ran  chan error
	stop context.CancelFunc
}

// newLink makes a link of critic/0 that is not registered.
func newLink(t *testing.T, controller string, set func(*LinkOptions)) *Link {
	t.Helper()
	listener, err := proc.ListenUnix(filepath.Join(folder(t), "service.sock"))
	if err != nil {
		t.Fatal(err)
	}
	o := LinkOptions{
		Controller: controller, JobUID: testJob, ID: ServiceID{"critic", 0}, Incarnation: 1, Token: testToken,
		Listener: listener, Grace: time.Minute,
		PollEvery: 50 * time.Millisecond, FastPoll: 20 * time.Millisecond, DeadAfter: patience,
		Orders: func(context.Context, *api.ToService) *api.Answer { return &api.Answer{} },
	}
	if set != nil {
		set(&o)
	}
	l, err := NewLink(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		l.Close(ctx)
	})
	return l
}

// startLink registers and runs a link of critic/0.
func startLink(t *testing.T, controller string, set func(*LinkOptions)) *testLink {
	t.Helper()
	l := &testLink{Link: newLink(t, controller, set), ran: make(chan error, 1)}
	if err := l.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, l.stop = context.WithCancel(context.Background())
	t.Cleanup(l.stop)
	go func() { l.ran <- l.Run(ctx) }()
	return l
}

func (l *testLink) awaitEnd(t *testing.T) error {
	t.Helper()
	select {
	case err := <-l.ran:
		return err
	case <-time.After(patience):
		t.Fatal("Run does not return")
		return nil
	}
}

// plainConn dials without anything of this package's.
func plainConn(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := dial(target, noRetry, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func beatsOf(t *testing.T, target string) api.HeartBeatClient {
	t.Helper()
	return api.NewHeartBeatClient(plainConn(t, target))
}

// peerServer is a HeartBeat server made by hand, as a seed client or a controller of another make has.
type peerServer struct {
	api.UnimplementedHeartBeatServer
	api.UnimplementedSessionsServer
	server *grpc.Server
	path   string

	mu       sync.Mutex
	isBeats  []*api.HeartBeatRequest
	notices  []*api.HeartBeatRequest
	isBeat   func(context.Context, int) error // called with the number of the call, from 1
	register func() (*api.RegisterWorkerProcessReply, error)
	open     func(api.Sessions_OpenServer) error
}

func startPeer(t *testing.T, p *peerServer) *peerServer {
	t.Helper()
	l, err := proc.ListenUnix(filepath.Join(folder(t), "peer.sock"))
	if err != nil {
		t.Fatal(err)
	}
	p.path = l.Addr().String()
	p.server = grpc.NewServer()
	api.RegisterHeartBeatServer(p.server, p)
	api.RegisterSessionsServer(p.server, p)
	go p.server.Serve(l)
	t.Cleanup(p.server.Stop)
	return p
}

func (p *peerServer) target() string { return "unix://" + p.path }

func (p *peerServer) polls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.isBeats)
}

func (p *peerServer) firstPoll() *api.HeartBeatRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isBeats[0]
}

func (p *peerServer) noticed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.notices)
}

func (p *peerServer) IsBeat(ctx context.Context, r *api.HeartBeatRequest) (*api.HeartBeatReply, error) {
	p.mu.Lock()
	p.isBeats = append(p.isBeats, r)
	n := len(p.isBeats)
	p.mu.Unlock()
	if p.isBeat != nil {
		if err := p.isBeat(ctx, n); err != nil {
			return nil, err
		}
	}
	return &api.HeartBeatReply{}, nil
}

func (p *peerServer) NotifyStopPoll(_ context.Context, r *api.HeartBeatRequest) (*api.HeartBeatReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notices = append(p.notices, r)
	return &api.HeartBeatReply{}, nil
}

func (p *peerServer) RegisterWorkerProcess(context.Context, *api.RegisterWorkerProcessRequest) (*api.RegisterWorkerProcessReply, error) {
	if p.register != nil {
		return p.register()
	}
	return &api.RegisterWorkerProcessReply{Session: "s"}, nil
}

func (p *peerServer) Open(s api.Sessions_OpenServer) error {
	if p.open != nil {
		return p.open(s)
	}
	s.SendHeader(nil)
	<-s.Context().Done()
	return nil
}

// listenTCP listens on a free loopback port.
func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
