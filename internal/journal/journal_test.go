package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 3 * time.Minute

// soon bounds what must happen, on a machine that may be busy.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func quick() seams {
	s := seams{shape: currentShape, pace: usualPace, noSync: true}
	s.pace.retry, s.pace.slack, s.pace.look = 5*time.Millisecond, 20*time.Millisecond, 5*time.Millisecond
	return s
}

func mustOpen(t testing.TB, path string, s seams, change ...func(*Options)) *Journal {
	t.Helper()
	o := Options{Job: "tiny", Version: "1.2.3"}
	for _, c := range change {
		c(&o)
	}
	j, err := open(path, o, s)
	must(t, err)
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func write(t testing.TB, j *Journal, entries ...Entry) {
	t.Helper()
	must(t, j.Write(entries...).Wait(soon(t)))
}

// content is everything in a journal, as "kind/key" to JSON.
func content(t testing.TB, j *Journal) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, k := range kinds {
		for key, text := range j.records(k) {
			out[string(k)+"/"+key] = string(text)
		}
	}
	return out
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "journal") }

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, b, 0o600))
}

type ledger struct {
	Spent int      `json:"spent"`
	Roles []string `json:"roles"`
}

func TestWhatWasWrittenIsThereAfterClosingAndOpening(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	value := ledger{2, []string{"critic"}}
	c := j.Write(Put(Ledger, "all", value), Put(Role, "actor", 7), Put(Role, "critic", 8))
	value.Roles[0] = "changed after Put"
	must(t, c.Wait(soon(t)))
	must(t, c.Err())
	<-c.Done()
	write(t, j, Delete(Role, "critic"), Delete(Role, "never there"))
	must(t, j.Close())

	info, err := os.Stat(path)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("the file's mode is %v", info.Mode())
	}
	j = mustOpen(t, path, quick())
	got, err := Read[ledger](j, Ledger)
	must(t, err)
	if len(got) != 1 || got["all"].Spent != 2 || got["all"].Roles[0] != "critic" {
		t.Errorf("the ledger is %+v", got)
	}
	roles, err := Read[int](j, Role)
	must(t, err)
	if len(roles) != 1 || roles["actor"] != 7 {
		t.Errorf("the roles are %v", roles)
	}
	one, there, err := ReadOne[int](j, Role, "actor")
	if one != 7 || !there || err != nil {
		t.Errorf("actor is %d, %t, %v", one, there, err)
	}
	if _, there, err := ReadOne[int](j, Role, "critic"); there || err != nil {
		t.Errorf("critic is there (%v)", err)
	}
	if _, err := Read[string](j, Role); err == nil || !strings.Contains(err.Error(), `role "actor"`) {
		t.Errorf("reading numbers as text gave %v", err)
	}
}

func TestCloseWritesWhatIsQueued(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	var last *Commit
	for i := range 1000 {
		last = j.Write(Put(Plan, fmt.Sprint(i), i))
	}
	must(t, j.Close())
	must(t, last.Err())
	must(t, j.Close())
	if err := j.Write(Put(Plan, "x", 1)).Err(); !errors.Is(err, ErrClosed) {
		t.Errorf("a write after Close gave %v", err)
	}
	j = mustOpen(t, path, quick())
	if n := len(content(t, j)); n != 1000 {
		t.Errorf("%d records, not 1000", n)
	}
}

