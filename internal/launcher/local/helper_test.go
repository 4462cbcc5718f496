package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	ossignal "os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// programMode makes the test binary a service or a controller.
const programMode = "VIGIL_LOCAL_TEST_PROGRAM"

func TestMain(m *testing.M) {
	switch mode := os.Getenv(programMode); mode {
	case "":
		os.Exit(m.Run())
	case "controller":
		runController(os.Getenv("TEST_JOB"), os.Getenv("TEST_DIR"))
	case "sharer":
		runSharer(os.Getenv("TEST_SHM"))
	case "sharing":
		runSharing(os.Getenv("TEST_JOB"), os.Getenv("TEST_DIR"))
	default:
		runService(mode)
	}
}

// strays is a worker that leaves a child in its session, a daemon that bears the mark, and one that
// has dropped its environment.
const strays = `
sleep 300 &
(setsid sh -c 'echo $$ >$TEST_DIR/daemon; exec sleep 300' &)
(setsid env -i /bin/sh -c 'echo $$ >'$TEST_DIR'/bare; exec sleep 300' &)
while ! test -s $TEST_DIR/daemon || ! test -s $TEST_DIR/bare; do sleep 0.01; done
echo $$ >$TEST_DIR/worker
trap '' TERM
wait; sleep 300; :`

// runService is a service with one worker. It ends in order on SIGTERM, or ignores it.
func runService(mode string) {
	uid := os.Getenv("TEST_JOB")
	terms := make(chan os.Signal, 1)
	ossignal.Notify(terms, unix.SIGTERM)
	k, err := proc.NewKeeper(proc.Options{Cgroups: cgroups()})
	check(err)
	os.Unsetenv(programMode)
	p, err := k.Start(proc.Spec{
		Path: "/bin/sh", Args: []string{"-c", strays}, DieWithParent: true,
		Env:  append(os.Environ(), proc.Mark+"="+uid+"/actor/1/0/1"),
		Leaf: "vigil-" + uid + "/actor.0/1.0.1",
	})
	check(err)
	fmt.Println("options", options())
	dir, err := proc.OpenDir(os.Getenv("TEST_RUN"))
	check(err)
	note := k.NoteTree(dir.TreeNote(proc.SeatOf(uid, "actor", 0)))
	check(note.Add(p))
	look := time.NewTicker(10 * time.Millisecond)
	for {
		select {
		case <-look.C:
			check(note.Look([]*proc.Process{p}))
		case <-terms:
			if mode == "orderly" {
				k.Stop(context.Background(), []*proc.Process{p}, proc.StopSpec{})
				check(note.Look(nil))
				fmt.Println("ended in order")
				os.Exit(0)
			}
		}
	}
}

// runSharer is a worker that shares memory.
func runSharer(path string) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	check(err)
	check(f.Truncate(4096))
	_, err = unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(err)
	check(f.Close())
	select {}
}

// runSharing is a service whose worker shares memory, which it notes. It waits to be killed.
func runSharing(uid, folder string) {
	k, err := proc.NewKeeper(proc.Options{Cgroups: cgroups()})
	check(err)
	os.Unsetenv(programMode)
	shm := k.FollowShm(proc.ShmNote(folder+"/logs", "actor", 0))
	p, err := k.Start(proc.Spec{
		Path: "/proc/self/exe", DieWithParent: true,
		Env: append(os.Environ(), programMode+"=sharer", proc.Mark+"="+uid+"/actor/1/0/1"),
	})
	check(err)
	for range time.Tick(10 * time.Millisecond) {
		check(shm.Glance([]*proc.Process{p}))
	}
}

func options() string {
	var names []string
	for _, item := range os.Environ() {
		if strings.HasPrefix(item, optionPrefix) || strings.HasPrefix(item, proc.Mark) {
			names = append(names, item)
		}
	}
	return strings.Join(names, " ")
}

func cgroups() proc.CgroupUse {
	if os.Getenv("TEST_CGROUPS") == "no" {
		return proc.NoCgroups
	}
	return proc.CgroupsIfAble
}

// runController starts one service and waits to be killed.
func runController(uid, folder string) {
	k, err := proc.NewKeeper(proc.Options{Cgroups: cgroups()})
	check(err)
	l := New(Options{Keeper: k, Executable: []string{"/proc/self/exe"}, JobUID: uid, LogDir: folder + "/logs"})
	s, err := l.Start(context.Background(), Spec{Role: "actor", Incarnation: 1, Env: map[string]string{programMode: "orderly"}})
	check(err)
	check(os.WriteFile(folder+"/service", []byte(strconv.Itoa(s.PID())+"\n"), 0o600))
	select {}
}

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// bench is a launcher whose services are this binary, with a folder that they write to.
type bench struct {
	*Launcher
	keeper      *proc.Keeper
	job, folder string
}

