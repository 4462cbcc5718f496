package service

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// orderly is a worker that writes when its handler has run.
const orderly = `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done`

// runsOrderly starts two orderly workers and returns their pids.
func runsOrderly(s *stage) []int {
	s.t.Helper()
	return runsOrder(s, runOrder(1))
}

// runsOrder starts the two workers of an order and returns their pids when both are up.
func runsOrder(s *stage, order *api.Run) []int {
	s.t.Helper()
	s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
	s.awaitLog(1, 0, "up")
	s.awaitLog(1, 1, "up")
	return []int{s.ears.awaitState(s.t, 0, role.WorkerReady).PID, s.ears.awaitState(s.t, 1, role.WorkerReady).PID}
}

// endedInOrder checks that both workers ran their handlers, and that nothing is left of them or of the
// service.
func endedInOrder(s *stage, pids []int) {
	s.t.Helper()
	gone(s.t, pids...)
	for rank := range pids {
		if got := s.log(1, rank, "stdout"); !strings.HasSuffix(got, "bye\n") {
			s.t.Errorf("rank %d did not end in order: %q", rank, got)
		}
	}
	left, err := os.ReadDir(s.runtimeDir())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range left {
		s.t.Errorf("%s is left in the runtime directory", f.Name())
	}
}

func TestASignalEndsWorkersInOrderAndTheServiceWithNought(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(orderly))
	pids := runsOrderly(s)
	if err := s.service.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.awaitExit(); code != ExitDone {
		t.Errorf("exit %d, want 0", code)
	}
	endedInOrder(s, pids)
	s.ears.await(t, "the service to take leave", func() bool { return s.ears.left == 1 })
	if failed, troubles := s.ears.failed(), s.ears.troubles(); len(failed)+len(troubles) > 0 {
		t.Errorf("an orderly end was told as %q, failures %+v", troubles, failed)
	}
	if _, ending := s.ears.wishes(); !slices.Equal(ending, []string{"SIGTERM"}) {
		t.Errorf("it said that it ends because of %q, want SIGTERM", ending)
	}
}

// A hang-up, as at the end of a session, ends the service in order too, and it says which signal it was while its
// workers still save their work: it takes no order to run any more.
// shows: FAULT-C1
func TestAServiceThatASignalEndsSaysSoAtOnceAndBeginsNothing(t *testing.T) {
	t.Parallel()
	r := workerOf(`trap 'while ! [ -e "$GATE" ]; do sleep 0.02; done; echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done`)
	r.Env["GATE"] = filepath.Join(t.TempDir(), "gate")
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, unix.SIGHUP) // else a service that we start would ignore it when the tests run under nohup
	defer signal.Stop(heard)
	s := enter(t, r)
	pids := runsOrderly(s)
	if err := s.service.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.ears.await(t, "the word of the end", func() bool { return len(s.ears.ending) > 0 })
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); err != nil {
			t.Errorf("a worker has ended before it had saved: %v", err)
		}
	}
	begun := make(chan error, 1)
	go func() {
		_, err := s.call(run(2))
		begun <- err
	}()
	if err := os.WriteFile(r.Env["GATE"], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-begun; err == nil {
		t.Error("a life was begun by a service that is ending")
	}
	if code := s.awaitExit(); code != ExitDone {
		t.Errorf("exit %d, want 0", code)
	}
	endedInOrder(s, pids)
	if asked, ending := s.ears.wishes(); len(asked) > 0 || ending[0] != "SIGHUP" {
		t.Errorf("told: asked for %q, ends because of %q; want only SIGHUP", asked, ending)
	}
}

// The stop after a failure has 5 s, the wanted one all the time that it takes. The service's own signal counts as
// one that is wanted.
// shows: FAULT-C2
func TestAStopUnderWayGetsTheGraceOfAWantedOne(t *testing.T) {
	slow(t)
	t.Parallel()
	for name, lengthen := range map[string]func(*stage){
		"on order":     func(s *stage) { s.must(&api.ToService{Order: &api.ToService_Lengthen{Lengthen: &api.Lengthen{}}}) },
		"for a signal": func(s *stage) { _ = s.service.Process.Signal(unix.SIGTERM) },
		"for an operator": func(s *stage) {
			go http.Post("http://"+s.hub.Registrations()[0].HTTPAddress+"/critic/stop_service", "", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := filepath.Join(t.TempDir(), "gate")
			r := workerOf(`trap 'echo saving; while ! [ -e "$GATE" ]; do sleep 0.02; done; echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done`)
			r.Env["GATE"] = gate
			r.Stop.GraceOnFailure, r.Stop.Grace = 5*time.Second, patience
			s := enter(t, r)
			pids := runsOrderly(s)
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				s.call(stop(&api.Stop{AfterFailure: true}))
			}()
			s.awaitLog(1, 0, "saving")
			s.awaitLog(1, 1, "saving")
			lengthen(s)
			time.Sleep(r.Stop.GraceOnFailure + 500*time.Millisecond) // nothing announces that nobody is killed
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			<-stopped
			gone(t, pids...)
			for rank := range pids {
				if got := s.log(1, rank, "stdout"); !strings.HasSuffix(got, "bye\n") {
					t.Errorf("rank %d was not let save: %q", rank, got)
				}
			}
		})
	}
}

