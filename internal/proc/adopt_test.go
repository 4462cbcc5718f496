package proc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// orphan starts a script in a session of its own whose parent ends at once, so that it falls to us.
func orphan(t *testing.T, k *Keeper, script string) Ident {
	t.Helper()
	p, folder := startShell(t, k, 0, fmt.Sprintf("setsid sh -c 'echo $$ >$D/pid; %s' &", script))
	<-p.Done()
	id := pidsFrom(t, folder, "pid")[0]
	eventually(t, "the orphan has fallen to us", func() bool {
		e, err := readEntry(id.PID)
		return err == nil && e.Parent == os.Getpid()
	})
	return id
}

func TestAnAdoptedChildIsAsOneThatWeStarted(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		for _, c := range []struct {
			script, end string
		}{
			{"read line <$D/go; exit 7", "exit code 7"},
			{"read line <$D/go; kill -USR1 $$", "SIGUSR1"},
		} {
			pipe := filepath.Join(t.TempDir(), "go")
			if err := unix.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			id := orphan(t, k, strings.ReplaceAll(c.script, "$D/go", pipe))
			mark, leaf := life(t, 1)
			p, err := k.AdoptChild(Spec{Path: "sh", Env: []string{Mark + "=" + mark}, Leaf: leaf}, id)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := k.AdoptChild(Spec{Path: "sh"}, id); err == nil || !strings.Contains(err.Error(), "ours already") {
				t.Errorf("it was adopted twice: %v", err)
			}
			if k.Cgroups() {
				if pids, err := pidsIn(filepath.Join(k.cgroup, leaf)); err != nil || len(pids) != 1 || pids[0] != id.PID {
					t.Errorf("in its leaf are %v, %v", pids, err)
				}
			}
			if left := k.Remains(Tree{Mark: mark}); len(left) != 1 || left[0].Ident != id {
				t.Errorf("its mark finds %v", left)
			}
			if err := os.WriteFile(pipe, []byte("\n"), 0); err != nil {
				t.Fatal(err)
			}
			if e := p.Exit(); !strings.Contains(e.String(), c.end) || e.PID != id.PID {
				t.Errorf("it ended with %v, wanted %s", e, c.end)
			}
			if _, err := k.Clear(context.Background(), p.Tree()); err != nil {
				t.Error(err)
			}
			mustBeGone(t, k, p, p.Ident())
		}
	})
}

func TestAnAdoptedChildIsStoppedWithItsTree(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		id := orphan(t, k, "trap : TERM; sleep 300 & sleep 300 & wait; wait; wait")
		mark, leaf := life(t, 1)
		p, err := k.AdoptChild(Spec{Path: "sh", Env: []string{Mark + "=" + mark}, Leaf: leaf}, id)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it has children", func() bool { return len(k.Remains(p.Tree())) == 3 })
		report := k.Stop(context.Background(), []*Process{p}, StopSpec{Grace: 100 * time.Millisecond})
		if e := p.Exit(); len(report.Left) > 0 || e.Signal != "SIGKILL" || e.Sender != "vigil" {
			t.Errorf("left %v, it ended with %+v", report.Left, e)
		}
		mustBeGone(t, k, p, p.Ident())
	})
}

func TestOnlyALivingChildOfOursCanBeAdopted(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	p, folder := startShell(t, k, 0, "sleep 300 & echo $! >$D/child; wait")
	grandchild := pidsFrom(t, folder, "child")[0]
	first, err := Identify(1)
	if err != nil {
		t.Fatal(err)
	}
	reused := grandchild
	reused.StartTime--
	for id, why := range map[Ident]string{first: "no child of ours", grandchild: fmt.Sprintf("but of pid %d", p.PID()), p.Ident(): "ours already", {PID: 1 << 30}: "has ended", reused: "has ended"} {
		if _, err := k.AdoptChild(Spec{Path: "sleep"}, id); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("adopting %v gave %v, wanted %q", id, err, why)
		}
	}
}

// A fork server lives beside all workers: were it suspected of every orphan, none would be a worker's.
func TestAnOrphanIsNotLaidAtTheDoorOfAForkServer(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	server, err := k.Start(Spec{Path: "sleep", Args: []string{"300"}, DieWithParent: true, NoOrphans: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Clear(context.Background(), server.Tree()) })
	p, folder := startShell(t, k, 0, "env -i D=$D setsid sh -c 'echo $$ >$D/daemon; exec sleep 300' & sleep 0.05; exit 0")
	daemon := pidsFrom(t, folder, "daemon")[0]
	<-p.Done()
	if left := k.Remains(p.Tree()); len(left) != 1 || left[0].PID != daemon.PID {
		t.Errorf("left of the worker's tree: %v, wanted pid %d", left, daemon.PID)
	}
}
