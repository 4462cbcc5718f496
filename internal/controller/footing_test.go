package controller

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
	"vigil/internal/role"
)

// repaired waits until a role whose worker was killed runs again.
func (p *play) repaired(t *testing.T, name role.Name, incarnation int) {
	t.Helper()
	p.until(t, string(name)+" repaired", func() bool {
		rec, err := p.store.Record(name)
		return err == nil && rec.Ready && rec.Incarnation == incarnation && p.engine.Status(name).State == role.Running
	})
}

// A runtime directory that is removed while the job runs is made again, said once, and costs no budget:
// repairs work, right after it and later, also of a service.
func TestARuntimeDirectoryThatIsRemovedIsMadeAgainAndRepairsGoOn(t *testing.T) {
	p := begin(t, strings.ReplaceAll(sleepers, "distributed: none", "distributed: none, restart: {on_failure: in_place, backoff: {base: 0}}"))
	p.ready(t)
	dir := p.ground.runtime.Path()
	if err := os.Rename(dir, dir+".gone"); err != nil {
		t.Fatal(err)
	}
	kill(t, p, "a") // before anybody has looked
	p.repaired(t, "a", 2)
	p.until(t, "the socket", func() bool { return !proc.Gone(p.ground.socket.Addr().String()) })
	for _, m := range p.crew.of("b") {
		pid := m.service.PID()
		process, err := os.FindProcess(pid)
		if err == nil {
			err = process.Kill()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	p.repaired(t, "b", 2)
	if n := strings.Count(p.said.String(), "WRN files were removed from the runtime directory"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	ledger := p.engine.Ledger()
	if ledger.Global != 0 || ledger.Roles["a"].InPlace != 1 || ledger.Roles["b"].InPlace != 1 {
		t.Errorf("that was spent: %+v", ledger)
	}
}

// A link to a folder of somebody else stands where the runtime directory was: it is not used, workers go on, and a
// start waits. When the link has gone the directory is made again.
//
// shows: FAULT-G6
func TestARuntimeDirectoryThatIsNotOursIsNotUsedAndRepairsWait(t *testing.T) {
	slow(t)
	p := begin(t, strings.ReplaceAll(sleepers, "distributed: none", "distributed: none, restart: {on_failure: in_place, backoff: {base: 0}}"))
	p.footing.patience = patience
	p.ready(t)
	dir := squat(t, p)
	const said = "none can be started until the runtime directory can be used"
	p.until(t, "it is said", func() bool { return strings.Contains(p.said.String(), said) })
	kill(t, p, "a")
	p.until(t, "a repair begins", func() bool { return p.engine.Status("a").State != role.Running })
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	p.repaired(t, "a", 2)
	if n := strings.Count(p.said.String(), said); n != 1 {
		t.Errorf("it was said %d times", n)
	}
	if ledger := p.engine.Ledger(); ledger.Global != 0 || ledger.Roles["a"].InPlace != 1 || ledger.Roles["b"].InPlace != 0 {
		t.Errorf("that was spent: %+v", ledger)
	}
	if trouble, restored := p.footing.look(); trouble || restored == 0 {
		t.Errorf("trouble %v, restored %d", trouble, restored)
	}
}

// squat puts a symbolic link in the place of the runtime directory, in one step, so that nobody gets in between.
func squat(t *testing.T, p *play) (dir string) {
	t.Helper()
	dir = p.ground.runtime.Path()
	if err := os.Symlink("/proc/self", dir+".link"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, dir+".link", unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A start that waits too long for a runtime directory ends the job, with that as its reason, and its run stays open.
//
// shows: FAULT-G6
func TestARuntimeDirectoryThatStaysAnothersIsTheReasonOfTheEnd(t *testing.T) {
	slow(t)
	p := begin(t, sleepers)
	p.footing.patience = time.Millisecond
	p.ready(t)
	dir := squat(t, p)
	kill(t, p, "a")
	select {
	case out := <-p.out:
		if out.Exit != exitLater || !strings.Contains(out.Why, "the runtime directory "+dir+" is not what it was") || !strings.Contains(out.Why, "symbolic link") || !strings.Contains(out.Why, "--runtime-dir") {
			t.Errorf("the job ended with %+v", out)
		}
		p.out <- out
	case <-time.After(patience):
		t.Fatal("the job goes on")
	}
	if ledger := p.engine.Ledger(); ledger.Global != 0 {
		t.Errorf("that was spent: %+v", ledger)
	}
}
