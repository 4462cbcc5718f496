package proc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stubborn ignores the stop signal, in every generation: a child in its session, a daemon in a session
// of its own, a daemon that has dropped its environment, one that is stopped, and a few that fork on.
const stubborn = `
trap '' TERM
sh -c 'echo $$ >$D/child; exec sleep 300' &
(setsid sh -c 'echo $$ >$D/daemon; sleep 300; :' &)
(setsid env -i /bin/sh -c 'echo $$ >'$D'/bare; exec sleep 300' &)
sh -c 'echo $$ >$D/stopped; kill -STOP $$; sleep 300' &
for i in 1 2 3; do (while :; do sleep 0.02; done &); done
echo $$ >$D/main
wait
`

func TestTreeThatIgnoresTheSignalIsKilledAfterTheGraceAndProvedGone(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		p, d := startShell(t, k, 0, stubborn)
		ids := pidsFrom(t, d, "main", "child", "daemon", "bare", "stopped")
		grace := 300 * time.Millisecond
		r := k.Stop(context.Background(), []*Process{p}, StopSpec{Grace: grace})
		if len(r.Left) > 0 {
			t.Errorf("left: %v", r.Left)
		}
		if r.Took < grace {
			t.Errorf("took %s, less than the grace", r.Took)
		}
		if len(r.Held) < 3 || r.Killed < 3 {
			t.Errorf("held %v, killed %d: want at least the shell, its child and its daemon", r.Held, r.Killed)
		}
		for _, id := range ids {
			if !slices.Contains(r.Seen, id) {
				t.Errorf("pid %d is not among those seen: %v", id.PID, r.Seen)
			}
		}
		for _, h := range r.Held {
			if !strings.Contains(h.Why, "after SIGTERM") {
				t.Errorf("held %v: want it to say for how long after which signal", h)
			}
		}
		if e := p.Exit(); e.Signal != "SIGKILL" || e.Sender != "vigil" || e.PID != p.PID() {
			t.Errorf("exit %+v: want SIGKILL sent by vigil", e)
		}
		mustBeGone(t, k, p, ids...)
	})
}

func TestTreeWithoutGraceIsKilledAtOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		p, d := startShell(t, k, 0, stubborn)
		ids := pidsFrom(t, d, "main", "child", "daemon", "bare", "stopped")
		if r := k.Stop(context.Background(), []*Process{p}, StopSpec{}); len(r.Left) > 0 || r.Killed == 0 {
			t.Errorf("report %+v", r)
		}
		mustBeGone(t, k, p, ids...)
	})
}

// A signal that comes between a fork and its exec is lost on the new program.
func TestTreeMemberThatBecomesAnotherProgramAfterTheSignalIsAskedAgain(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		p, d := startShell(t, k, 0, `(trap 'exec sleep 300' TERM; echo >$D/child; while :; do sleep 0.01; done) & trap 'exit 0' TERM; echo $$ >$D/main; wait`)
		pidsFrom(t, d, "main")
		eventually(t, "the child to be up", func() bool { return exists(filepath.Join(d, "child")) })
		r := k.Stop(context.Background(), []*Process{p}, StopSpec{Grace: 2 * patience})
		if r.Took > patience || r.Killed > 0 {
			t.Errorf("report %+v: want an early end and nobody killed", r)
		}
		mustBeGone(t, k, p)
	})
}

func TestTreeThatEndsWellEndsTheGraceEarly(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		var procs []*Process
		for rank := range 3 {
			p, d := startShell(t, k, rank, `trap 'kill $!; exit 7' TERM; sleep 300 & echo $$ >$D/main; wait`)
			pidsFrom(t, d, "main")
			procs = append(procs, p)
		}
		r := k.Stop(context.Background(), procs, StopSpec{Grace: 2 * patience})
		if r.Took > patience || len(r.Held) > 0 || len(r.Left) > 0 || r.Killed > 0 {
			t.Errorf("report %+v: want an early end and nobody killed", r)
		}
		for _, p := range procs {
			if e := p.Exit(); e.Code != 7 || e.Signal != "" || e.Sender != "" {
				t.Errorf("exit %+v: want code 7", e)
			}
			mustBeGone(t, k, p)
		}
	})
}

