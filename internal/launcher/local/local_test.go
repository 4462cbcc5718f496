package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
	"vigil/internal/role"
)

func TestServiceEndsInOrderWithinTheGrace(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench) {
		t.Setenv("VIGIL_OPT_OF_THE_CONTROLLER", "1")
		t.Setenv(proc.Mark, "outer/actor/1/0/1")
		s, ids := b.start(t, "orderly")
		if want := filepath.Join(b.folder, "logs/actor/service.0.log"); s.Log() != want || s.ID != "actor/0" {
			t.Errorf("log %s, id %s; want %s", s.Log(), s.ID, want)
		}
		if err := unix.Kill(s.PID(), unix.SIGSTOP); err != nil { // it is continued first
			t.Fatal(err)
		}
		r, err := b.Stop(context.Background(), "actor", 0, time.Minute)
		if err != nil || len(r.Held) > 0 || len(r.Left) > 0 || r.Took > patience {
			t.Errorf("report %+v, %v", r, err)
		}
		if e := s.Exit(); e.Code != 0 || e.Signal != "" || !slices.Equal(e.Tail, []string{"options VIGIL_OPT_ROLE=actor", "ended in order"}) {
			t.Errorf("exit %+v: want 0, its own options only, and its last lines", e)
		}
		mustBeGone(t, ids...)
		if b.start(t, "orderly"); len(proc.Tail(s.Log(), 9)) < 3 {
			eventually(t, "the next service writes on in the same log", func() bool { return len(proc.Tail(s.Log(), 9)) == 3 })
		}
	})
}

func TestServiceThatIgnoresTheSignalIsKilledWithAllThatItStarted(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench) {
		s, ids := b.start(t, "stubborn")
		r, err := b.Stop(context.Background(), "actor", 0, 200*time.Millisecond)
		if err != nil || len(r.Left) > 0 || len(r.Held) < 2 {
			t.Errorf("report %+v, %v: want the service and its daemons held", r, err)
		}
		if len(r.Held) > 0 && (r.Held[0].PID != s.PID() || !strings.Contains(r.Held[0].String(), "service actor/0 (still there 2")) {
			t.Errorf("first held: %v", r.Held[0])
		}
		if e := s.Exit(); e.Signal != "SIGKILL" || e.Sender != "vigil" {
			t.Errorf("exit %+v", e)
		}
		mustBeGone(t, ids...)
	})
}

func TestServiceThatDiedLeavesNothingAfterClear(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench) {
		s, ids := b.start(t, "orderly")
		if _, err := b.Clear(context.Background(), "actor", 0); err == nil || !strings.Contains(err.Error(), "still runs") {
			t.Errorf("clear of a living service: %v", err)
		}
		if _, err := b.Start(context.Background(), Spec{Role: "actor"}); err == nil || !strings.Contains(err.Error(), "still runs") {
			t.Errorf("second start: %v", err)
		}
		stale := b.o.RuntimeDir.Path() + "/dead.sock"
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		if err := unix.Kill(s.PID(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		held, err := b.Clear(context.Background(), "actor", 0)
		if err != nil || len(held) < 2 {
			t.Errorf("clear: %v, %v: want the two daemons at least", held, err)
		}
		mustBeGone(t, ids...)
		if _, err := os.Lstat(stale); err == nil {
			t.Error("a dead socket was left")
		}
	})
}

func TestServiceOutlivesItsControllerAndIsAdopted(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench) {
		controller := b.controller(t)
		ids := b.pids(t, "service", "worker", "daemon", "bare")
		kill(t, controller.Ident())
		<-controller.Done()
		s, err := b.Adopt("actor", 0, 1, ids[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Adopt("actor", 0, 1, ids[0]); err == nil {
			t.Error("adopted twice")
		}
		b.Note("actor", 0, ids[1].PID, ids[1].StartTime)
		r, err := b.Stop(context.Background(), "actor", 0, time.Minute)
		if err != nil || len(r.Held) > 0 || len(r.Left) > 0 {
			t.Errorf("report %+v, %v", r, err)
		}
		if last := s.Exit().Tail; len(last) == 0 || last[len(last)-1] != "ended in order" {
			t.Errorf("its log ends with %q", last)
		}
		mustBeGone(t, ids...)
	})
}

