package warm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// ready waits until a fork server is ready that is not the old one, and returns its pid.
func (b *bench) ready(old int) int {
	b.t.Helper()
	eventually(b.t, "a fork server is ready", func() bool {
		st := b.server.Status()
		return st.Ready && st.PID != old
	})
	return b.server.Status().PID
}

func TestADeadForkServerIsReplacedAndItsWorkersGoOn(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("train.py", "import sys; print('trains', flush=True); sys.stdin.read()")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	s := b.spec("train.py")
	s.Stdin = reader
	r := b.fork(s)
	first := b.ready(0)
	if st := b.server.Status(); st.Memory < 1<<20 || len(st.Modules) != 1 || st.Why != "" {
		t.Errorf("status %+v", st)
	}
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.ready(first)
	select {
	case <-r.Done():
		t.Errorf("the worker ended with its fork server: %v", r.Exit())
	default:
	}
	b.fork(b.spec("train.py")).end(t)
	writer.Close()
	if out, _ := r.end(t); out != "trains\n" || r.Exit().Code != 0 {
		t.Errorf("the worker printed %q and ended with %v", out, r.Exit())
	}
}

func TestAForkServerThatIsAskedToEndByATerminalStays(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("train.py", "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM))")
	b.fork(b.spec("train.py")).end(t)
	pid := b.ready(0)
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM} {
		if err := unix.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	if out, _ := b.fork(b.spec("train.py")).end(t); out != "True 0\n" && out != "True Handlers.SIG_DFL\n" {
		t.Errorf("the worker printed %q", out)
	}
	if now := b.ready(0); now != pid {
		t.Errorf("the fork server was replaced")
	}
}

func TestForkServersThatKeepDyingAreGivenUp(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("train.py", "pass")
	b.server.Prepare(b.spec("train.py"))
	pid := 0
	for range lossLimit {
		pid = b.ready(pid)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	b.mustTell("3 fork servers were lost in a row")
	if _, err := b.server.Fork(t.Context(), b.spec("train.py")); !errors.Is(err, ErrCold) {
		t.Errorf("a fork gave %v", err)
	}
}

// A signal during the imports may have come from the kernel, for want of memory: that may pass.
func TestAForkServerThatIsKilledWhileItImportsIsTriedAgain(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"crashes"}})
	b.file("crashes.py", `
import os, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if not os.path.exists("crashed"):
    open("crashed", "w").close()
    os.abort()
`)
	b.file("train.py", "print('trains')")
	if out, _ := b.fork(b.spec("train.py")).end(t); out != "trains\n" {
		t.Errorf("the worker printed %q", out)
	}
}

func TestImportsThatAlwaysCrashAreGivenUp(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"crashes"}})
	b.file("crashes.py", "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()")
	b.file("train.py", "pass")
	if _, err := b.server.Fork(t.Context(), b.spec("train.py")); !errors.Is(err, ErrCold) {
		t.Errorf("a fork gave %v", err)
	}
	b.mustTell("3 fork servers were lost in a row", "importing crashes", "SIGABRT")
}

func TestAForkServerThatHangsCostsABoundedTime(t *testing.T) {
	slow(t)
	b := newBench(t, Options{Preload: []string{"json"}, Answer: time.Second})
	b.file("train.py", "print('trains')")
	b.fork(b.spec("train.py")).end(t)
	pid := b.ready(0)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if out, _ := b.fork(b.spec("train.py")).end(t); out != "trains\n" || b.ready(0) == pid {
		t.Errorf("the worker printed %q; pid %d, before %d", out, b.ready(0), pid)
	}
}

func TestAForkIsNotWaitedForLongerThanItsContext(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"slow"}})
	b.file("slow.py", "import time; time.sleep(300)")
	b.file("train.py", "pass")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.server.Fork(ctx, b.spec("train.py")); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrCold) {
		t.Errorf("a fork gave %v", err)
	}
}

// Whenever a fork server is killed, a fork gives a worker that is whole, or none.
func TestAForkServerMayBeKilledAtAnyPoint(t *testing.T) {
	slow(t)
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("train.py", "print('trains')")
	var forked, cold atomic.Int64
	stop := make(chan struct{})
	var killer, forkers sync.WaitGroup
	killer.Go(func() {
		for {
			timer := time.NewTimer(time.Duration(10+rand.IntN(190)) * time.Millisecond)
			select {
			case <-stop:
				timer.Stop()
				return
			case <-timer.C:
			}
			b.server.forked() // so that it is never given up
			st := b.server.Status()
			if pid := st.PID; pid != 0 && (st.Ready || rand.IntN(4) == 0) { // on a busy machine none would get so far
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			}
		}
	})
	var specs [4][]proc.Spec
	for i := range specs {
		for range 10 {
			specs[i] = append(specs[i], b.spec("train.py"))
		}
	}
	for i := range specs {
		forkers.Go(func() {
			for _, s := range specs[i] {
				r := &run{}
				begin := r.pipes(t, &s)
				p, err := b.server.Fork(t.Context(), s)
				begin()
				if err != nil {
					cold.Add(1)
					if p, err = b.keeper.Start(proc.Spec{Path: "true"}); err == nil {
						<-p.Done()
					}
					continue
				}
				r.Process = p
				if out, errs := r.end(t); out != "trains\n" || p.Exit().Code != 0 {
					t.Errorf("a worker printed %q and %q and ended with %v", out, errs, p.Exit())
				}
				forked.Add(1)
				b.keeper.Clear(context.Background(), p.Tree())
			}
		})
	}
	forkers.Wait()
	close(stop)
	killer.Wait()
	t.Logf("%d forked, %d cold", forked.Load(), cold.Load())
	if forked.Load() == 0 {
		t.Error("not one worker was forked")
	}
	if st := b.server.Status(); st.Why != "" {
		t.Errorf("it was given up: %s", st.Why)
	}
}

// forks is how many workers the test of growth forks; VIGIL_TEST_FORKS asks for more.
const forks = 100

func TestForkingLeavesNothingBehind(t *testing.T) {
	slow(t)
	n := forks
	if text := os.Getenv("VIGIL_TEST_FORKS"); text != "" {
		n, _ = strconv.Atoi(text)
	}
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("train.py", "pass")
	once := func() {
		p, err := b.server.Fork(t.Context(), b.spec("train.py"))
		if err != nil {
			t.Fatal(err)
		}
		within(t, "the worker ends", p.Done())
		if _, err := b.keeper.Clear(t.Context(), p.Tree()); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		once()
	}
	pid := b.ready(0)
	before := measure(t, pid)
	for range n {
		once()
	}
	after := measure(t, pid)
	t.Logf("before %v, after %d forks %v", before, n, after)
	if after.open > before.open || after.ownOpen > before.ownOpen+2 || after.children != before.children {
		t.Errorf("descriptors or processes grew: %v, then %v", before, after)
	}
	if after.memory > before.memory+1<<20 {
		t.Errorf("the fork server's memory grew from %d to %d bytes", before.memory, after.memory)
	}
}

type measured struct {
	memory, open, ownOpen, children int
}

func measure(t *testing.T, pid int) measured {
	t.Helper()
	count := func(path string) int {
		items, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		return len(items)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	return measured{int(residentBytes(pid)), count(fmt.Sprintf("/proc/%d/fd", pid)), count("/proc/self/fd"), len(strings.Fields(string(text)))}
}
