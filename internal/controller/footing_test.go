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

// What cannot be made again ends the job, with that as its reason.
func TestARuntimeDirectoryThatCannotBeMadeAgainIsTheReasonOfTheEnd(t *testing.T) {
	slow(t)
	p := begin(t, sleepers)
	p.ready(t)
	dir := p.ground.runtime.Path()
	if err := os.Symlink("/proc/self", dir+".link"); err != nil {
		t.Fatal(err)
	}
	// In one step, so that nobody gets in between.
	if err := unix.Renameat2(unix.AT_FDCWD, dir+".link", unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	select {
	case out := <-p.out:
		if out.Exit != 1 || !strings.Contains(out.Why, "the runtime directory "+dir+" was removed") || !strings.Contains(out.Why, "symbolic link") {
			t.Errorf("the job ended with %+v", out)
		}
		if n := strings.Count(p.said.String(), "WRN files were removed from the runtime directory"); n != 1 {
			t.Errorf("it was said %d times", n)
		}
		p.out <- out
	case <-time.After(patience):
		t.Fatal("the job goes on")
	}
	if ledger := p.engine.Ledger(); ledger.Global != 0 || len(p.history.Incidents()) != 0 {
		t.Errorf("that was spent: %+v", ledger)
	}
}