// What was left when both had been killed is found at the next start, by cgroup, by mark, or because the service had
// noted it: one of them has left its session and shows no mark.
// shows: FAULT-C8
func TestServiceAndControllerKilledLeaveNothingAfterTheNextClear(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench) {
		controller := b.controller(t)
		ids := b.pids(t, "service", "worker", "daemon", "bare")
		stranger, err := b.keeper.Start(proc.Spec{Path: "sleep", Args: []string{"300"}, Env: append(os.Environ(), proc.Mark+"="+b.job+"0/actor/1/0/1")})
		if err != nil {
			t.Fatal(err)
		}
		note := b.treeNote(slotID{"actor", 0})
		eventually(t, "the service has noted all of them", func() bool {
			noted := proc.ReadTreeNote(note).Processes
			return !slices.ContainsFunc(ids[1:], func(id proc.Ident) bool { return !slices.Contains(noted, id) })
		})
		kill(t, controller.Ident(), ids[0])
		<-controller.Done()
		if held, err := b.Clear(context.Background(), "actor", 0); err != nil || len(held) < 2 {
			t.Errorf("clear: %v, %v: want at least the daemon and the child", held, err)
		}
		eventually(t, "the service is no zombie", func() bool { id, err := proc.Identify(ids[0].PID); return err != nil || id != ids[0] })
		mustBeGone(t, ids[1:]...)
		if !proc.Gone(note) {
			t.Error("the note is left behind")
		}
		if !stranger.Ident().Alive() {
			t.Error("a stranger of the same name was killed")
		}
		kill(t, stranger.Ident())
		<-stranger.Done()
	})
}

// A controller that was killed before it had recorded its service leaves nothing but the service's note.
// shows: FAULT-C8
func TestWhatAServiceThatNobodyKnowsHasLeftIsEndedBeforeTheNextStarts(t *testing.T) {
	t.Setenv("TEST_CGROUPS", "no")
	b := newBench(t, proc.NoCgroups)
	controller := b.controller(t)
	ids := b.pids(t, "service", "worker", "daemon", "bare")
	note := b.treeNote(slotID{"actor", 0})
	eventually(t, "the service has noted all of them", func() bool {
		noted := proc.ReadTreeNote(note).Processes
		return !slices.ContainsFunc(ids[1:], func(id proc.Ident) bool { return !slices.Contains(noted, id) })
	})
	kill(t, controller.Ident(), ids[0])
	<-controller.Done()
	b.start(t, "orderly")
	mustBeGone(t, ids[1:]...)
}

