package service

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/role"
)

// runAlone starts one rank of an incarnation anew.
func runAlone(inc int, rank, attempt uint32) *api.ToService {
	order := runOrder(inc)
	order.ResumeStep, order.Only = 55, []uint32{rank}
	order.Workers[rank].Attempt = attempt
	return &api.ToService{Order: &api.ToService_Run{Run: order}}
}

func TestOneWorkerIsStartedAnewBesideItsPeer(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`echo "rank $LOCAL_RANK of $WORLD_SIZE from $VIGIL_RESUME_STEP"; exec sleep 1000`))
	s.must(run(1))
	first := s.ears.awaitState(t, 1, role.WorkerReady)
	peer := s.ears.awaitState(t, 0, role.WorkerReady)
	if _, err := s.call(runAlone(1, 1, 2)); err == nil || !strings.Contains(err.Error(), "rank 1 of incarnation 1 runs still") {
		t.Errorf("started over a living one: %v", err)
	}
	if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.ears.awaitFailure(t, 1)
	s.must(stop(&api.Stop{AfterFailure: true, Ranks: []uint32{1}}))
	gone(t, first.PID)
	s.must(runAlone(1, 1, 2))
	again := s.life(1, 1)
	again.Attempt = 2
	s.ears.await(t, "the second attempt to be ready", func() bool {
		last := s.ears.states[len(s.ears.states)-1]
		return last.Life == again && last.State == role.WorkerReady
	})
	eventually(t, "the second attempt to say where it is", func() bool {
		return strings.Contains(s.logOf("1.2", 1, "stdout"), "rank 1 of 2 from 55")
	})
	if err := unix.Kill(peer.PID, 0); err != nil {
		t.Errorf("the peer was ended: %v", err)
	}
	for inc, want := range map[int]string{2: "of incarnation 1 only"} {
		if _, err := s.call(runAlone(inc, 1, 3)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a single worker of incarnation %d: %v", inc, err)
		}
	}
	if err := unix.Kill(peer.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if f := s.ears.awaitFailure(t, 2); f.Life != s.life(1, 0) {
		t.Errorf("the peer's end is told as %+v", f)
	}
}

func TestWhatOneWorkerSaysWhileAnotherIsStoppedIsHeard(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`trap "" TERM; echo up; while :; do sleep 0.1; done`))
	s.role.Stop.GraceOnFailure = patience
	s.must(run(1))
	s.awaitLog(1, 0, "up")
	s.awaitLog(1, 1, "up")
	stubborn := s.ears.awaitState(t, 1, role.WorkerReady)
	other := s.ears.awaitState(t, 0, role.WorkerReady)
	stopped := make(chan error, 1)
	go func() {
		_, err := s.call(stop(&api.Stop{AfterFailure: true, Ranks: []uint32{1}}))
		stopped <- err
	}()
	if err := unix.Kill(other.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if f := s.ears.awaitFailure(t, 1); f.Exit == nil || f.Exit.Signal != "SIGKILL" {
		t.Errorf("failure %+v", f)
	}
	select {
	case err := <-stopped:
		t.Fatalf("the stop was over before the failure was heard: %v", err)
	default:
	}
	if err := unix.Kill(stubborn.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
