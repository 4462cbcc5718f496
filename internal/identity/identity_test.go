package identity

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"vigil/internal/journal"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// take chooses a home and holds it until release.
func take(t *testing.T, o Options, id Identity) Home {
	t.Helper()
	h, err := Take(o, id)
	must(t, err)
	return h
}

// leave has a home keep a run that is closed, or open where end is nil, and lets go of it.
func leave(t *testing.T, h Home, end *journal.Ended) {
	t.Helper()
	host, err := os.Hostname()
	must(t, err)
	j, err := journal.Open(filepath.Join(h.Dir, journalFile), journal.Options{Job: h.Name, Version: "1"})
	must(t, err)
	must(t, j.BeginRun(journal.Run{UID: h.Name + "-00000001", Job: h.Name, Host: host, Began: time.Unix(1, 0)}))
	if end != nil {
		must(t, j.CloseRun(*end))
	}
	must(t, j.Close())
	must(t, h.Lock.Unlock())
}

// shows: FAULT-G1
func TestTwoExperimentsNeverShareAName(t *testing.T) {
	a := Of("/a", []string{"train.py"}, nil)
	for _, b := range []Identity{
		Of("/b", []string{"train.py"}, nil),
		Of("/a", []string{"train.py", ""}, nil),
		Of("/a", []string{"train.py", "--lr", "1"}, nil),
		Of("/a", []string{"train.py"}, []string{"SLURM_JOB_ID=1"}),
		Of("/a", []string{"train.py"}, []string{"SLURM_JOB_ID=1", "SLURM_ARRAY_TASK_ID=2"}),
		Of("/a", []string{"train.py"}, []string{"SLURM_JOB_ID=2", "SLURM_ARRAY_TASK_ID=1"}),
		Of("/a", []string{"-m", "train.py"}, nil),
		Of("/a", []string{"train\xff.py"}, nil),
		Of("/a", []string{"train\xfe.py"}, nil),
	} {
		if a.key() == b.key() || a.names()[0] == b.names()[0] {
			t.Errorf("%+v has the name of %+v", b, a)
		}
	}
	if Of("/a", []string{"train\xff.py"}, nil).key() == Of("/a", []string{"train\xfe.py"}, nil).key() {
		t.Error("bytes that are no text are not told apart")
	}
	if a.key() != Of("/a", []string{"train.py"}, []string{"SLURM_JOB_ID=", "HOME=/root"}).key() {
		t.Error("the same command is another experiment")
	}
	real, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(real, link))
	if Of(real, []string{"x"}, nil).key() != Of(link, []string{"x"}, nil).key() {
		t.Error("a folder by another name is another experiment")
	}
}

func TestANameIsReadable(t *testing.T) {
	for argv, want := range map[string]string{
		"train.py": "train", "./exp/train.py --lr 1": "train", "python3 -u train.py": "train", "python3.12 -m pkg.train": "python3.12",
		"-m pkg.train": "pkg.train", "bash run.sh": "run.sh", "sh -c true": "sh", "a b.py": "a", "": "main", "--": "main", "...": "main", "été": "t",
		"a-very-long-name-of-a-script-that-somebody-has-written.py": "a-very-long-name-of-a-sc",
	} {
		if got := readable(strings.Split(argv, " ")); got != want && argv != "été" {
			t.Errorf("%q is called %q, want %q", argv, got, want)
		}
	}
	if name := Of("/a", []string{strings.Repeat("x", 99)}, nil).names()[1] + "-9999"; len(name) > 40 {
		t.Errorf("%s has %d characters", name, len(name))
	}
}

// shows: FAULT-G1
func TestASecondRunBeginsBesideTheFirstAndADeadOneIsTakenOver(t *testing.T) {
	o, id := Options{States: t.TempDir(), Version: "1"}, Of("/a", []string{"train.py"}, nil)
	name := id.names()[0]
	var all []Home
	for range 3 {
		all = append(all, take(t, o, id))
	}
	if all[0].Name != name || all[1].Name != name+"-2" || all[2].Name != name+"-3" {
		t.Fatalf("they are %s, %s and %s", all[0].Name, all[1].Name, all[2].Name)
	}
	if note := strings.Join(all[1].Note, "\n"); len(all[0].Note) != 0 || !strings.Contains(note, name+" is running (pid ") || !strings.Contains(note, "begins beside it as "+name+"-2") {
		t.Errorf("it says %q and %q", all[0].Note, note)
	}
	leave(t, all[0], &journal.Ended{Exit: 0, At: time.Unix(5, 0)})
	leave(t, all[2], nil) // killed
	if h := take(t, o, id); h.Name != name+"-3" || len(h.Note) != 0 {
		t.Errorf("%s (%q) is taken: what was left open comes before what is free", h.Name, h.Note)
	}
	if h := take(t, o, id); h.Name != name {
		t.Errorf("%s is taken: the lowest that is free comes first", h.Name)
	}
	if h := take(t, o, id); h.Name != name+"-4" {
		t.Errorf("%s is taken", h.Name)
	}
}

// shows: FAULT-G1
func TestOfSeveralThatWereLeftOpenTheLowestIsTaken(t *testing.T) {
	o, id := Options{States: t.TempDir(), Version: "1"}, Of("/a", []string{"train.py"}, nil)
	a, b := take(t, o, id), take(t, o, id)
	leave(t, b, nil)
	leave(t, a, nil)
	h := take(t, o, id)
	if h.Name != a.Name || !strings.Contains(strings.Join(h.Note, ""), b.Name+" was left open too") {
		t.Errorf("%s is taken, and it says %q", h.Name, h.Note)
	}
	if h := take(t, o, id); h.Name != b.Name {
		t.Errorf("then %s", h.Name)
	}
}

