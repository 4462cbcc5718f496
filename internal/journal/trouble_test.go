package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// faulty is a disk between whose commits a test can stand.
type faulty struct {
	store
	gate    chan struct{}         // where not nil, each commit takes one from it
	fail    atomic.Pointer[error] // what commits answer, where not nil
	commits atomic.Int64
}

func (f *faulty) commit(b *batch) error {
	f.commits.Add(1)
	if f.gate != nil {
		<-f.gate
	}
	if err := f.fail.Load(); err != nil {
		return *err
	}
	return f.store.commit(b)
}

func (f *faulty) broken(err error) { f.fail.Store(&err) }
func (f *faulty) well()            { f.fail.Store(nil) }

func on(f *faulty) seams {
	s := quick()
	s.pace.stall = 50 * time.Millisecond
	s.wrap = func(d store) store { f.store = d; return f }
	return s
}

// eventually polls, because there is nothing to wait for: trouble is asked for, not told.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, tick := soon(t), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

func TestWritesAreTriedAgainUntilTheDiskTakesThem(t *testing.T) {
	path := newPath(t)
	f := &faulty{}
	j := mustOpen(t, path, on(f))
	write(t, j, Put(Role, "actor", 1), Put(Ledger, "all", 1))
	if text, is := j.Trouble(); is {
		t.Errorf("trouble on a good disk: %s", text)
	}
	f.broken(syscall.ENOSPC)
	first := j.Write(Put(Role, "actor", 2), Put(Role, "critic", 2), Delete(Ledger, "all"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := first.Wait(ctx)
	if !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, ErrPending) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting gave %v", err)
	}
	if err := first.Err(); !errors.Is(err, syscall.ENOSPC) || !errors.Is(err, ErrPending) {
		t.Errorf("Err gave %v", err)
	}
	if text, is := j.Trouble(); !is || !strings.Contains(text, "no space left") || !strings.Contains(text, "3 records") {
		t.Errorf("trouble: %q, %t", text, is)
	}
	second := j.Write(Put(Role, "actor", 3))
	n := f.commits.Load()
	eventually(t, "tried again", func() bool { return f.commits.Load() > n+2 })
	f.well()
	must(t, second.Wait(soon(t)))
	must(t, first.Wait(soon(t)))
	if text, is := j.Trouble(); is {
		t.Errorf("trouble after it is over: %s", text)
	}
	must(t, j.Close())
	j = mustOpen(t, path, quick())
	if got := content(t, j); !maps.Equal(got, map[string]string{"role/actor": "3", "role/critic": "2"}) {
		t.Errorf("there is %v", got)
	}
}

// What failed goes under what was written meanwhile, not over it.
func TestAFailedCommitDoesNotUndoWhatWasWrittenMeanwhile(t *testing.T) {
	f := &faulty{gate: make(chan struct{}, 100)}
	j := mustOpen(t, newPath(t), on(f))
	meanwhile := func(first Entry, second ...Entry) {
		t.Helper()
		n := f.commits.Load()
		a := j.Write(first, Put(Plan, "first", 1))
		eventually(t, "a commit is under way", func() bool { return f.commits.Load() == n+1 })
		b := j.Write(second...)
		f.broken(syscall.EIO)
		f.gate <- struct{}{}
		eventually(t, "it is tried again", func() bool { return f.commits.Load() == n+2 })
		f.well()
		f.gate <- struct{}{}
		must(t, a.Wait(soon(t)))
		must(t, b.Wait(soon(t)))
	}
	meanwhile(Put(Role, "actor", 1), Put(Role, "actor", 2))
	if got := content(t, j); !maps.Equal(got, map[string]string{"role/actor": "2", "plan/first": "1"}) {
		t.Errorf("there is %v", got)
	}
	meanwhile(Put(Role, "actor", 3), Entry{clear: true}, Put(Role, "critic", 4))
	if got := content(t, j); !maps.Equal(got, map[string]string{"role/critic": "4"}) {
		t.Errorf("after a clear there is %v", got)
	}
	meanwhile(Entry{clear: true}, Put(Role, "actor", 5))
	if got := content(t, j); !maps.Equal(got, map[string]string{"role/actor": "5", "plan/first": "1"}) {
		t.Errorf("after a clear that failed there is %v", got)
	}
}