func TestAnEntryThatCannotBeRecordedRefusesItsWholeWrite(t *testing.T) {
	j := mustOpen(t, newPath(t), quick())
	for name, bad := range map[string]Entry{
		"a kind of nobody":       Put(Kind("colour"), "x", 1),
		"no key":                 Put(Role, "", 1),
		"a long key":             Delete(Role, strings.Repeat("k", 1025)),
		"not JSON":               Put(Role, "x", func() {}),
		"a large value":          Put(Role, "x", strings.Repeat("v", LargestValue)),
		"an incident by name":    Put(Incident, "fire", 1),
		"an incident with zeros": Put(Incident, "007", 1),
		"the run":                Put(run, "run", 1),
	} {
		if err := j.Write(Put(Role, "good", 1), bad).Wait(soon(t)); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	must(t, j.Write().Wait(soon(t)))
	if got := content(t, j); len(got) != 0 {
		t.Errorf("recorded: %v", got)
	}
	if _, err := Read[int](j, Kind("colour")); err == nil {
		t.Error("a kind of nobody was read")
	}
}

func TestWaitingForAnEmptyWriteIsWaitingForAll(t *testing.T) {
	j := mustOpen(t, newPath(t), quick())
	for i := range 100 {
		j.Write(Put(Plan, fmt.Sprint(i), i))
	}
	must(t, j.Write().Wait(soon(t)))
	if n := len(content(t, j)); n != 100 {
		t.Errorf("%d records, not 100", n)
	}
}

func TestTheNewestIncidentsAreKept(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	for i := range 1100 { // 999 and 1000 are in the order of numbers, not of letters
		j.Write(Put(Incident, fmt.Sprint(i), i))
		if i%70 == 0 {
			must(t, j.Write().Wait(soon(t)))
		}
	}
	must(t, j.Close())
	j = mustOpen(t, path, quick())
	got, err := Read[int](j, Incident)
	must(t, err)
	if len(got) != KeptIncidents {
		t.Errorf("%d incidents are kept", len(got))
	}
	for i := 1100 - KeptIncidents; i < 1100; i++ {
		if v, there := got[fmt.Sprint(i)]; !there || v != i {
			t.Fatalf("incident %d is %d, %t", i, v, there)
		}
	}
}

func TestARunIsOpenUntilItIsClosed(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	if _, is, err := j.OpenRun(); is || err != nil {
		t.Fatalf("a new journal has an open run (%v)", err)
	}
	if _, err := j.NextEpoch(); err == nil {
		t.Error("an epoch without a run")
	}
	first := Run{UID: "tiny-00000001", Job: "tiny", Host: "h", BootID: "b", Began: time.Unix(1, 0).UTC(), JobDigest: "d"}
	must(t, j.BeginRun(first))
	write(t, j, Put(Role, "actor", 3), Put(Incident, "1", 1))
	for want := range uint64(3) {
		if n, err := j.NextEpoch(); n != want+1 || err != nil {
			t.Fatalf("epoch %d, %v", n, err)
		}
		must(t, j.Close())
		j = mustOpen(t, path, quick())
	}
	at := time.Unix(9, 0).UTC()
	must(t, j.LeaveRun(Ended{Exit: 143, At: at, Why: "stopped by SIGTERM", Step: 7}))
	if r, is, err := j.OpenRun(); !is || err != nil || r.Last() == nil || *r.Last() != (Ended{143, at, "stopped by SIGTERM", 7}) {
		t.Errorf("the run that was left open is %+v, %t, %v", r, is, err)
	}
	must(t, j.UpdateRun(func(r *Run) { r.Left = nil }))
	if err := j.ReopenRun(); err == nil {
		t.Error("a run that is open was opened")
	}
	r, is, err := j.OpenRun()
	if want := (Run{UID: "tiny-00000001", Job: "tiny", Host: "h", BootID: "b", Began: first.Began, JobDigest: "d", Epoch: 3}); !is || err != nil || r != want || r.Last() != nil {
		t.Errorf("the open run is %+v, %t, %v", r, is, err)
	}
	must(t, j.CloseRun(Ended{Exit: 130, At: at, Why: "stopped by SIGINT", Step: 12}))
	must(t, j.ReopenRun(Delete(Incident, "1"), Put(Incident, "2", 1)))
	if r, is, _ := j.OpenRun(); !is || r.UID != first.UID || r.Last() != nil {
		t.Errorf("the run that was opened again is %+v, %t", r, is)
	}
	if n, err := j.NextEpoch(); n != 4 || err != nil {
		t.Errorf("its next epoch is %d, %v", n, err)
	}
	must(t, j.CloseRun(Ended{Exit: 93, At: at, Why: "no step gained"}))
	must(t, j.Close())

	j = mustOpen(t, path, quick())
	if r, is, _ := j.OpenRun(); is {
		t.Errorf("%+v is open", r)
	}
	if r, is, _ := j.LastRun(); !is || r.Closed == nil || r.Closed.Exit != 93 || r.Closed.Why != "no step gained" {
		t.Errorf("the last run is %+v", r)
	}
	if n := len(content(t, j)); n != 3 {
		t.Errorf("%d records of the closed run, not 3", n)
	}
	j.Write(Put(Role, "critic", 1)) // queued before the run: of the run before
	must(t, j.BeginRun(Run{UID: "tiny-00000002", Job: "tiny"}))
	if got := content(t, j); len(got) != 1 {
		t.Errorf("a new run begins with %v", got)
	}
	if n, err := j.NextEpoch(); n != 1 || err != nil {
		t.Errorf("its first epoch is %d, %v", n, err)
	}
}

func TestDoneFailedAndInterruptedRunsAreClosedAndStoppedOnesAreNot(t *testing.T) {
	for exit := range 256 {
		if want := exit == 0 || exit == 1 || exit == 93 || exit == 130; Closes(exit) != want {
			t.Errorf("exit %d: %t", exit, !want)
		}
	}
}

func TestTwoCannotHaveOneJournal(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	_, err := Open(path, Options{Job: "tiny", Forget: true})
	var held *HeldError
	if !errors.As(err, &held) || !strings.Contains(err.Error(), "another process") {
		t.Fatalf("the second got %v", err)
	}
	must(t, j.Close())
	mustOpen(t, path, quick())
}

func TestMissingDirectoryIsAnErrorAndNotMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "journal")
	if j, err := Open(path, Options{Job: "tiny"}); err == nil {
		_ = j.Close()
		t.Fatal("opened")
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Error("the directory was made")
	}
	if _, err := Open(newPath(t), Options{}); err == nil {
		t.Error("a journal of no job was opened")
	}
}

