package service

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/role"
)

// shows: A01
func TestOneRankFailsIsReportedAtOnceAndItsPeerIsStoppedOnOrder(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`if [ $RANK = 1 ]; then echo good; echo "boom at $LOCAL_RANK" >&2; exit 3; fi; exec sleep 1000`))
	if got := s.must(run(1)).Step; got != 40 {
		t.Errorf("started from step %d, want 40", got)
	}
	f := s.ears.awaitFailure(t, 1)
	if f.Cause != role.Exited || f.Life != s.life(1, 1) || f.Exit == nil || f.Exit.Code != 3 {
		t.Errorf("failure %+v, exit %+v; want rank 1 exited with 3", f, f.Exit)
	}
	if len(f.Exit.Tail) != 1 || f.Exit.Tail[0] != "boom at 1" || !strings.HasSuffix(f.Log, "critic/1/1.1/stderr.log") {
		t.Errorf("tail %q, log %q", f.Exit.Tail, f.Log)
	}
	peer := s.ears.awaitState(t, 0, role.WorkerReady)
	if err := unix.Kill(peer.PID, 0); err != nil {
		t.Errorf("the peer was stopped without an order: %v", err)
	}
	s.must(stop(&api.Stop{AfterFailure: true}))
	gone(t, peer.PID, f.Exit.PID)
	if down := s.ears.awaitState(t, 0, role.WorkerDown); down.Exit.Signal != "SIGTERM" || down.Exit.Sender != "vigil" {
		t.Errorf("the peer ended by %+v, want our SIGTERM", down.Exit)
	}
	if n := len(s.ears.failed()); n != 1 {
		t.Errorf("%d failures, want the first only", n)
	}
}

// shows: A14
func TestRanksMayFinishAtDifferentTimes(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	r := workerOf(`[ $RANK = 1 ] || while ! [ -e "$GATE" ]; do sleep 0.02; done`)
	r.Env["GATE"] = gate
	s := enter(t, r)
	s.must(run(1))
	s.ears.awaitState(t, 1, role.WorkerFinished)
	if first := s.ears.awaitState(t, 0, role.WorkerReady); first.Exit != nil {
		t.Errorf("rank 0 has ended with its peer: %+v", first.Exit)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.ears.awaitState(t, 0, role.WorkerFinished)
	if failed := s.ears.failed(); len(failed) > 0 {
		t.Errorf("failures %+v", failed)
	}
}

func TestAWorkerKilledByASignalIsReportedWithSignalAndPid(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`exec sleep 1000`))
	s.must(run(1))
	victims := map[int]string{s.ears.awaitState(t, 0, role.WorkerReady).PID: "SIGKILL", s.ears.awaitState(t, 1, role.WorkerReady).PID: "SIGSEGV"}
	for pid, name := range victims {
		if err := unix.Kill(pid, unix.SignalNum(name)); err != nil {
			t.Fatal(err)
		}
	}
	s.ears.awaitFailure(t, 2)
	for _, f := range s.ears.failed() {
		if f.Cause != role.Exited || f.Exit.Signal != victims[f.Exit.PID] || f.Exit.Sender != "" {
			t.Errorf("failure %+v, exit %+v; want one of %v, sent by a stranger", f, f.Exit, victims)
		}
		if !strings.Contains(f.Detail, f.Exit.Signal) {
			t.Errorf("detail %q does not name the signal", f.Detail)
		}
	}
}

