package warm

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// How a worker ends, and what it says when it does, does not tell that it was forked.
func TestAForkedWorkerEndsAsAnExecutedOneDoes(t *testing.T) {
	slow(t)
	b := newBench(t, Options{Preload: []string{"json"}})
	for name, program := range map[string]string{
		"well":        "import atexit; atexit.register(print, 'bye'); print('hello', end='')",
		"code":        "raise SystemExit(3)",
		"message":     "import sys; sys.exit('no such thing: \u00fc')",
		"at once":     "import os; print('x'); os._exit(7)",
		"exception":   "import json\ndef f():\n    json.loads('{')\n\nf()\n",
		"chained":     "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('no') from e\n",
		"syntax":      "x = 1\ny = = 2\n",
		"own hook":    "import sys, traceback\ndef hook(*a): print('hook', a[0], len(traceback.extract_tb(a[2])))\nsys.excepthook = hook\n1 / 0\n",
		"bad hook":    "import sys\ndef hook(*a): raise KeyError('hook')\nsys.excepthook = hook\n1 / 0\n",
		"interrupted": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(30)",
		"killed":      "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
		"aborted":     "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()",
		"terminated":  "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)",
		"thread":      "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread ends'))).start()\n",
		"broken pipe": "import os, sys; r, w = os.pipe(); os.close(r); os.write(w, b'x')",
		"bytes":       "import sys; sys.stdout.buffer.write(b'\\xff\\n')",
	} {
		t.Run(name, func(t *testing.T) {
			if name == "bad hook" && exec.Command(b.python, "-c", "import sys; assert sys.version_info >= (3, 11)").Run() != nil {
				t.Skip("before Python 3.11 the hook's traceback has a line more")
			}
			b.t = t
			b.file("end.py", program)
			executed, forked := b.exec(b.spec("end.py")), b.fork(b.spec("end.py"))
			out, errs := executed.end(t)
			forkedOut, forkedErr := forked.end(t)
			if out != forkedOut || errs != forkedErr {
				t.Errorf("executed wrote %q and %q\nforked wrote   %q and %q", out, errs, forkedOut, forkedErr)
			}
			x, f := executed.Exit(), forked.Exit()
			if x.Code != f.Code || x.Signal != f.Signal || x.Sender != f.Sender || f.PID != forked.PID() {
				t.Errorf("executed ended with %v, forked with %v", x, f)
			}
		})
	}
}

func TestAForkedWorkerIsStoppedWithEverythingThatItStarted(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("tree.py", `
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(300)
`)
	r := b.fork(b.spec("tree.py"))
	tree := r.Tree()
	eventually(t, "the worker has started two more", func() bool { return len(b.keeper.Remains(tree)) == 3 })
	report := b.keeper.Stop(context.Background(), []*proc.Process{r.Process}, proc.StopSpec{Grace: 300 * time.Millisecond})
	if len(report.Left) > 0 || report.Killed < 3 {
		t.Errorf("the stop killed %d and left %v", report.Killed, report.Left)
	}
	if left := b.keeper.Remains(tree); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if exit := r.Exit(); exit.Signal != "SIGKILL" || exit.Sender != "vigil" {
		t.Errorf("the worker ended with %+v", exit)
	}
	if st := b.server.Status(); !st.Ready {
		t.Errorf("the fork server did not survive: %+v", st)
	}
}

func TestAForkedWorkerThatHeedsTheStopSignalEndsWithIt(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("wait.py", "import time\nprint('ready', flush=True)\ntime.sleep(300)\n")
	var procs []*proc.Process
	for range 3 {
		procs = append(procs, b.fork(b.spec("wait.py")).Process)
	}
	report := b.keeper.Stop(context.Background(), procs, proc.StopSpec{Grace: 20 * time.Second})
	if report.Killed != 0 || len(report.Left) > 0 {
		t.Errorf("the stop killed %d and left %v", report.Killed, report.Left)
	}
	for _, p := range procs {
		if e := p.Exit(); e.Signal != unix.SignalName(unix.SIGTERM) || e.Sender != "vigil" {
			t.Errorf("a worker ended with %+v", e)
		}
	}
}

