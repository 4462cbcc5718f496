package warm

import (
	"context"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// spares waits until n processes stand ready and returns their pids.
func (b *bench) spares(n int) []int {
	b.t.Helper()
	eventually(b.t, "processes stand ready", func() bool { return b.server.Status().Spares == n })
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	var pids []int
	for _, w := range b.server.life.stock.ready {
		pids = append(pids, w.id.PID)
	}
	return pids
}

func TestWorkersThatStartTogetherAreForkedAheadForTheNextLife(t *testing.T) {
	slow(t)
	b := newBench(t, Options{Preload: []string{"json", "random"}, SpareAfter: time.Second})
	b.file("train.py", "import os, random; print(os.environ['RANK'], os.getsid(0) == os.getpid(), random.random())")
	drawn := map[string]bool{}
	for life := range 3 {
		var ready []int
		if life > 0 {
			ready = b.spares(3)
		}
		var runs []*run
		for rank := range 3 {
			s := b.spec("train.py")
			s.Env = append(s.Env, "VIGIL_RANK="+strconv.Itoa(rank))
			runs = append(runs, b.fork(s))
		}
		for _, r := range runs {
			if life > 0 && !slices.Contains(ready, r.PID()) {
				t.Errorf("pid %d is none of those that stood ready, %v", r.PID(), ready)
			}
			out, errs := r.end(t)
			if r.Exit().Code != 0 || drawn[out] || len(out) < len("0 True 0.1") || out[:7] != "0 True " {
				t.Errorf("a worker printed %q and %q and ended with %v", out, errs, r.Exit())
			}
			drawn[out] = true
		}
	}
	b.spares(3)
}

// A worker that fails at once, again and again, is one worker.
func TestForAWorkerThatIsRestartedInARowOneStandsReady(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}, SpareAfter: 500 * time.Millisecond})
	b.file("train.py", "print('trains')")
	for range 5 {
		s := b.spec("train.py")
		s.Env = append(s.Env, "VIGIL_RANK=0")
		b.fork(s).end(t)
	}
	b.spares(1)
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	if wanted := b.server.life.stock.most(); wanted != 1 {
		t.Errorf("%d shall stand ready", wanted)
	}
}

// Whatever becomes of a process that stands ready, the next worker is whole.
func TestAProcessThatStandsReadyMayBeLost(t *testing.T) {
	slow(t)
	b := newBench(t, Options{Preload: []string{"mine"}, SpareAfter: 50 * time.Millisecond, Answer: time.Second})
	b.file("mine.py", "value = 1")
	b.file("train.py", "import mine; print(mine.value)")
	see := func(want string) {
		t.Helper()
		if out, errs := b.fork(b.spec("train.py")).end(t); out != want {
			t.Errorf("the worker printed %q and %q", out, errs)
		}
	}
	see("1\n")
	for _, sig := range []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGSTOP} {
		spare := b.spares(1)[0]
		if err := unix.Kill(spare, sig); err != nil {
			t.Fatal(err)
		}
		see("1\n")
	}
	b.spares(1)
	b.file("mine.py", "value = 1000")
	see("1000\n")
	old := b.spares(1)[0]
	if err := unix.Kill(b.ready(0), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what stood ready ends with its fork server", func() bool { return unix.Kill(old, 0) == unix.ESRCH })
	b.spares(1) // of the next fork server, though nobody was started by it yet
	see("1000\n")
}

func TestWhatStandsReadyIsNoneOfAWorkersTree(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}, SpareAfter: 50 * time.Millisecond})
	b.file("train.py", "import time; time.sleep(300)")
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r := b.fork(b.spec("train.py"))
	spare := b.spares(1)[0]
	report := b.keeper.Stop(context.Background(), []*proc.Process{r.Process}, proc.StopSpec{})
	if report.Killed != 1 || len(report.Left) > 0 {
		t.Errorf("the stop killed %d and left %v", report.Killed, report.Left)
	}
	if now := b.spares(1)[0]; now != spare || unix.Kill(spare, 0) != nil {
		t.Errorf("pid %d stood ready, now %d", spare, now)
	}
}
