package proc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/role"
)

func TestProcessSaysHowItEnded(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	for script, want := range map[string]role.Exit{
		"exit 0":            {},
		"exit 3":            {Code: 3},
		"kill -SEGV $$":     {Signal: "SIGSEGV"},
		"kill -KILL $$":     {Signal: "SIGKILL"},
		"kill -TERM $$":     {Signal: "SIGTERM"},
		"kill -RTMIN+1 $$ ": {Signal: "signal 35"},
	} {
		t.Run(script, func(t *testing.T) {
			p, err := k.Start(Spec{Path: "/bin/bash", Args: []string{"-c", "ulimit -c 0; " + script}})
			if err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			want.PID = p.PID()
			if got := p.Exit(); fmt.Sprint(got) != fmt.Sprint(want) || got.Core {
				t.Errorf("exit %+v, want %+v", got, want)
			}
		})
	}
}

func TestProcessKilledByUsSaysSo(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	p, err := k.Start(Spec{Path: "sleep", Args: []string{"300"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if e := p.Exit(); e.Signal != "SIGTERM" || e.Sender != "vigil" {
		t.Errorf("exit %+v: want SIGTERM sent by vigil", e)
	}
	if err := p.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestProcessLeadsASessionAndGetsWhatItWasGiven(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	d := t.TempDir()
	out, err := os.Create(filepath.Join(d, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p, err := k.Start(Spec{
		Path: "sh", Args: []string{"-c", `read line; echo "[$line] $A $PWD"; cut -d' ' -f6,22 /proc/self/stat; sleep 300; :`},
		Dir: d, Env: []string{"PATH=" + os.Getenv("PATH"), "A=b"}, Stdout: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "two lines", func() bool { return len(Tail(out.Name(), 9)) == 2 })
	lines := Tail(out.Name(), 9)
	if lines[0] != "[] b "+d {
		t.Errorf("it says %q", lines[0])
	}
	if session, _, _ := strings.Cut(lines[1], " "); session != strconv.Itoa(p.PID()) {
		t.Errorf("session %s, want its own pid %d", session, p.PID())
	}
	if id, err := Identify(p.PID()); err != nil || id != p.Ident() || !id.Alive() {
		t.Errorf("identity %v, %v; want %v alive", id, err, p.Ident())
	}
	k.Stop(context.Background(), []*Process{p}, StopSpec{})
	if p.Ident().Alive() {
		t.Error("alive after the stop")
	}
}

func TestProcessThatCannotStartNamesCommandAndCause(t *testing.T) {
	k := newKeeper(t, CgroupsIfAble)
	d := t.TempDir()
	script, plain := filepath.Join(d, "script"), filepath.Join(d, "plain")
	if err := errors.Join(os.WriteFile(script, []byte("#!/no/such/shell\n"), 0o755), os.WriteFile(plain, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	_, leaf := life(t, 0)
	for name, c := range map[string]struct {
		spec Spec
		want []string
	}{
		"not in the PATH of its environment": {Spec{Path: "sh", Env: []string{"PATH=" + d}}, []string{"start sh:", "not found in PATH", d}},
		"no such file":                       {Spec{Path: d + "/none", Leaf: leaf}, []string{"start " + d + "/none:", "no such file"}},
		"no such interpreter":                {Spec{Path: script}, []string{"start " + script, "interpreter"}},
		"not executable":                     {Spec{Path: plain}, []string{"start " + plain, "permission denied"}},
		"no such directory":                  {Spec{Path: "sh", Dir: d + "/none"}, []string{"start sh:", "working directory", d + "/none"}},
		"directory is a file":                {Spec{Path: "sh", Dir: plain}, []string{"start sh:", "not a directory"}},
		"no program":                         {Spec{}, []string{"no program"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := k.Start(c.spec)
			if err == nil {
				<-p.Done()
				t.Fatal("it started")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
	if k.Cgroups() && exists(filepath.Join(k.cgroup, strings.Split(leaf, "/")[0])) {
		t.Error("a start that went wrong left its leaf")
	}
}

func TestProcessIsFoundInThePathOfItsEnvironment(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	d := t.TempDir()
	if err := os.MkdirAll(d+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d+"/bin/own", []byte("#!/bin/sh\nexit 42\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Spec{
		{Path: "own", Env: []string{"PATH=/nowhere:" + d + "/bin"}},
		{Path: "own", Env: []string{"PATH=bin"}, Dir: d},
		{Path: "bin/own", Dir: d},
		{Path: "./own", Dir: d + "/bin"},
	} {
		p, err := k.Start(s)
		if err != nil {
			t.Errorf("%+v: %v", s, err)
			continue
		}
		if e := p.Exit(); e.Code != 42 {
			t.Errorf("%+v: %v", s, e)
		}
	}
}

func TestProcessOfAServiceThatIsKilledDiesAtOnce(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	service, lines := startHelper(t, k, "service")
	var workers []Ident
	for _, line := range lines {
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		id, err := Identify(pid)
		if err != nil {
			t.Fatal(err)
		}
		workers = append(workers, id)
	}
	if len(workers) != 3 {
		t.Fatalf("workers %v", workers)
	}
	if err := unix.Kill(service.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-service.Done()
	if e := service.Exit(); e.Sender != "" {
		t.Errorf("exit %+v: a stranger's signal is said to be ours", e)
	}
	for _, id := range workers {
		eventually(t, "the worker is dead and no zombie", func() bool { now, err := Identify(id.PID); return err != nil || now != id })
	}
}

func TestProcessInALeafIsInItsCgroupAndALeafIsNeverUsedTwice(t *testing.T) {
	k := newKeeper(t, CgroupsIfAble)
	if !k.Cgroups() {
		t.Skip("THIS MACHINE LETS US MAKE NO CGROUP LEAVES: not shown here")
	}
	_, leaf := life(t, 0)
	for range 3 { // a leaf that was killed would kill the next life
		p, err := k.Start(Spec{Path: "sleep", Args: []string{"300"}, Leaf: leaf})
		if err != nil {
			t.Fatal(err)
		}
		if p.Leaf() != leaf {
			t.Errorf("leaf %q, want %q", p.Leaf(), leaf)
		}
		if pids, err := pidsIn(filepath.Join(k.cgroup, leaf)); err != nil || len(pids) != 1 || pids[0] != p.PID() {
			t.Errorf("in the leaf: %v, %v", pids, err)
		}
		if q, err := k.Start(Spec{Path: "true", Leaf: leaf}); err == nil {
			<-q.Done()
			t.Error("a second process got the leaf of a living one")
		} else if !strings.Contains(err.Error(), strconv.Itoa(p.PID())) {
			t.Errorf("%q does not say who has the leaf", err)
		}
		if held, err := k.Clear(context.Background(), Tree{LeafPrefix: filepath.Dir(leaf)}); err != nil || len(held) != 1 {
			t.Errorf("clear: %v, %v", held, err)
		}
		if e := p.Exit(); e.Sender != "vigil" {
			t.Errorf("exit %+v", e)
		}
		mustBeGone(t, k, p)
	}
	if _, err := k.Start(Spec{Path: "true", Leaf: "../outside"}); err == nil {
		t.Error("a leaf outside our cgroup was accepted")
	}
}

func TestProcessThatWasAdoptedIsWatchedAndStopped(t *testing.T) {
	old := newKeeper(t, NoCgroups)
	p, d := startShell(t, old, 0, `trap 'exit 0' TERM; echo $$ >$D/main; while :; do sleep 0.01; done`)
	pidsFrom(t, d, "main")
	k := newKeeper(t, NoCgroups)
	a, err := k.Adopt(p.Ident(), p.Leaf(), p.mark)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.Done():
		t.Fatal("done while it lives")
	default:
	}
	r := k.Stop(context.Background(), []*Process{a}, StopSpec{Grace: time.Minute})
	if len(r.Left) > 0 || r.Killed > 0 {
		t.Errorf("report %+v", r)
	}
	if e := a.Exit(); e.Code != -1 || e.PID != p.PID() {
		t.Errorf("exit %+v", e)
	}
	if e := p.Exit(); e.Code != 0 || e.Signal != "" {
		t.Errorf("exit %+v", e)
	}
	if _, err := k.Adopt(p.Ident(), "", ""); err == nil {
		t.Error("adopted the dead")
	}
}

func TestReaperNeverStealsAnExitStatusAndLeavesNoZombie(t *testing.T) {
	slow(t)
	k := newKeeper(t, NoCgroups)
	const children = 200
	errs := make(chan error, 3*children)
	var all sync.WaitGroup
	gate := make(chan struct{}, 16)
	for i := range children {
		all.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			want := rand.IntN(100) + 1
			cmd := exec.Command("/bin/sh", "-c", "exit "+strconv.Itoa(want))
			if i%2 == 0 { // both kinds: by the keeper, and by code that does not know of it
				_ = k.Run(cmd)
			} else {
				_ = cmd.Run()
			}
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != want {
				errs <- fmt.Errorf("os/exec: %v, want exit %d", cmd.ProcessState, want)
			}
			// Leaves an orphan in its session and one in a session of its own.
			p, err := k.Start(Spec{Path: "/bin/sh", Args: []string{"-c", "sleep 0.01 & (setsid sleep 0.02 &); exit " + strconv.Itoa(want)}})
			if err != nil {
				errs <- err
				return
			}
			if e := p.Exit(); e.Code != want {
				errs <- fmt.Errorf("keeper: %v, want exit %d", e, want)
			}
		})
	}
	all.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	eventually(t, "no child is left, dead or alive", func() bool {
		for _, e := range readTable() {
			if e.Parent == os.Getpid() {
				return false
			}
		}
		return true
	})
}

func TestReaperLeavesADeadChildOfOtherCodeForAWhile(t *testing.T) {
	newKeeper(t, NoCgroups)
	cmd := exec.Command("/bin/sh", "-c", "exit 12")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is a zombie", func() bool { e, err := readEntry(cmd.Process.Pid); return err == nil && e.State == 'Z' })
	wait := time.NewTimer(300 * time.Millisecond)
	<-wait.C
	if _ = cmd.Wait(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 12 {
		t.Errorf("%v, want exit 12", cmd.ProcessState)
	}
}

func TestKeeperThatIsClosedStartsNothingAndLeavesProcessesAlone(t *testing.T) {
	k, err := NewKeeper(Options{Cgroups: NoCgroups})
	if err != nil {
		t.Fatal(err)
	}
	p, err := k.Start(Spec{Path: "sleep", Args: []string{"300"}, DieWithParent: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(k.Close(), k.Close()); err != nil {
		t.Error(err)
	}
	if _, err := k.Start(Spec{Path: "true"}); err == nil {
		t.Error("started after Close")
	}
	if !p.Ident().Alive() {
		t.Error("the process died with the keeper")
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	<-p.Done()
}

func TestStatIsReadWhateverTheCommandIsCalled(t *testing.T) {
	rest := " S 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 5 0 1234 0 0"
	for _, name := range []string{"sleep", "a b", "x) R 1 (y", "", "((", "))"} {
		e, err := parseStat(42, []byte("42 ("+name+")"+rest))
		want := entry{Ident: Ident{PID: 42, StartTime: 1234}, Name: name, State: 'S', Parent: 7, Session: 9, Threads: 5}
		if err != nil || e != want {
			t.Errorf("name %q: %+v, %v", name, e, err)
		}
	}
	for _, line := range []string{"", "42", "42 (x", "42 (x) S 1", "42 (x) S a b c d e f g h i j k l m n o p q r s t u"} {
		if _, err := parseStat(42, []byte(line)); err == nil {
			t.Errorf("%q was read", line)
		}
	}
}
