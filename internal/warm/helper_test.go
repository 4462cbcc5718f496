package warm

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vigil/internal/proc"
)

// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(serviceMode) != "" {
		beService()
	}
	os.Exit(m.Run())
}

// python is the interpreter that tests use; VIGIL_TEST_PYTHON names another one.
func python(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("VIGIL_TEST_PYTHON"); path != "" {
		return path
	}
	const path = "/usr/bin/python3"
	if _, err := os.Stat(path); err != nil {
		t.Skipf("THERE IS NO %s: nothing about warm starts is shown here", path)
	}
	return path
}

// bench is a server with a keeper, a folder, and what it told.
type bench struct {
	t      testing.TB
	keeper *proc.Keeper
	server *Server
	dir    string
	python string
	told   chan string
	lives  *int
}

var jobs atomic.Int64

func newBench(t testing.TB, o Options) *bench {
	t.Helper()
	log := slog.New(slog.NewTextHandler(testLog{t}, nil))
	k, err := proc.NewKeeper(proc.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, keeper: k, dir: t.TempDir(), python: python(t), told: make(chan string, 100), lives: new(int)}
	job := fmt.Sprintf("w-%08x", uint32(os.Getpid())<<12+uint32(jobs.Add(1)))
	o.Log, o.Mark = log, job+"/actor/fork"
	o.Notice = func(text string) { b.told <- text }
	if k.Cgroups() {
		o.Leaf = "vigil-" + job + "/actor.0/fork"
	}
	if o.Output == "" {
		o.Output = filepath.Join(b.dir, "forkserver.log")
	}
	b.server = New(k, o)
	t.Cleanup(func() {
		if err := b.server.Close(); err != nil {
			t.Error(err)
		}
		if left := k.Remains(proc.Tree{Mark: job + "/"}); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		if folders, _ := filepath.Glob("/sys/fs/cgroup/unified/vigil-" + job); len(folders) > 0 {
			t.Errorf("left behind: %v", folders)
		}
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// file writes a file into the bench's folder and returns its path.
func (b *bench) file(name, text string) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// spec is a new worker life with that command.
func (b *bench) spec(args ...string) proc.Spec {
	*b.lives++
	mark := strings.TrimSuffix(b.server.o.Mark, "fork") + fmt.Sprintf("%d/0/1", *b.lives)
	s := proc.Spec{
		Path: b.python, Args: args, Dir: b.dir, DieWithParent: true,
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1",
			"RANK=0", "USER_SAYS=gr\xc3\xbc\xc3\x9fe = x", "VIGIL_LIFE=" + mark},
	}
	if b.keeper.Cgroups() {
		s.Leaf = fmt.Sprintf("%s/%d.0.1", filepath.Dir(b.server.o.Leaf), *b.lives)
	}
	return s
}

// run is a worker that writes into pipes.
type run struct {
	*proc.Process
	out, err bytes.Buffer
	read     chan struct{}
}

// pipes gives the worker streams and returns what starts to read them.
func (r *run) pipes(t testing.TB, s *proc.Spec) func() {
	t.Helper()
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.Stdout, s.Stderr = outWrite, errWrite
	r.read = make(chan struct{})
	return func() {
		outWrite.Close()
		errWrite.Close()
		go func() {
			defer close(r.read)
			r.out.ReadFrom(outRead)
			r.err.ReadFrom(errRead)
			outRead.Close()
			errRead.Close()
		}()
	}
}

func (b *bench) start(s proc.Spec, how func(proc.Spec) (*proc.Process, error)) *run {
	b.t.Helper()
	r := &run{}
	begin := r.pipes(b.t, &s)
	p, err := how(s)
	begin()
	if err != nil {
		b.t.Fatalf("%v (output %q)", err, proc.Tail(b.server.o.Output, 20))
	}
	r.Process = p
	b.t.Cleanup(func() { b.keeper.Clear(context.Background(), p.Tree()) })
	return r
}

func (b *bench) fork(s proc.Spec) *run {
	b.t.Helper()
	return b.start(s, func(s proc.Spec) (*proc.Process, error) { return b.server.Fork(b.t.Context(), s) })
}

func (b *bench) exec(s proc.Spec) *run {
	b.t.Helper()
	return b.start(s, b.keeper.Start)
}

// end waits for the worker's end and returns what it wrote.
func (r *run) end(t testing.TB) (out, err string) {
	t.Helper()
	within(t, "the worker ends", r.Done())
	within(t, "its output ends", r.read)
	return r.out.String(), r.err.String()
}

func within(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
		t.Fatalf("not within %s: %s", patience, what)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// mustTell waits for a notice that has all the words.
func (b *bench) mustTell(words ...string) {
	b.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case text := <-b.told:
		for _, word := range words {
			if !strings.Contains(text, word) {
				b.t.Errorf("told %q, which has no %q", text, word)
			}
		}
	case <-timer.C:
		b.t.Fatalf("nothing was told of %q", words)
	}
}

// hasModule says whether the test's Python can import a module.
func hasModule(t testing.TB, name string) bool {
	return exec.Command(python(t), "-c", "import "+name).Run() == nil
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