func TestWorkersThatIgnoreTheSignalAreKilledAfterTheGraceAndNamed(t *testing.T) {
	t.Parallel()
	r := workerOf(`trap '' TERM; echo up; while :; do sleep 0.02; done`)
	r.Stop.Grace = 300 * time.Millisecond
	s := enter(t, r)
	pids := runsOrderly(s)
	if err := s.service.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := s.awaitExit(); code != ExitDone {
		t.Errorf("exit %d, want 0", code)
	}
	gone(t, pids...)
	if !strings.Contains(s.said.String(), "rank 1 pid ") {
		t.Error("nobody says who held on")
	}
}

func TestLeaveIsAnsweredBeforeTheServiceEnds(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(orderly))
	pids := runsOrderly(s)
	s.must(&api.ToService{Order: &api.ToService_Leave{Leave: &api.Leave{}}})
	if code := s.awaitExit(); code != ExitDone {
		t.Errorf("exit %d, want 0", code)
	}
	endedInOrder(s, pids)
}

// shows: D14
func TestWithoutGraceTheControllersDeathEndsTheServiceInOrderAtOnce(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(orderly))
	pids := runsOrderly(s)
	leaveSocket(t, filepath.Join(s.runtimeDir(), "controller-0.sock")) // as the killed controller does
	s.door.slam()
	if code := s.awaitExit(); code != ExitControllerLost {
		t.Errorf("exit %d, want 75", code)
	}
	endedInOrder(s, pids)
	if said := s.said.String(); !strings.Contains(said, "controller lost") {
		t.Errorf("nothing says why: %q", said)
	}
}

// leaveSocket makes a socket on which nobody listens.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// shows: D14
func TestWithGraceTheWorkersGoOnWithoutAControllerForThatLong(t *testing.T) {
	slow(t)
	t.Parallel()
	s := newStage(t, workerOf(orderly))
	s.grace = 20 * time.Second // counted from the controller's last answer, one poll of 4 s back, or more on a busy machine
	s.start()
	s.joined()
	pids := runsOrderly(s)
	s.door.slam()
	eventually(t, "the loss to be noticed", func() bool { return strings.Contains(s.said.String(), "controller lost") })
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); err != nil {
			t.Errorf("a worker was ended before the grace was over: %v", err)
		}
	}
	if code := s.awaitExit(); code != ExitControllerLost {
		t.Errorf("exit %d, want 75", code)
	}
	endedInOrder(s, pids)
}

// An ordinary user on a machine without cgroup leaves for it, as in most containers.
func TestAnOrdinaryUserWithoutCgroupsCanServe(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user; the other tests ran as an ordinary one")
	}
	s := newStage(t, workerOf(`trap 'echo bye; exit 0' TERM; setsid sleep 1000 & echo up $!; while :; do sleep 0.02; done`))
	s.asNobody()
	s.start()
	s.joined()
	pids := runsOrderly(s)
	for rank := range 2 {
		pids = append(pids, atoi(t, strings.Fields(s.log(1, rank, "stdout"))[1]))
	}
	if held := s.must(stop(&api.Stop{})).Held; len(held) > 0 {
		t.Errorf("held on: %q", held)
	}
	gone(t, pids...)
}

// shows: D21
func TestAStopThatTakesItsTimeHoldsUpNeitherPollsNorQuestions(t *testing.T) {
	slow(t)
	t.Parallel()
	r := workerOf(`trap '' TERM; echo up; while :; do sleep 0.02; done`)
	r.Stop.Grace = 3 * time.Second
	s := enter(t, r)
	runsOrderly(s)
	at := "http://" + s.hub.Registrations()[0].HTTPAddress
	stopped := make(chan int, 1)
	go func() {
		code, _ := request(t, "POST", at+"/critic/stop_service", "")
		stopped <- code
	}()
	eventually(t, "the stop to begin", func() bool {
		code, _ := request(t, "POST", at+"/critic/heartbeat?step=1", "")
		return code == http.StatusConflict
	})
	if got := s.must(getStep()).Step; got < 1 {
		t.Errorf("get_step %d while stopping", got)
	}
	select {
	case <-stopped:
		t.Error("the stop was over before it could hold anything up")
	default:
	}
	if code := <-stopped; code != http.StatusOK {
		t.Errorf("stop_service %d", code)
	}
	if troubles := s.ears.troubles(); len(troubles) > 0 {
		t.Errorf("the service was doubted meanwhile: %q", troubles)
	}
}

func TestAControllerThatStopsByItselfTellsItsServices(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(orderly))
	pids := runsOrderly(s)
	s.hub.Stop(t.Context())
	if code := s.awaitExit(); code != ExitDone {
		t.Errorf("exit %d, want 0", code)
	}
	endedInOrder(s, pids)
}