func TestAStoppedWorkerIsWokenToEndInOrder(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done`))
	s.must(run(1))
	s.awaitLog(1, 0, "up")
	s.awaitLog(1, 1, "up")
	if err := unix.Kill(s.ears.awaitState(t, 0, role.WorkerReady).PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if held := s.must(stop(&api.Stop{})).Held; len(held) > 0 {
		t.Errorf("held on: %v", held)
	}
	for rank := range 2 {
		if got := s.log(1, rank, "stdout"); !strings.Contains(got, "bye") {
			t.Errorf("rank %d did not run its handler: %q", rank, got)
		}
	}
}

// shows: R59
func TestPeersOfAFailedRankGetTheShortGrace(t *testing.T) {
	t.Parallel()
	r := workerOf(`[ $RANK = 0 ] || exit 3; trap '' TERM; echo up; while :; do sleep 0.02; done`)
	r.Stop.Grace, r.Stop.GraceOnFailure = time.Hour, 200*time.Millisecond
	s := enter(t, r)
	s.must(run(1))
	s.awaitLog(1, 0, "up")
	s.ears.awaitFailure(t, 1)
	held := s.must(stop(&api.Stop{AfterFailure: true})).Held
	down := s.ears.awaitState(t, 0, role.WorkerDown)
	if down.Exit.Signal != "SIGKILL" || down.Exit.Sender != "vigil" {
		t.Errorf("ended by %+v, want our SIGKILL", down.Exit)
	}
	if len(held) == 0 || !strings.HasPrefix(held[0], "rank 0 pid ") {
		t.Errorf("held on: %q, want rank 0", held)
	}
	gone(t, down.PID)
}

func TestWhatAWorkerLeavesBehindIsEndedWithIt(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`setsid sleep 1000 & echo $!; exit 0`))
	s.must(run(1))
	s.ears.awaitState(t, 0, role.WorkerFinished)
	s.ears.awaitState(t, 1, role.WorkerFinished)
	s.must(stop(&api.Stop{}))
	for rank := range 2 {
		gone(t, atoi(t, strings.TrimSpace(s.log(1, rank, "stdout"))))
	}
}

func TestIfOneCannotBeStartedNoneIsLeft(t *testing.T) {
	t.Parallel()
	r := workerOf("")
	r.Command = []string{"./worker${port.n}"}
	r.Workdir = t.TempDir()
	if err := os.WriteFile(filepath.Join(r.Workdir, "worker1"), []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := enter(t, r)
	order := runOrder(1)
	order.Workers[0].Ports = map[string]uint32{"n": 1}
	order.Workers[1].Ports = map[string]uint32{"n": 2}
	_, err := s.call(&api.ToService{Order: &api.ToService_Run{Run: order}})
	if err == nil || !strings.Contains(err.Error(), "./worker2") || !strings.Contains(err.Error(), "rank 1") || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v, want one that names the command, the rank and the cause", err)
	}
	gone(t, s.ears.awaitState(t, 0, role.WorkerDown).PID)
	if failed := s.ears.failed(); len(failed) > 0 {
		t.Errorf("failures %+v; the answer says it", failed)
	}
	if err := os.Link(filepath.Join(r.Workdir, "worker1"), filepath.Join(r.Workdir, "worker2")); err != nil {
		t.Fatal(err)
	}
	order.Incarnation = 2
	s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
}

// shows: A03
func TestEachLifeHasItsNumberItsStepAndItsLogs(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`echo "$TORCHELASTIC_RESTART_COUNT $VIGIL_INCARNATION $VIGIL_RESUME_STEP $VIGIL_LIFE"`))
	for inc := 1; inc <= 3; inc++ {
		s.must(run(inc))
		for rank := range 2 {
			s.ears.await(t, "both to finish", func() bool {
				last := s.ears.states[len(s.ears.states)-1]
				return last.State == role.WorkerFinished && last.Life.Incarnation == inc
			})
			want := []string{"0 1 40", "1 2 40", "2 3 40"}[inc-1]
			s.awaitLog(inc, rank, want+" "+s.life(inc, rank).String())
		}
		s.must(stop(&api.Stop{}))
	}
}

func TestAnOrderForAnOldLifeLeavesTheNewOneAlone(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`exec sleep 1000`))
	s.must(run(2))
	pid := s.ears.awaitState(t, 0, role.WorkerReady).PID
	s.must(stop(&api.Stop{Below: 2}))
	for _, inc := range []int{1, 2} {
		if _, err := s.call(run(inc)); err == nil || !strings.Contains(err.Error(), "incarnation 2 was started already") {
			t.Errorf("run incarnation %d: %v", inc, err)
		}
	}
	if _, err := s.call(run(3)); err == nil || !strings.Contains(err.Error(), "runs still") {
		t.Errorf("run incarnation 3 over a living one: %v", err)
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("the living incarnation was ended: %v", err)
	}
	s.must(stop(&api.Stop{Below: 3}))
	gone(t, pid)
	s.must(run(3))
}

func TestPeersAreFoundAtTheStartAndAfterAChange(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`echo "$VIGIL_ROLE_ACTOR_ADDRS"; while :; do cat "$VIGIL_PEERS_FILE"; sleep 0.02; done`))
	order := runOrder(1)
	order.Peers = map[string]string{"actor": "127.0.0.1:1,127.0.0.1:2"}
	order.PeersJson = `{"actor":["old"]}`
	s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
	s.awaitLog(1, 0, "127.0.0.1:1,127.0.0.1:2\n"+`{"actor":["old"]}`)
	s.must(&api.ToService{Order: &api.ToService_Peers{Peers: &api.Peers{Json: `{"actor":["new"]}`}}})
	s.awaitLog(1, 0, `{"actor":["new"]}`)
}
