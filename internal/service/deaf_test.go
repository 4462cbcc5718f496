package service

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"vigil/api"
	"vigil/internal/role"
)

// A rank in a collective whose peer has gone is blocked in C: its handler is noted and never run. It does not
// sit out a grace that it cannot use; one that reacts does.
// shows: R59
func TestAPeerThatIsBlockedWhereItsHandlerDoesNotRunIsNotGivenTheWholeGrace(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: python3 is missing")
	}
	r := workerOf(`[ $RANK != 1 ] || exit 3; exec python3 -u -c '
import ctypes, os, signal, sys, time
told = []
signal.signal(signal.SIGTERM, lambda *a: told.append(1))
print("up")
if os.environ["RANK"] == "0":
    libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)
while not told:
    time.sleep(0.4)
print("bye")
'`)
	r.Workers = 3
	r.Stop.Grace, r.Stop.GraceOnFailure = time.Hour, patience
	s := enter(t, r)
	order := runOrder(1)
	order.WorldSize = 3
	order.Workers = append(order.Workers, &api.Worker{Rank: 2, Attempt: 1})
	s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
	s.awaitLog(1, 0, "up")
	s.awaitLog(1, 2, "up")
	s.ears.awaitFailure(t, 1)
	began := time.Now()
	held := s.must(stop(&api.Stop{AfterFailure: true})).Held
	if took := time.Since(began); took > patience/2 {
		t.Errorf("the stop took %s", took)
	}
	if down := s.ears.awaitState(t, 0, role.WorkerDown); down.Exit.Signal != "SIGKILL" || down.Exit.Sender != "vigil" {
		t.Errorf("rank 0 ended by %+v, want our SIGKILL", down.Exit)
	}
	if len(held) != 1 || !strings.HasPrefix(held[0], "rank 0 pid ") {
		t.Errorf("held on: %q, want rank 0", held)
	}
	if got := s.log(1, 2, "stdout"); !strings.Contains(got, "bye") {
		t.Errorf("rank 2, which looks at its flag, said %q", got)
	}
}