// shows: FAULT-G1
func TestEightAtOnceHaveEachTheirOwn(t *testing.T) {
	o, id := Options{States: t.TempDir(), Version: "1"}, Of("/a", []string{"train.py"}, nil)
	var mu sync.Mutex
	var names []string
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			h, err := Take(o, id)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			names = append(names, h.Name)
		})
	}
	group.Wait()
	slices.Sort(names)
	if len(slices.Compact(names)) != 8 {
		t.Errorf("they are %v", names)
	}
}

// shows: FAULT-G1
func TestResumeTakesTheRunThatWasHeardOfLast(t *testing.T) {
	o, id := Options{States: t.TempDir(), Version: "1"}, Of("/a", []string{"train.py"}, nil)
	o.Resume = true
	if _, err := Take(o, id); !errors.As(err, new(*NothingToResumeError)) {
		t.Fatalf("with nothing to resume: %v", err)
	}
	o.Resume = false
	a, b := take(t, o, id), take(t, o, id)
	leave(t, a, &journal.Ended{Exit: 130, At: time.Unix(5, 0)})
	leave(t, b, &journal.Ended{Exit: 1, At: time.Unix(9, 0)})
	o.Resume = true
	if h := take(t, o, id); h.Name != b.Name {
		t.Errorf("%s is taken, not the last", h.Name)
	}
	if h := take(t, o, id); h.Name != a.Name {
		t.Errorf("then %s", h.Name)
	}
	if _, err := Take(o, id); err == nil {
		t.Error("all are alive, and one was taken")
	}
	_, err := Take(o, Of("/a", []string{"train.py", "--more"}, nil))
	if err == nil || !strings.Contains(err.Error(), "there is "+a.Name+": train.py") {
		t.Errorf("with other arguments: %v", err)
	}
}

// shows: FAULT-G1
func TestANameThatIsAliveIsRefused(t *testing.T) {
	o, id := Options{States: t.TempDir(), Version: "1"}, Of("/a", []string{"train.py"}, nil)
	h, err := Named(o, "mine", id)
	must(t, err)
	_, err = Named(o, "mine", id)
	if held := new(HeldError); !errors.As(err, &held) || held.PID != os.Getpid() || !strings.Contains(err.Error(), "--name mine: mine is running (pid ") {
		t.Errorf("it says %v", err)
	}
	leave(t, h, nil)
	if _, err = Named(o, "mine", Of("/b", []string{"other.py"}, nil)); err != nil {
		t.Errorf("a name is what counts: %v", err)
	}
	slot := take(t, o, id)
	leave(t, slot, nil)
	h, err = Named(o, slot.Name, Of("/a", []string{"train.py", "--longer"}, nil))
	must(t, err)
	must(t, h.Lock.Unlock())
	if h := take(t, o, id); h.Name != slot.Name {
		t.Errorf("after it was called by its name the experiment is %s", h.Name)
	}
}

// shows: FAULT-G1
func TestAnotherExperimentWithTheSameHashHasALongerOne(t *testing.T) {
	o, id := Options{States: t.TempDir(), Version: "1"}, Of("/a", []string{"train.py"}, nil)
	taken := filepath.Join(o.States, id.names()[0])
	must(t, os.MkdirAll(taken, 0o700))
	must(t, writeNote(taken, note{Key: "another"}))
	if h := take(t, o, id); h.Name != id.names()[1] {
		t.Errorf("it is %s", h.Name)
	}
}

// A run that may be alive on another machine is nobody's to take.
// shows: FAULT-G1
func TestARunOfAnotherMachineIsAlive(t *testing.T) {
	o, id := Options{States: t.TempDir(), Version: "1"}, Of("/a", []string{"train.py"}, nil)
	h := take(t, o, id)
	j, err := journal.Open(filepath.Join(h.Dir, journalFile), journal.Options{Job: h.Name})
	must(t, err)
	must(t, j.BeginRun(journal.Run{UID: h.Name + "-00000001", Job: h.Name, Host: "elsewhere", Began: time.Unix(1, 0)}))
	must(t, j.Close())
	must(t, h.Lock.Unlock())
	beside := take(t, o, id)
	if beside.Name != h.Name+"-2" || !strings.Contains(strings.Join(beside.Note, ""), "on elsewhere") {
		t.Errorf("%s, %q", beside.Name, beside.Note)
	}
	j, err = journal.Open(filepath.Join(h.Dir, journalFile), journal.Options{Job: h.Name})
	must(t, err)
	must(t, j.LeaveRun(journal.Ended{Exit: 143, At: time.Unix(2, 0)})) // in order: nothing of it lives
	must(t, j.Close())
	if again := take(t, o, id); again.Name != h.Name {
		t.Errorf("a run that was stopped in order is not gone on with: %s", again.Name)
	}
}

// The same command alone would go on with another run.
// shows: FAULT-G2
func TestACommandWithSeveralRunsIsShared(t *testing.T) {
	o, id := Options{States: t.TempDir(), Version: "1"}, Of("/a", []string{"train.py"}, nil)
	take(t, o, Of("/b", []string{"train.py"}, nil))
	a := take(t, o, id)
	if a.Shared() {
		t.Error("a run alone is shared")
	}
	b := take(t, o, id)
	if !a.Shared() || !b.Shared() {
		t.Errorf("with a run beside: %v, %v", a.Shared(), b.Shared())
	}
	if s := take(t, o, Of("/a", []string{"train.py"}, []string{"SLURM_JOB_ID=1"})); !s.Shared() {
		t.Error("outside the scheduler's job the command finds it")
	}
}