// What libraries do with processes of their own works in a forked worker.
func TestAForkedWorkerCanUseMultiprocessing(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"multiprocessing.pool", "concurrent.futures"}})
	b.file("pool.py", `
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

def double(n):
    return 2 * n

if __name__ == "__main__":
    for way in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(way)
        with context.Pool(2) as pool:
            print(way, pool.map(double, [1, 2, 3]))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(list(pool.map(double, [4])))
`)
	out, errs := b.fork(b.spec("pool.py")).end(t)
	want := "spawn [2, 4, 6]\nfork [2, 4, 6]\nforkserver [2, 4, 6]\n[8]\n"
	if out != want {
		t.Errorf("it printed %q and %q", out, errs)
	}
}

func TestAProgramThatIsNotThereIsLeftToPythonToSay(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}})
	if _, err := b.server.Fork(t.Context(), b.spec("missing.py")); err == nil || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("got %v", err)
	}
	b.file("missing.py", "print('found')")
	if out, _ := b.fork(b.spec("missing.py")).end(t); out != "found\n" {
		t.Errorf("it printed %q", out)
	}
}

// torch.distributed writes a module into such a folder when it is imported. A worker that removed it at its end would have
// the fork server replaced at every restart.
func TestATemporaryFolderOfAPreloadedModuleLastsAsLongAsTheForkServer(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"makes"}})
	b.file("makes.py", "import sys, tempfile\nfolder = tempfile.TemporaryDirectory()\nwith open(folder.name + '/made.py', 'w') as f:\n    f.write('x = 1')\nsys.path.append(folder.name)\nimport made\n")
	b.file("train.py", "import os, makes, tempfile\nown = tempfile.TemporaryDirectory()\nprint(makes.folder.name, os.path.exists(makes.made.__file__), own.name)")
	var servers [2]int
	var folder string
	for i := range servers {
		out, errs := b.fork(b.spec("train.py")).end(t)
		words := strings.Fields(out)
		if len(words) != 3 || words[1] != "True" {
			t.Fatalf("worker %d printed %q, %q", i, out, errs)
		}
		folder, servers[i] = words[0], b.server.Status().PID
		if _, err := os.Stat(words[2]); err == nil {
			t.Errorf("worker %d has left its own folder %s", i, words[2])
		}
	}
	if servers[0] != servers[1] {
		t.Errorf("fork server %d was replaced by %d", servers[0], servers[1])
	}
	if err := b.server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); err == nil {
		t.Errorf("the fork server has left %s", folder)
	}
}

// Whoever waits for the end of an interpreter with PyTorch in it loses a second.
func TestAnExceptionThatNobodyCatchesIsReportedBeforeTheInterpreterEnds(t *testing.T) {
	slow(t)
	b := newBench(t, Options{Preload: []string{"json"}})
	socket, err := net.ListenPacket("unixgram", filepath.Join(b.dir, "up"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, c := range []struct{ name, program, switched, want string }{
		{"an exception", "import time, atexit\natexit.register(time.sleep, 1)\ndef f(): raise ValueError('no data')\nf()", "1", "X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=ValueError: no data (train.py:3 in f)"},
		{"switched off", "1 / 0", "0", ""},
		{"a code", "raise SystemExit(4)", "1", ""},
		{"an interruption", "raise KeyboardInterrupt", "1", ""},
		{"of a fork", "import os\nif os.fork() == 0: 1 / 0\nos.wait()", "1", ""},
	} {
		b.file("train.py", c.program)
		s := b.spec("train.py")
		s.Env = append(s.Env, "NOTIFY_SOCKET="+socket.LocalAddr().String(), "VIGIL_INJECT="+c.switched)
		r := b.fork(s)
		if c.want != "" {
			buf := make([]byte, 4096)
			socket.SetReadDeadline(time.Now().Add(patience))
			if n, _, err := socket.ReadFrom(buf); err != nil || string(buf[:n]) != c.want {
				t.Errorf("%s: it said %q (%v), want %q", c.name, buf[:n], err, c.want)
			}
			select {
			case <-r.Done():
				t.Errorf("%s: it has ended", c.name)
			default:
			}
		}
		if _, errs := r.end(t); c.want != "" && !strings.Contains(errs, "Traceback") {
			t.Errorf("%s: it wrote %q", c.name, errs)
		}
		buf := make([]byte, 4096)
		socket.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, _, err := socket.ReadFrom(buf); err == nil {
			t.Errorf("%s: it said %q", c.name, buf[:n])
		}
	}
}
