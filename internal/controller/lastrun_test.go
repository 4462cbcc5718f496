package controller

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vigil/internal/launcher/local"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// sit starts a process with that environment, and has the seat of that name say that it has it.
func sit(t *testing.T, runtime proc.Dir, seat string, environ ...string) proc.Ident {
	t.Helper()
	sits := exec.Command("sleep", "300")
	sits.Env = append(os.Environ(), environ...)
	if err := sits.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = sits.Wait(); close(ended) }()
	t.Cleanup(func() { _ = sits.Process.Kill(); <-ended })
	if seat != "" {
		lock, err := runtime.Seat(seat) // we hold the lock, with the pid of another
		if err == nil {
			err = os.WriteFile(filepath.Join(runtime.Path(), seat+".seat"), fmt.Appendln(nil, sits.Process.Pid), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lock.Unlock() })
	}
	who, err := proc.Identify(sits.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return who
}

// shows: A12
func TestASurvivorIsAServiceOfThisStateDirectoryThatHasItsSeat(t *testing.T) {
	runtime, err := proc.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	environ := func(uid, dir string) []string {
		return []string{"VIGIL_OPT_JOB_UID=" + uid, "VIGIL_OPT_ROLE=critic", "VIGIL_OPT_INDEX=0", "VIGIL_OPT_INCARNATION=4",
			"VIGIL_OPT_RUNTIME_DIR=" + runtime.Path(), "VIGIL_OPT_LOG_DIR=" + filepath.Join(dir, uid, "logs")}
	}
	const uid, other = "tiny-01234567", "tiny-76543210"
	who := sit(t, runtime, proc.SeatOf(uid, "critic", 0), environ(uid, link)...)
	sit(t, runtime, "", environ(uid, home)...)                                                    // has not its seat
	sit(t, runtime, proc.SeatOf(other, "critic", 0), environ(other, t.TempDir())...)              // another state directory
	sit(t, runtime, proc.SeatOf("tiny-11111111", "critic", 0), "VIGIL_OPT_JOB_UID=tiny-11111111") // says no more
	got := survivors(home)
	if want := (survivor{uid, "critic", 0, 4, who}); len(got) != 1 || len(got[uid]) != 1 || got[uid][0] != want {
		t.Errorf("survivors %v, want %v", got, want)
	}
}

func TestAStartIsRefusedOnlyBesideARunThatNobodyKnows(t *testing.T) {
	one := survivor{"tiny-01234567", "critic", 0, 4, proc.Ident{PID: 4711, StartTime: 5}}
	owed := []local.Obligation{{Role: role.Name("critic"), Earlier: true, Left: []proc.Holder{{Ident: one.who}}}}
	for name, c := range map[string]struct {
		ours, last string
		owed       []local.Obligation
		refused    bool
	}{
		"this run":           {ours: one.uid, last: one.uid},
		"the last run":       {ours: "tiny-22222222", last: one.uid},
		"nobody's":           {ours: "tiny-22222222", last: "tiny-11111111", refused: true},
		"of no journal":      {ours: "tiny-22222222", refused: true},
		"could not be ended": {ours: "tiny-22222222", last: "tiny-22222222", owed: owed},
		"another is owed":    {ours: "tiny-22222222", last: "tiny-22222222", owed: []local.Obligation{{Left: []proc.Holder{{Ident: proc.Ident{PID: 4711, StartTime: 6}}}}}, refused: true},
	} {
		g := &ground{uid: c.ours, living: map[string][]survivor{one.uid: {one}}}
		if err := g.knows(c.last, c.owed); (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "critic/0 (pid 4711)") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