func TestTreeThatIsStoppedHearsTheSignal(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		p, d := startShell(t, k, 0, `trap 'exit 5' TERM; echo $$ >$D/main; kill -STOP $$; while :; do sleep 0.01; done`)
		id := pidsFrom(t, d, "main")[0]
		eventually(t, "it is stopped", func() bool { e, _ := readEntry(id.PID); return e.State == 'T' })
		r := k.Stop(context.Background(), []*Process{p}, StopSpec{Grace: 2 * patience})
		if e := p.Exit(); e.Code != 5 || r.Killed > 0 {
			t.Errorf("exit %+v, report %+v: want the handler's code 5", e, r)
		}
	})
}

func TestTreeBelowTheMainProcessHearsTheSignalOnlyAfterIt(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		p, d := startShell(t, k, 0, `
sh -c 'trap "echo >$D/child-heard; exit" TERM; echo $$ >$D/child; while :; do sleep 0.01; done' &
trap 'sleep 0.3; test -e $D/child-heard && exit 9; exit 4' TERM
echo $$ >$D/main
while :; do sleep 0.01; done`)
		ids := pidsFrom(t, d, "main", "child")
		r := k.Stop(context.Background(), []*Process{p}, StopSpec{Grace: 2 * patience})
		if e := p.Exit(); e.Code != 4 {
			t.Errorf("exit %+v: want 4; 9 means that the child was told first", e)
		}
		if !exists(filepath.Join(d, "child-heard")) || r.Killed > 0 {
			t.Errorf("report %+v: want the child told after its parent had gone", r)
		}
		mustBeGone(t, k, p, ids...)
	})
}

func TestTreeIsKilledWhenTheContextEndsTheGrace(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	p, d := startShell(t, k, 0, stubborn)
	ids := pidsFrom(t, d, "main", "child", "daemon", "bare", "stopped")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r := k.Stop(ctx, []*Process{p}, StopSpec{Grace: time.Hour}); len(r.Left) > 0 {
		t.Errorf("left: %v", r.Left)
	}
	mustBeGone(t, k, p, ids...)
}

func TestTreeOfAnotherRankIsLeftAlone(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		script := `
(setsid sh -c 'echo $$ >$D/daemon; exec sleep 300' &)
(setsid env -i /bin/sh -c 'echo $$ >'$D'/bare; exec sleep 300' &)
setsid env -i /bin/sh -c 'echo $$ >'$D'/hidden; exec sleep 300' &
echo $$ >$D/main; wait; sleep 300; :`
		goes, d := startShell(t, k, 10, script)
		gone := pidsFrom(t, d, "main", "daemon", "hidden", "bare")
		stays, d := startShell(t, k, 1, script)
		kept := pidsFrom(t, d, "main", "daemon", "hidden", "bare")
		if r := k.Stop(context.Background(), []*Process{goes}, StopSpec{Grace: 2 * patience}); len(r.Left) > 0 {
			t.Errorf("left: %v", r.Left)
		}
		mustBeGone(t, k, goes, gone[:3]...)
		for _, id := range kept {
			if !id.Alive() {
				t.Errorf("pid %d of the other rank is gone", id.PID)
			}
		}
		if r := k.Stop(context.Background(), []*Process{stays}, StopSpec{Grace: 2 * patience}); len(r.Left) > 0 {
			t.Errorf("left: %v", r.Left)
		}
		mustBeGone(t, k, stays, kept...)
		if k.Cgroups() {
			mustBeGone(t, k, goes, gone[3])
		} else if held, err := k.Clear(context.Background(), goes.Tree()); err != nil || len(held) > 1 { // younger than the other rank, it counted for that one
			t.Errorf("clear: %v, %v: want the daemon without any sign at most, now that no other can have made it", held, err)
		}
		mustBeGone(t, k, goes, gone...)
	})
}

func TestTreeOfAProcessThatEndedByItselfIsCleared(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		p, d := startShell(t, k, 0, `
sleep 300 &
echo $! >$D/child
(setsid sh -c 'echo $$ >$D/daemon; exec sleep 300' &)
while ! test -s $D/daemon; do sleep 0.01; done
exit 3`)
		<-p.Done()
		ids := pidsFrom(t, d, "child", "daemon")
		held, err := k.Clear(context.Background(), p.Tree())
		if err != nil || len(held) != 2 {
			t.Errorf("clear: %v, %v: want two processes found", held, err)
		}
		mustBeGone(t, k, p, ids...)
	})
}