func TestAStalledDiskHoldsNobodyUpAndTakesNoMemory(t *testing.T) {
	path := newPath(t)
	f := &faulty{gate: make(chan struct{}, 100)}
	j := mustOpen(t, path, on(f))
	stuck := j.Write(Put(Role, "actor", 0))
	eventually(t, "a commit is under way", func() bool { return f.commits.Load() == 1 })
	var last *Commit
	seen := map[*Commit]bool{}
	for i := range 100_000 {
		last = j.Write(Put(Role, "actor", i+1), Put(Plan, fmt.Sprint(i%10), i))
		seen[last] = true
	}
	j.mu.Lock()
	n, commits := len(j.queue.ops), len(j.queue.commits)
	j.mu.Unlock()
	if n != 11 || commits != 1 || len(seen) != 1 {
		t.Errorf("%d records and %d commits wait after 100,000 writes of 11 keys", n, commits)
	}
	eventually(t, "trouble", func() bool { _, is := j.Trouble(); return is })
	if text, _ := j.Trouble(); !strings.Contains(text, "has not answered") || !strings.Contains(text, "12 records") {
		t.Errorf("trouble: %s", text)
	}
	if err := stuck.Err(); !errors.Is(err, ErrPending) {
		t.Errorf("the stuck commit is %v", err)
	}
	f.gate <- struct{}{}
	must(t, stuck.Wait(soon(t)))
	if err := last.Err(); !errors.Is(err, ErrPending) {
		t.Errorf("the commit after it is %v", err)
	}
	close(f.gate)
	must(t, last.Wait(soon(t)))
	if n := f.commits.Load(); n != 2 {
		t.Errorf("%d commits", n)
	}
	if text, is := j.Trouble(); is {
		t.Errorf("trouble: %s", text)
	}
	if got := content(t, j); got["role/actor"] != "100000" || len(got) != 11 {
		t.Errorf("there is %v", got)
	}
}

func TestAFullQueueRefusesWhatIsNewAndTakesWhatReplaces(t *testing.T) {
	f := &faulty{gate: make(chan struct{})}
	j := mustOpen(t, newPath(t), on(f))
	j.Write(Put(Role, "actor", 0))
	eventually(t, "a commit is under way", func() bool { return f.commits.Load() == 1 })
	for i := range mostQueued {
		if c := j.Write(Put(Plan, fmt.Sprint(i), i)); !errors.Is(c.Err(), ErrPending) {
			t.Fatalf("record %d was refused: %v", i, c.Err())
		}
	}
	refused := j.Write(Put(Plan, "0", "new"), Put(Plan, "one more", 1))
	if err := refused.Wait(soon(t)); !errors.Is(err, ErrFull) {
		t.Errorf("one record too many gave %v", err)
	}
	if err := j.Write(Put(Plan, "1", 2)).Err(); !errors.Is(err, ErrPending) {
		t.Errorf("a replacement gave %v", err)
	}
	close(f.gate)
	must(t, j.Write().Wait(soon(t)))
	got := content(t, j)
	if len(got) != mostQueued+1 || got["plan/0"] != "0" || got["plan/1"] != "2" {
		t.Errorf("%d records, %s, %s", len(got), got["plan/0"], got["plan/1"])
	}
}

func TestCloseIsBoundedWhenTheDiskDoesNotAnswer(t *testing.T) {
	f := &faulty{gate: make(chan struct{})}
	s := on(f)
	s.pace.close = 50 * time.Millisecond
	j := mustOpen(t, newPath(t), s)
	first := j.Write(Put(Role, "actor", 0))
	eventually(t, "a commit is under way", func() bool { return f.commits.Load() == 1 })
	second := j.Write(Put(Role, "actor", 1), Put(Role, "critic", 1))
	if err := j.Close(); err == nil || !strings.Contains(err.Error(), "3 records") {
		t.Errorf("Close gave %v", err)
	}
	for _, c := range []*Commit{first, second} {
		if err := c.Wait(soon(t)); !errors.Is(err, ErrClosed) {
			t.Errorf("a commit gave %v", err)
		}
	}
	close(f.gate)
	<-j.ended
}

func TestCloseSaysWhatCouldNotBeWritten(t *testing.T) {
	f := &faulty{}
	path := newPath(t)
	j := mustOpen(t, path, on(f))
	f.broken(syscall.EIO)
	c := j.Write(Put(Role, "actor", 0))
	err := j.Close()
	if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "1 record ") {
		t.Errorf("Close gave %v", err)
	}
	if err := c.Err(); !errors.Is(err, ErrClosed) || !errors.Is(err, syscall.EIO) {
		t.Errorf("the commit gave %v", err)
	}
	if n := len(content(t, mustOpen(t, path, quick()))); n != 0 {
		t.Errorf("%d records", n)
	}
}

