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
	slow(t)
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
	r.Stop.Grace, r.Stop.GraceOnFailure = time.Hour, time.Hour
	s := enter(t, r)
	order := runOrder(1)
	order.WorldSize = 3
	order.Workers = append(order.Workers, &api.Worker{Rank: 2, Attempt: 1})
	s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
	s.awaitLog(1, 0, "up")
	s.awaitLog(1, 2, "up")
	s.ears.awaitFailure(t, 1)
	held := s.must(stop(&api.Stop{AfterFailure: true})).Held // which does not wait for an hour
	if down := s.ears.awaitState(t, 0, role.WorkerDown); down.Exit.Signal != "SIGKILL" || down.Exit.Sender != "vigil" {
		t.Errorf("rank 0 ended by %+v, want our SIGKILL", down.Exit)
	}
	if len(held) != 1 || !strings.HasPrefix(held[0], "rank 0 pid ") {
		t.Errorf("held on: %q, want rank 0", held)
	}
	if !s.ears.noticed("blocked: ended 1s after SIGTERM, not 1h0m0s") {
		t.Errorf("nobody says that it was ended early: %q", s.ears.notices)
	}
	if got := s.log(1, 2, "stdout"); !strings.Contains(got, "bye") {
		t.Errorf("rank 2, which looks at its flag, said %q", got)
	}
}

// A program may save in another thread than the one that waits for it: in Go, Java and Rust the main thread does nothing
// at all. While any thread is at work it keeps its grace, and a grace that the user has written is never cut, whatever
// the threads do. Members of the kind: a thread that computes, one that came after the signal, and a blocked program
// whose grace was written.
// shows: FAULT-C3
func TestAWorkerThatSavesInAnotherThreadKeepsItsGrace(t *testing.T) {
	slow(t)
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: python3 is missing")
	}
	const work = `
def save():
    told.wait()
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        hash(bytes(1000))
    print("saved")
    os._exit(0)
`
	for name, c := range map[string]struct {
		script  string
		grace   time.Duration
		written bool
		saved   bool
	}{
		"a thread that was there": {script: work + `
threading.Thread(target=save).start()
signal.signal(signal.SIGTERM, lambda *a: told.set())
`, grace: patience, saved: true},
		"a thread that comes": {script: work + `
signal.signal(signal.SIGTERM, lambda *a: (told.set(), threading.Thread(target=save).start()))
`, grace: patience, saved: true},
		"a grace that was written": {script: `
signal.signal(signal.SIGTERM, lambda *a: None)
import ctypes
libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(lock)
print("up")
libc.pthread_mutex_lock(lock)
`, grace: 2 * time.Second, written: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := workerOf(`[ $RANK != 1 ] || exit 3; exec python3 -u -c '
import os, signal, threading, time
told = threading.Event()` + c.script + `
print("up")
while True:
    signal.pause()
'`)
			r.Stop.Grace, r.Stop.GraceOnFailure, r.Stop.GraceWritten = time.Hour, c.grace, c.written
			s := enter(t, r)
			s.must(run(1))
			s.awaitLog(1, 0, "up")
			s.ears.awaitFailure(t, 1)
			held := s.must(stop(&api.Stop{AfterFailure: true})).Held
			if got := strings.Contains(s.log(1, 0, "stdout"), "saved"); got != c.saved || c.saved != (len(held) == 0) {
				t.Errorf("saved: %v, want %v; held on: %q", got, c.saved, held)
			}
			if s.ears.noticed("blocked: ended") {
				t.Errorf("it was ended early: %q", s.ears.notices)
			}
		})
	}
}