// A stray of an earlier run is known by its mark alone; a stranger may have the same name.
func TestTreeOfAnEarlierRunIsClearedAndStrangersLive(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	mark, _ := life(t, 1)
	job, _, _ := strings.Cut(mark, "/")
	marks := map[string]bool{ // mark -> is it ours
		mark: true, job + "/actor/2/0/1": true,
		job + "/actors/1/0/1": false, job + "x/actor/1/0/1": false, "": false,
	}
	alive := map[string]*exec.Cmd{}
	for m := range marks {
		cmd := exec.Command("sleep", "300")
		cmd.Env = append(os.Environ(), Mark+"="+m)
		if m == "" {
			cmd.Env = os.Environ()
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		if err := k.fork(func() error { // waited for below, so known to the reaper
			if err := cmd.Start(); err != nil {
				return err
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		alive[m] = cmd
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
	held, err := k.Clear(context.Background(), Tree{Mark: job + "/actor/"})
	if err != nil || len(held) != 2 {
		t.Fatalf("clear: %v, %v: want the two that bear the mark", held, err)
	}
	for m, ours := range marks {
		e, err := readEntry(alive[m].Process.Pid)
		if running := err == nil && e.alive(); running == ours {
			t.Errorf("mark %q: running %v, ours %v", m, running, ours)
		}
	}
}

func TestTreeOfARecycledPidIsNobodys(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	p, d := startShell(t, k, 0, `echo $$ >$D/main; sleep 300; :`)
	pidsFrom(t, d, "main")
	old := Ident{PID: p.PID(), StartTime: p.StartTime() - 1}
	if found, err := k.Clear(context.Background(), Tree{Sessions: []Ident{old}, Processes: []Ident{old}}); len(found) > 0 || err != nil {
		t.Errorf("clear: %v, %v: want nothing found", found, err)
	}
	if err := signal(old, unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal to an earlier process of that pid: %v", err)
	}
	if !p.Ident().Alive() {
		t.Error("the process that has the pid now was killed")
	}
	if old.Alive() {
		t.Error("the earlier process is said to live")
	}
}

func TestTreeTestsHoldForAnOrdinaryUserWithoutCgroups(t *testing.T) {
	slow(t)
	if os.Geteuid() != 0 {
		t.Skip("this is one already")
	}
	folder, err := os.MkdirTemp("/tmp", "vigil-proc-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "proc.test")
	for _, err := range []error{os.WriteFile(program, self, 0o755), os.Chmod(folder, 0o755), os.Mkdir(folder+"/tmp", 0o700), os.Chown(folder+"/tmp", 65534, 65534)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "-test.run", "^Test(Tree|Reaper|Dir|Process)", "-test.v")
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "TMPDIR="+folder+"/tmp", "HOME="+folder+"/tmp")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Setsid: true}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "/without_cgroups ("); n < 7 || !strings.Contains(string(out), "NO CGROUP LEAVES") {
		t.Errorf("%d tests ran without cgroups, want all:\n%s", n, out)
	}
}

func TestMarkNamesOneLifeOrWithASlashWhatBeginsWithIt(t *testing.T) {
	for _, c := range []struct {
		value, mark string
		want        bool
	}{
		{"j-1/actor/1/0/1", "j-1/actor/1/0/1", true},
		{"j-1/actor/1/0/1", "j-1/actor/", true},
		{"j-1/actor/1/0/1", "j-1/", true},
		{"j-1/actor/1/0/12", "j-1/actor/1/0/1", false},
		{"j-1/actor/1/10/1", "j-1/actor/1/1", false},
		{"j-1/actors/1/0/1", "j-1/actor/", false},
		{"j-1/actor/1/0/1", "", false},
		{"", "j-1/", false},
		{"", "", false},
	} {
		if got := markIs(c.value, c.mark); got != c.want {
			t.Errorf("value %q, mark %q: %v", c.value, c.mark, got)
		}
	}
}