// shows: D26
func TestServicesAreAllAskedBeforeAnyIsWaitedFor(t *testing.T) {
	b := newBench(t, proc.NoCgroups)
	// Each ends only when both have been asked.
	script := `trap 'echo >$TEST_DIR/asked.$VIGIL_OPT_INDEX; while ! test -e $TEST_DIR/asked.0 || ! test -e $TEST_DIR/asked.1; do sleep 0.01; done; exit 0' TERM
echo $$ >$TEST_DIR/up.$VIGIL_OPT_INDEX
while :; do sleep 0.01; done`
	b.o.Executable = []string{"/bin/sh", "-c", script}
	for i, name := range []role.Name{"actor", "critic"} {
		env := map[string]string{"TEST_DIR": b.folder, "VIGIL_OPT_INDEX": strconv.Itoa(i)}
		s, err := b.Start(context.Background(), Spec{Role: name, Env: env})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { <-s.Done() })
	}
	b.pids(t, "up.0", "up.1")
	reports, err := b.StopAll(context.Background(), time.Minute)
	if err != nil || len(reports) != 2 {
		t.Fatalf("%v, %v", reports, err)
	}
	for name, r := range reports {
		// A "sleep" of the script may outlive it for a moment.
		if len(r.Left) > 0 || slices.ContainsFunc(r.Held, func(h proc.Holder) bool { return strings.HasPrefix(h.Name, "service") }) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// refusing is a keeper that cannot end a process for a while.
type refusing struct {
	*proc.Keeper
	refusals atomic.Int32
	left     proc.Holder
}

func (k *refusing) Clear(ctx context.Context, t proc.Tree) ([]proc.Holder, error) {
	if k.refusals.Add(-1) >= 0 {
		return []proc.Holder{k.left}, &proc.LeftError{Left: []proc.Holder{k.left}}
	}
	return k.Keeper.Clear(ctx, t)
}

func TestObligationIsKeptUntilItIsMet(t *testing.T) {
	b := newBench(t, proc.NoCgroups)
	p, err := b.keeper.Start(proc.Spec{Path: "sleep", Args: []string{"300"}})
	if err != nil {
		t.Fatal(err)
	}
	k := &refusing{Keeper: b.keeper, left: proc.Holder{Ident: p.Ident(), Name: "sleep", Why: "still there after SIGKILL"}}
	k.refusals.Store(1)
	o := b.o
	o.Keeper, o.Retry = k, time.Hour
	l := New(o)
	r, err := l.Stop(context.Background(), "critic", 0, 0)
	want := fmt.Sprintf("pid %d sleep (still there after SIGKILL)", p.PID())
	if err == nil || !strings.Contains(err.Error(), "critic/0") || !strings.Contains(err.Error(), want) || len(r.Left) != 1 {
		t.Errorf("report %+v, %v: want %q", r, err, want)
	}
	owed := l.Obligations()
	if len(owed) != 1 || !strings.Contains(owed[0].String(), want) {
		t.Fatalf("obligations %v", owed)
	}
	k.refusals.Store(2) // the last try of Close, and its proof
	if err := l.Close(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("close: %v, want it to name what is left", err)
	}

	// What an earlier run has left is no failure of this one.
	k.refusals.Store(1)
	l = New(o)
	earlier := owed[0]
	earlier.Earlier = true
	l.Owe(earlier)
	if err := l.Close(context.Background()); err != nil {
		t.Errorf("close: %v, want nothing", err)
	}

	k.refusals.Store(3)
	o.Retry = 10 * time.Millisecond
	var recorded []int // how many are left
	o.Record = func(o Obligation) { recorded = append(recorded, len(o.Left)) }
	l = New(o)
	l.Owe(owed[0])
	l.Owe(owed[0])
	<-p.Done()
	eventually(t, "the obligation is met", func() bool { return len(l.Obligations()) == 0 })
	if err := l.Close(context.Background()); err != nil {
		t.Error(err)
	}
	mustBeGone(t, p.Ident())
	if !slices.Equal(recorded, []int{1, 1, 0}) {
		t.Errorf("what is recorded has %v left, want one twice, and none", recorded)
	}
}

func TestServiceThatCannotStartSaysWhichAndWhy(t *testing.T) {
	b := newBench(t, proc.NoCgroups)
	b.o.Executable = []string{"/no/such/service"}
	_, err := b.Start(context.Background(), Spec{Role: "actor", Index: 3})
	if err == nil || !strings.Contains(err.Error(), "start service actor/3: start /no/such/service: no such file") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.Start(ctx, Spec{Role: "actor"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestNotedSessionsThatAreOverAreForgotten(t *testing.T) {
	b := newBench(t, proc.NoCgroups)
	p, err := b.keeper.Start(proc.Spec{Path: "sleep", Args: []string{"300"}})
	if err != nil {
		t.Fatal(err)
	}
	b.Note("actor", 0, p.PID(), p.StartTime())
	for i := range 10 * notesKept {
		b.Note("actor", 0, 5_000_000+i, 1) // beyond the greatest pid that there can be
	}
	place := b.slot(slotID{"actor", 0})
	eventually(t, "those that are over are forgotten", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(place.notes) <= notesKept+1
	})
	if held, err := b.Clear(context.Background(), "actor", 0); err != nil || len(held) != 1 {
		t.Errorf("clear: %v, %v: want the session that lives", held, err)
	}
	<-p.Done()
}

// slowKeeper takes as long to read /proc as its test wants.
type slowKeeper struct {
	Keeper
	asked chan struct{} // has one for each time
	goOn  chan struct{}
}

func (k *slowKeeper) Remains(proc.Tree) []proc.Holder {
	k.asked <- struct{}{}
	<-k.goOn
	return nil
}

// Whoever reads the words of a service notes its workers: that must not wait for all of /proc to be read,
// and nobody who needs the launcher's lock must either.
// shows: FAULT-H2
func TestNotingAWorkerWaitsForNothing(t *testing.T) {
	k := &slowKeeper{asked: make(chan struct{}, 100), goOn: make(chan struct{})}
	l := New(Options{Keeper: k, JobUID: "slow"})
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		for i := range 10 * notesKept {
			l.Note("actor", 0, 5_000_000+i, 1)
		}
		_ = l.Obligations() // takes the lock, as every scrape does
	}()
	wait := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(patience):
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
	wait("somebody looks which sessions are over", k.asked)
	wait("all are noted while /proc is being read", noted)
	if len(k.asked) > 0 {
		t.Error("more than one looks at a time")
	}
	close(k.goOn)
	place := l.slot(slotID{"actor", 0})
	eventually(t, "what came meanwhile is looked at too", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(place.notes) < notesKept && !place.looks
	})
}