func TestARunThatCannotBeRecordedHasNotBegun(t *testing.T) {
	f := &faulty{}
	s := on(f)
	s.pace.sure = 50 * time.Millisecond
	j := mustOpen(t, newPath(t), s)
	must(t, j.BeginRun(Run{UID: "tiny-1"}))
	f.broken(syscall.EROFS)
	if n, err := j.NextEpoch(); !errors.Is(err, syscall.EROFS) {
		t.Errorf("epoch %d, %v", n, err)
	}
	if err := j.BeginRun(Run{UID: "tiny-2"}); !errors.Is(err, syscall.EROFS) {
		t.Errorf("begun: %v", err)
	}
	if r, is, _ := j.OpenRun(); !is || r.UID != "tiny-1" || r.Epoch != 0 {
		t.Errorf("the open run is %+v", r)
	}
}

func TestManyWritersAndReadersAtOnce(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	must(t, j.BeginRun(Run{UID: "tiny-1"}))
	var wg sync.WaitGroup
	epochs := make(chan uint64, 80)
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				c := j.Write(Put(Role, fmt.Sprint(w), i), Put(Plan, fmt.Sprintf("%d/%d", w, i), i))
				if i%10 == 0 {
					must(t, c.Wait(soon(t)))
					got, there, err := ReadOne[int](j, Role, fmt.Sprint(w))
					if err != nil || !there || got < i {
						t.Errorf("writer %d reads %d, %t, %v after writing %d", w, got, there, err, i)
					}
					_, err = Read[int](j, Plan)
					must(t, err)
				}
				if i%5 == 0 {
					n, err := j.NextEpoch()
					must(t, err)
					epochs <- n
				}
				j.Trouble()
			}
		})
	}
	wg.Wait()
	must(t, j.Close())
	close(epochs)
	given := slices.Sorted(func(yield func(uint64) bool) {
		for n := range epochs {
			if !yield(n) {
				return
			}
		}
	})
	if len(slices.Compact(given)) != 80 {
		t.Errorf("epochs were given twice: %v", given)
	}
	if n := len(content(t, mustOpen(t, path, quick()))); n != 8+400+1 {
		t.Errorf("%d records", n)
	}
}

func TestARealFullDiskIsTroubleUntilThereIsRoom(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("NOT SHOWN: a full disk needs a small file system of its own, which only root can mount: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path, filler := filepath.Join(dir, "journal"), filepath.Join(dir, "filler")
	s := quick()
	s.noSync = false
	j := mustOpen(t, path, s)
	write(t, j, Put(Ledger, "all", 1))
	if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	big := strings.Repeat("b", 2*spare)
	c := j.Write(Put(Incident, "1", big), Put(Ledger, "all", 2))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.Wait(ctx); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("waiting gave %v", err)
	}
	if text, is := j.Trouble(); !is || !strings.Contains(text, "no space left") {
		t.Errorf("trouble: %q", text)
	}
	if n, _, err := ReadOne[int](j, Ledger, "all"); n != 1 || err != nil {
		t.Errorf("meanwhile the ledger is %d, %v", n, err)
	}
	killed := newPath(t)
	copyFile(t, path, killed)
	if n, _, err := ReadOne[int](mustOpen(t, killed, s), Ledger, "all"); n != 1 || err != nil {
		t.Errorf("killed meanwhile, the ledger is %d, %v", n, err)
	}
	must(t, os.Remove(filler))
	must(t, c.Wait(soon(t)))
	if text, is := j.Trouble(); is {
		t.Errorf("trouble: %s", text)
	}
	must(t, j.Close())
	j = mustOpen(t, path, s)
	if n, _, _ := ReadOne[int](j, Ledger, "all"); n != 2 {
		t.Errorf("the ledger is %d", n)
	}
}

func TestTheDiskHoldsRoomForWhatIsToCome(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	holds := func(when string) {
		t.Helper()
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		if st.Blocks*512 < st.Size+spare {
			t.Errorf("%s the disk holds %d bytes for a file of %d", when, st.Blocks*512, st.Size)
		}
	}
	if err := unix.Fallocate(int(j.disk.(*disk).file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 1); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("SKIPPED: this file system cannot hold room")
	}
	holds("at first")
	for i := range 60 {
		write(t, j, Put(Incident, fmt.Sprint(i), strings.Repeat("i", 20_000)))
	}
	holds("after it has grown")
}
