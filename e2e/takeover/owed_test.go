package takeover

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"vigil/internal/journal"
	"vigil/internal/proc"
)

// sleeper is a process that nothing of the job has started. ended is closed when it has.
func sleeper(t *testing.T) (who proc.Ident, ended chan struct{}) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	who, err := proc.Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return who, ended
}

// edit changes the journal of a job that has no controller.
func (j *job) edit(change func(*journal.Journal) error) {
	j.t.Helper()
	book, err := journal.Open(j.journal(), journal.Options{Job: "takeover"})
	if err == nil {
		err = errors.Join(change(book), book.Close())
	}
	if err != nil {
		j.t.Fatal(err)
	}
}

// owe is the record of a process that the critic's service has left and that could not be ended.
func owe(who proc.Ident) journal.Entry {
	return journal.Put(journal.Obligation, "critic/0", map[string]any{"role": "critic", "index": 0, "since": time.Now().Add(-time.Minute),
		"left": []map[string]any{{"pid": who.PID, "start": who.StartTime, "name": "sleep", "why": "still there after SIGKILL"}}})
}

// What could not be ended is owed by the controllers that follow, in the same run and in the next.
// shows: A08 A12
func TestWhatCouldNotBeEndedIsOwedByTheNextController(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	was := begun(j)
	for _, args := range [][]string{nil, {"--forget-state"}} {
		j.kill()
		who, ended := sleeper(t)
		j.edit(func(book *journal.Journal) error { book.Write(owe(who)); return nil })
		if args != nil {
			j.uid = "" // it is another run
		}
		j.start(args...)
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatal("what was owed is still there")
		}
		j.poll("it is said", func() error {
			if said := j.log(j.starts); !strings.Contains(said, "obligation met") || !strings.Contains(said, "service=critic/0") {
				return errors.New("it is not")
			}
			return nil
		})
		if now := j.well("all is well"); args == nil {
			j.unharmed(was, now)
		}
	}
	j.interrupt(func() {})
	j.edit(func(book *journal.Journal) error {
		owed, err := journal.Read[any](book, journal.Obligation)
		if len(owed) > 0 {
			t.Errorf("the journal still has %v", owed)
		}
		return err
	})
}

// After a boot the pids of services and of what was left belong to others, even with the same start times.
// shows: A12
func TestAfterABootNobodyIsTakenForOneOfOurs(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	begun(j)
	for _, args := range [][]string{nil, {"--forget-state"}} {
		j.kill()
		for pid := range j.rig().Processes() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		one, _ := sleeper(t)
		other, _ := sleeper(t)
		j.edit(func(book *journal.Journal) error {
			book.Write(owe(other), journal.Put(journal.Service, "critic/0", map[string]any{"role": "critic", "incarnation": 1, "pid": one.PID, "start": one.StartTime}))
			return book.UpdateRun(func(r *journal.Run) { r.BootID = "before" })
		})
		if args != nil {
			j.uid = ""
		}
		j.start(args...)
		j.well("all is begun again")
		if !one.Alive() || !other.Alive() {
			t.Errorf("with %v a stranger was taken for one of ours", args)
		}
	}
	j.interrupt(func() {})
}

// A controller dies between starting a service and recording it. The next one does not know that service, which cannot
// be told to end, either.
// shows: A12 A49
func TestAServiceThatNobodyKnowsMakesRoomForAnother(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	was := begun(j)
	j.kill()
	var service, worker int
	for pid, p := range j.rig().Processes() {
		switch {
		case p.Life() == "" && slices.Contains(p.Environ, "VIGIL_OPT_ROLE=critic"):
			service = pid
		case pid == was.pid("critic/0"):
			worker = pid
		}
	}
	if service == 0 || worker == 0 {
		t.Fatalf("the service is %d, its worker %d", service, worker)
	}
	if err := syscall.Kill(service, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	j.edit(func(book *journal.Journal) error { book.Write(journal.Delete(journal.Service, "critic/0")); return nil })
	j.start()
	now := j.well("another is there")
	if said := j.log(j.starts); !strings.Contains(said, "a service is ended that an earlier controller has started") {
		t.Errorf("it is not said: %s", said)
	}
	for _, pid := range []int{service, worker} {
		if who, err := proc.Identify(pid); err == nil && who.Alive() {
			t.Errorf("pid %d still lives", pid)
		}
	}
	j.unharmed(was, now, "critic")
	j.interrupt(func() {})
	j.livedOnce()
}
