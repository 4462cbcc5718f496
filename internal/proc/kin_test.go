package proc

import (
	"os"
	"testing"
)

// shows: FAULT-A1
//
// It covers what a process can be to a worker: the worker, what it has started in any session, what it has left
// behind with and without its environment, another worker, what a probe leaves behind, and a process of nobody's.
func TestWhatAProcessIsToAWorkerIsSeenByItsAncestorsAndItsSigns(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		p, d := startShell(t, k, 0, `
sh -c 'echo $$ >$D/child; exec sleep 300' &
setsid sh -c 'echo $$ >$D/session; exec sleep 300' &
env -i /bin/sh -c 'echo $$ >'$D'/bare; exec sleep 300' &
(setsid sh -c 'echo $$ >$D/daemon; sleep 300; :' &)
(setsid env -i /bin/sh -c 'echo $$ >'$D'/baredaemon; exec sleep 300' &)
echo $$ >$D/main
wait`)
		ids := pidsFrom(t, d, "main", "child", "session", "bare", "daemon", "baredaemon")
		other, od := startShell(t, k, 1, `sh -c 'echo $$ >$D/child; exec sleep 300' & (setsid sh -c 'echo $$ >$D/daemon; exec sleep 300' &) ; wait`)
		others := pidsFrom(t, od, "child", "daemon")
		f := k.FamilyOf(p)
		for _, tt := range []struct {
			name string
			pid  int
			want Kin
		}{
			{"the worker", ids[0].PID, Itself},
			{"its child", ids[1].PID, Below},
			{"its child in a session of its own", ids[2].PID, Below},
			{"its child without its environment", ids[3].PID, Below},
			{"its daemon", ids[4].PID, OfTree},
			{"its daemon without its environment", ids[5].PID, OfTree},
			{"another worker", other.PID(), Beside},
			{"another worker's child", others[0].PID, Beside},
			{"another worker's daemon", others[1].PID, Beside},
			{"who started us", os.Getppid(), Unrelated},
			{"nobody", 1 << 29, Unseen},
		} {
			eventually(t, tt.name, func() bool { // a daemon's parent takes a moment to end
				got, _ := f.Kin(tt.pid)
				return got == tt.want
			})
			if got, _ := f.Kin(tt.pid); got != tt.want { // as it was remembered
				t.Errorf("%s is %d, want %d", tt.name, got, tt.want)
			}
		}
	})
}

// What is remembered of a process does not outlive its parent: a child that has been left behind is a daemon then.
func TestAChildWhoseParentEndsIsADescendantNoMore(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	p, d := startShell(t, k, 0, `
sh -c 'setsid sh -c "echo \$\$ >$D/child; exec sleep 300" & echo $$ >$D/between; until [ -e $D/go ]; do sleep 0.02; done' &
wait`)
	ids := pidsFrom(t, d, "child", "between")
	f := k.FamilyOf(p)
	if got, _ := f.Kin(ids[0].PID); got != Below {
		t.Fatalf("a child's child is %d, want %d", got, Below)
	}
	if err := os.WriteFile(d+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its orphan to be seen as one", func() bool { got, _ := f.Kin(ids[0].PID); return got == OfTree })
}

// A daemon whose environment could not be read when it was asked for first, as while it executes a program, is judged again:
// it may be another worker's.
func TestAnOrphanWithoutAnEnvironmentIsJudgedAgain(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	p, _ := startShell(t, k, 0, `sleep 300`)
	_, d := startShell(t, k, 1, `
(setsid env -i /bin/sh -c 'echo $$ >'$D'/daemon; until [ -e '$D'/go ]; do sleep 0.02; done; VIGIL_LIFE='$VIGIL_LIFE' exec sleep 300' &)
wait; sleep 300`)
	daemon := pidsFrom(t, d, "daemon")[0]
	f := k.FamilyOf(p)
	eventually(t, "a daemon that does not show whose it is", func() bool { got, _ := f.Kin(daemon.PID); return got == OfTree })
	if err := os.WriteFile(d+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon to be known as another worker's", func() bool { got, _ := f.Kin(daemon.PID); return got == Beside })
}

func BenchmarkKin(b *testing.B) {
	k, err := NewKeeper(Options{Cgroups: NoCgroups})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	p, err := k.Start(Spec{Path: "/bin/sh", Args: []string{"-c", "sleep 300 & wait"}})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = k.Clear(b.Context(), p.Tree()) }()
	child := 0
	for child == 0 {
		for pid, e := range readTable() {
			if e.Parent == p.PID() {
				child = pid
			}
		}
	}
	b.Run("known", func(b *testing.B) {
		f := k.FamilyOf(p)
		for b.Loop() {
			f.Kin(child)
		}
	})
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			k.FamilyOf(p).Kin(child)
		}
	})
	b.Run("unrelated", func(b *testing.B) {
		for b.Loop() {
			k.FamilyOf(p).Kin(os.Getppid())
		}
	})
}
