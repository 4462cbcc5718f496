package proc

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helperMode makes the test binary another program.
// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 3 * time.Minute

const helperMode = "VIGIL_PROC_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperMode) {
	case "":
		os.Exit(m.Run())
	case "service":
		helpService()
	case "lock":
		helpLock()
	case "lease":
		helpLease()
	case "shm":
		helpShm()
	case "inherited":
		helpInherited()
	}
}

// helpService is a program that keeps three workers, which do not outlive it.
func helpService() {
	os.Unsetenv(helperMode)
	k, err := NewKeeper(Options{Cgroups: NoCgroups})
	check(err)
	for range 3 {
		p, err := k.Start(Spec{Path: "sleep", Args: []string{"300"}, DieWithParent: true})
		check(err)
		fmt.Println(p.PID())
	}
	fmt.Println("ready")
	select {}
}

// helpLock holds the lock named by its first argument until it is killed.
func helpLock() {
	_, err := Lock(os.Args[1])
	check(err)
	fmt.Println("ready")
	select {}
}

// helpLease leases 20 ports in the directory of its first argument and holds them until it is killed.
func helpLease() {
	d, err := OpenDir(os.Args[1])
	check(err)
	p, err := d.Ports()
	check(err)
	ports, err := p.Lease(20)
	check(err)
	for _, port := range ports {
		fmt.Println(port)
	}
	fmt.Println("ready")
	select {}
}

// helpShm does what its arguments say with files in /dev/shm and waits to be killed: "map:NAME" makes
// or opens one and maps it to be shared, "read:NAME" maps it to be read, "open:NAME" keeps it open,
// "child:VERB:NAME" has a child do so in a session of its own.
func helpShm() {
	for _, arg := range os.Args[1:] {
		verb, name, _ := strings.Cut(arg, ":")
		if verb == "child" {
			cmd := exec.Command("/proc/self/exe", name)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			out, err := cmd.StdoutPipe()
			check(err)
			check(cmd.Start())
			_, err = io.ReadFull(out, make([]byte, len("ready\n")))
			check(err)
			continue
		}
		f, err := os.OpenFile(filepath.Join(shmDir, name), os.O_RDWR|os.O_CREATE, 0o600)
		check(err)
		check(f.Truncate(4096))
		if verb == "open" {
			defer f.Close()
			continue
		}
		mode := unix.PROT_READ
		if verb == "map" {
			mode |= unix.PROT_WRITE
		}
		memory, err := unix.Mmap(int(f.Fd()), 0, 4096, mode, unix.MAP_SHARED)
		check(err)
		defer unix.Munmap(memory)
		check(f.Close())
	}
	fmt.Println("ready")
	select {}
}

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// startHelper starts this binary in another mode and returns the lines that it prints before "ready".
func startHelper(t *testing.T, k *Keeper, mode string, args ...string) (*Process, []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := k.Start(Spec{Path: self, Args: args, Env: append(os.Environ(), helperMode+"="+mode), Stdout: f, Stderr: f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Clear(context.Background(), p.Tree()) })
	eventually(t, "the helper is ready", func() bool {
		text, _ := os.ReadFile(out)
		if strings.Contains(string(text), "error:") {
			t.Fatalf("helper %s: %s", mode, text)
		}
		return strings.HasSuffix(string(text), "ready\n")
	})
	return p, Tail(out, 100)[:len(Tail(out, 100))-1]
}

func newKeeper(t *testing.T, use CgroupUse) *Keeper {
	t.Helper()
	k, err := NewKeeper(Options{Cgroups: use, Log: slog.New(slog.NewTextHandler(testLog{t}, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// eachWay runs a test with cgroup leaves, where the machine has them, and without.
func eachWay(t *testing.T, test func(t *testing.T, k *Keeper)) {
	t.Run("with cgroups", func(t *testing.T) {
		k := newKeeper(t, CgroupsIfAble)
		if !k.Cgroups() {
			t.Skip("THIS MACHINE LETS US MAKE NO CGROUP LEAVES: not shown here")
		}
		test(t, k)
	})
	t.Run("without cgroups", func(t *testing.T) { test(t, newKeeper(t, NoCgroups)) })
}

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

// life returns a mark that nobody else has, and the leaf that goes with it.
func life(t *testing.T, rank int) (mark, leaf string) {
	job := fmt.Sprintf("t-%08x", uint32(time.Now().UnixNano()))
	return fmt.Sprintf("%s/actor/1/%d/1", job, rank), fmt.Sprintf("vigil-%s/actor.0/1.%d.1", job, rank)
}

// startShell starts a script, with a folder of its own in $D.
func startShell(t *testing.T, k *Keeper, rank int, script string) (*Process, string) {
	t.Helper()
	mark, leaf := life(t, rank)
	folder := t.TempDir()
	p, err := k.Start(Spec{
		Path: "/bin/sh", Args: []string{"-c", script}, Leaf: leaf, DieWithParent: true, Stderr: os.Stderr,
		Env: append(os.Environ(), Mark+"="+mark, "D="+folder),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Clear(context.Background(), p.Tree()) })
	return p, folder
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// pidsFrom reads one pid from each named file, waiting for it.
func pidsFrom(t *testing.T, folder string, names ...string) []Ident {
	t.Helper()
	var ids []Ident
	for _, name := range names {
		eventually(t, name+" is written", func() bool {
			text, _ := os.ReadFile(filepath.Join(folder, name))
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil || !strings.HasSuffix(string(text), "\n") {
				return false
			}
			id, err := Identify(pid)
			if err != nil {
				t.Fatalf("%s: pid %d has ended", name, pid)
			}
			ids = append(ids, id)
			return true
		})
	}
	return ids
}

func mustBeGone(t *testing.T, k *Keeper, p *Process, ids ...Ident) {
	t.Helper()
	for _, id := range ids {
		if e, err := readEntry(id.PID); err == nil && e.Ident == id {
			t.Errorf("pid %d %s is still there (state %c, parent %d)", id.PID, e.Name, e.State, e.Parent)
		}
	}
	if left := k.Remains(p.Tree()); len(left) > 0 {
		t.Errorf("left of the tree: %v", left)
	}
	if p.Leaf() != "" && exists(filepath.Join(k.cgroup, strings.Split(p.Leaf(), "/")[0])) {
		t.Errorf("the cgroup leaf %s is still there", p.Leaf())
	}
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