func TestOpenRemovesWhatAKilledOpenLeft(t *testing.T) {
	path := newPath(t)
	must(t, os.WriteFile(path+".new-123", []byte("half"), 0o600))
	mustOpen(t, path, quick())
	names, err := filepath.Glob(path + "*")
	must(t, err)
	if len(names) != 1 || names[0] != path {
		t.Errorf("there are %v", names)
	}
}

// The file is as large as its content, not as its history.
func TestAHundredThousandWritesDoNotGrowTheFile(t *testing.T) {
	slow(t)
	path := newPath(t)
	j := mustOpen(t, path, quick())
	commits, sizes := 0, map[int]int64{}
	text := strings.Repeat("x", 300)
	for i := range 100_000 {
		j.Write(Put(Incident, fmt.Sprint(i), text), Put(Ledger, "all", i), Put(Plan, fmt.Sprint(i), text), Delete(Plan, fmt.Sprint(i-30)), Put(Role, fmt.Sprint(i%16), i))
		if i%20 == 19 {
			must(t, j.Write().Wait(soon(t)))
			commits++
		}
		if i == 9_999 || i == 99_999 {
			info, err := os.Stat(path)
			must(t, err)
			sizes[i+1] = info.Size()
		}
	}
	t.Logf("%d commits: %d bytes after 10,000 writes, %d after 100,000", commits, sizes[10_000], sizes[100_000])
	if sizes[100_000] > 1<<20 || sizes[100_000] > 2*sizes[10_000] {
		t.Errorf("the file grows: %v", sizes)
	}
	must(t, j.Close())
	mustOpen(t, path, quick())
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