func newBench(t *testing.T, use proc.CgroupUse) *bench {
	t.Helper()
	k, err := proc.NewKeeper(proc.Options{Cgroups: use, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{keeper: k, job: fmt.Sprintf("t-%08x", uint32(time.Now().UnixNano())), folder: t.TempDir()}
	run, err := os.MkdirTemp("", "v")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := proc.OpenDir(run)
	if err != nil {
		t.Fatal(err)
	}
	b.Launcher = New(Options{
		Keeper: k, Executable: []string{self, "service"}, JobUID: b.job, RuntimeDir: dir, LogDir: b.folder + "/logs",
		Log: slog.New(slog.DiscardHandler), Retry: 10 * time.Millisecond,
	})
	t.Cleanup(func() {
		_, err := b.StopAll(context.Background(), 0)
		if err := errors.Join(err, b.Close(context.Background()), k.Close(), os.RemoveAll(run)); err != nil {
			t.Error(err)
		}
	})
	return b
}

func eachWay(t *testing.T, test func(t *testing.T, b *bench)) {
	t.Run("with cgroups", func(t *testing.T) {
		b := newBench(t, proc.CgroupsIfAble)
		if !b.keeper.Cgroups() {
			t.Skip("THIS MACHINE LETS US MAKE NO CGROUP LEAVES: not shown here")
		}
		test(t, b)
	})
	t.Run("without cgroups", func(t *testing.T) {
		t.Setenv("TEST_CGROUPS", "no")
		test(t, newBench(t, proc.NoCgroups))
	})
}

func (b *bench) env(mode string) map[string]string {
	return map[string]string{programMode: mode, "TEST_JOB": b.job, "TEST_DIR": b.folder, "TEST_RUN": b.o.RuntimeDir.Path(), "VIGIL_OPT_ROLE": "actor"}
}

// start starts a service and waits for its worker and what that leaves.
func (b *bench) start(t *testing.T, mode string) (*Service, []proc.Ident) {
	t.Helper()
	for _, name := range []string{"worker", "daemon", "bare"} {
		os.Remove(filepath.Join(b.folder, name))
	}
	s, err := b.Start(context.Background(), Spec{Role: "actor", Incarnation: 1, Env: b.env(mode)})
	if err != nil {
		t.Fatal(err)
	}
	ids := b.pids(t, "worker", "daemon", "bare")
	b.Note("actor", 0, ids[0].PID, ids[0].StartTime)
	return s, ids
}

func (b *bench) pids(t *testing.T, names ...string) []proc.Ident {
	t.Helper()
	var ids []proc.Ident
	for _, name := range names {
		eventually(t, name+" is written", func() bool {
			text, _ := os.ReadFile(filepath.Join(b.folder, name))
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil || !strings.HasSuffix(string(text), "\n") {
				return false
			}
			id, err := proc.Identify(pid)
			if err != nil {
				t.Fatalf("%s: pid %d has ended", name, pid)
			}
			ids = append(ids, id)
			return true
		})
	}
	return ids
}

func mustBeGone(t *testing.T, ids ...proc.Ident) {
	t.Helper()
	for _, id := range ids {
		if id.Alive() {
			t.Errorf("pid %d is still alive", id.PID)
		}
		// One whose parent is just dying itself is collected when that has ended.
		eventually(t, fmt.Sprintf("pid %d is no zombie", id.PID), func() bool {
			now, err := proc.Identify(id.PID)
			return err != nil || now != id
		})
	}
}

// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 2 * time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func (b *bench) controller(t *testing.T) *proc.Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.keeper.Start(proc.Spec{Path: self, Env: append(os.Environ(), programMode+"=controller", "TEST_JOB="+b.job, "TEST_DIR="+b.folder, "TEST_RUN="+b.o.RuntimeDir.Path()), Stdout: os.Stderr, Stderr: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func kill(t *testing.T, ids ...proc.Ident) {
	t.Helper()
	for _, id := range ids {
		if !id.Alive() {
			t.Errorf("pid %d does not live", id.PID)
		} else if err := unix.Kill(id.PID, unix.SIGKILL); err != nil {
			t.Errorf("kill %d: %v", id.PID, err)
		}
	}
}