// shows: D7
func TestAFailedRegistrationExitsWithOneAndSaysWhy(t *testing.T) {
	t.Parallel()
	s := newStage(t, workerOf("true"))
	s.door.slam()
	s.start()
	if code := s.awaitExit(); code != ExitFailed {
		t.Errorf("exit %d, want 1", code)
	}
	if said := s.said.String(); !strings.Contains(said, "register critic/0 with the controller at unix://"+s.door.path) {
		t.Errorf("it does not say why: %q", said)
	}
}

func TestAWorkerIsReadyWhenItsProbeSaysSoAndOnlyThen(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		probe job.Probe
		open  func(t *testing.T, gate string) (port uint32, open func())
	}{
		{"http", job.Probe{HTTP: &job.HTTPProbe{Port: "p", Path: "/health"}}, httpGate},
		{"tcp", job.Probe{TCP: &job.TCPProbe{Port: "p"}}, tcpGate},
		{"exec", job.Probe{Exec: []string{"test", "-e", "${port.p}"}}, nil},
		{"notify", job.Probe{Notify: true}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			gate := filepath.Join(dir, "7")
			port, open := uint32(7), func() { touch(t, gate) }
			if tt.open != nil {
				port, open = tt.open(t, gate)
			}
			r := workerOf(`echo up; while ! [ -e "$GATE" ]; do sleep 0.02; done; exec "$SELF" READY=1`)
			r.Env["GATE"], r.Env[playAs] = gate, "say"
			r.Workdir = dir
			tt.probe.Period, tt.probe.Timeout = 30*time.Millisecond, 5*time.Second
			r.Ready = &tt.probe
			s := enter(t, r)
			order := runOrder(1)
			order.Workers = order.Workers[:1]
			order.Workers[0].Ports = map[string]uint32{"p": port}
			s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
			s.awaitLog(1, 0, "up")
			isReady := func(w rpc.WorkerState) bool { return w.State == role.WorkerReady }
			if slices.ContainsFunc(s.ears.told(), isReady) {
				t.Error("ready before its probe has said so")
			}
			open()
			s.ears.awaitState(t, 0, role.WorkerReady)
			s.must(stop(&api.Stop{}))
			n := 0
			for _, w := range s.ears.told() {
				if isReady(w) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("told ready %d times, want once", n)
			}
		})
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// httpGate answers 503 until it is opened, then a redirect, which is a good answer.
func httpGate(t *testing.T, _ string) (uint32, func()) {
	var opened atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !opened.Load() || r.URL.Path != "/health" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		http.Redirect(w, r, "/nowhere", http.StatusFound)
	}))
	t.Cleanup(server.Close)
	return uint32(server.Listener.Addr().(*net.TCPAddr).Port), func() { opened.Store(true) }
}

// tcpGate has a port that refuses until it is opened.
func tcpGate(t *testing.T, _ string) (uint32, func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	return uint32(l.Addr().(*net.TCPAddr).Port), func() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
}

func TestAProbeThatHangsEndsWithItsTimeoutAndWithTheLife(t *testing.T) {
	t.Parallel()
	r := workerOf(`echo up; exec sleep 1000`)
	r.Ready = &job.Probe{Exec: []string{"/bin/sh", "-c", "echo $$ >> probes; sleep 1000"}, Period: 10 * time.Millisecond, Timeout: 100 * time.Millisecond}
	r.Workdir = t.TempDir()
	s := enter(t, r)
	s.must(run(1))
	probes := func() []string {
		text, err := os.ReadFile(filepath.Join(r.Workdir, "probes"))
		if err != nil {
			return nil
		}
		return strings.Fields(string(text))
	}
	eventually(t, "three probes", func() bool { return len(probes()) >= 3 })
	s.must(stop(&api.Stop{}))
	for _, pid := range probes() {
		gone(t, atoi(t, pid))
	}
}

// shows: A49
func TestTwoServicesOfOnePlaceDoNotRunAtOnce(t *testing.T) {
	s := enter(t, workerOf("exec sleep 300")) // a shell would leave it behind when its service is killed
	s.must(run(1))
	first := s.service
	after := exec.Command(first.Path, first.Args[1:]...)
	after.Env = first.Env
	var says said
	after.Stderr = &says
	if err := after.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = after.Process.Signal(unix.SIGTERM); _ = after.Wait() })
	eventually(t, "it waits", func() bool { return strings.Contains(says.String(), fmt.Sprintf("pid=%d", first.Process.Pid)) })
	if all := s.hub.Registrations(); len(all) != 1 || all[0].PID != first.Process.Pid {
		t.Errorf("registered are %+v", all)
	}
	if err := first.Process.Kill(); err != nil { // nothing of it tells the other
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.hub.WaitJoined(ctx, s.id, after.Process.Pid); err != nil {
		t.Errorf("%v; it says %s", err, says.String())
	}
}
