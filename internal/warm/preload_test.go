package warm

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// Whatever is wrong with a preload is told once, nothing of it is left, and the worker starts as ever.
func TestABadPreloadIsToldOnceAndTheWorkerStartsCold(t *testing.T) {
	for name, c := range map[string]struct {
		module string
		words  []string
	}{
		"missing import":    {"import no_such_module", []string{"import bad", "ModuleNotFoundError", "no_such_module"}},
		"syntax":            {"x = = 1", []string{"import bad", "SyntaxError"}},
		"raises":            {"raise RuntimeError('not on\\nthis machine')", []string{"import bad", "RuntimeError: not on"}},
		"sys.exit":          {"import sys; sys.exit(4)", []string{"import bad", "SystemExit: 4"}},
		"os._exit":          {"import os; print('last words'); os._exit(5)", []string{"ended while importing bad", "exit code 5", "last words"}},
		"hangs":             {"import time; time.sleep(300)", []string{"importing bad takes longer than 2s"}},
		"hangs for good":    {"import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", []string{"importing bad takes longer than 2s"}},
		"starts a child":    {"import subprocess; p = subprocess.Popen(['sleep', '300'])", []string{"processes that still run"}},
		"starts a daemon":   {"import subprocess; subprocess.run('setsid sleep 300 >/dev/null 2>&1 &', shell=True)", []string{"has started pid"}},
		"forks":             {"import os, time\nif os.fork() == 0: time.sleep(300)", []string{"processes that still run"}},
		"starts a thread":   {"import threading, time; threading.Thread(target=time.sleep, args=(300,), daemon=True).start()", []string{"runs threads: python"}},
		"opens a device":    {"import os; fd = os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY)", []string{"holds /dev/p", "ptmx open"}},
		"opens a socket":    {"import socket; s = socket.socket()", []string{"holds socket:"}},
		"opens a loop":      {"import asyncio; loop = asyncio.new_event_loop()", []string{"open"}},
		"breaks the wire":   {"import os; os.close(3)", nil},
		"talks on the wire": {"import os; os.write(3, b'nonsense')", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := 30 * time.Second
			if strings.HasPrefix(name, "hangs") {
				limit = 2 * time.Second
			}
			b := newBench(t, Options{Preload: []string{"json", "bad"}, Limit: limit})
			b.file("bad.py", c.module)
			b.file("train.py", "print('trains')")
			s := b.spec("train.py")
			p, err := b.server.Fork(t.Context(), s)
			if c.words == nil { // it may even work
				if err == nil {
					within(t, "the worker ends", p.Done())
					if _, err := b.keeper.Clear(t.Context(), p.Tree()); err != nil {
						t.Error(err)
					}
				}
				return
			}
			if !errors.Is(err, ErrCold) {
				t.Fatalf("the fork gave %v, %v", p, err)
			}
			b.mustTell(append(c.words, "workers start cold")...)
			if _, again := b.server.Fork(t.Context(), b.spec("train.py")); again == nil || again.Error() != err.Error() {
				t.Errorf("the second fork gave %v after %v", again, err)
			}
			if out, _ := b.exec(s).end(t); out != "trains\n" {
				t.Errorf("the worker printed %q", out)
			}
			eventually(t, "nothing of the fork server is left", func() bool {
				return len(b.keeper.Remains(proc.Tree{Mark: strings.TrimSuffix(b.server.o.Mark, "fork")})) == 0
			})
			select {
			case text := <-b.told:
				t.Errorf("told once more: %q", text)
			default:
			}
			if st := b.server.Status(); st.Ready || st.PID != 0 || st.Why != err.Error()[len("no warm start: "):] {
				t.Errorf("status %+v after %v", st, err)
			}
		})
	}
}

func TestAPreloadThatPrintsMegabytesFillsNoDisk(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"loud"}})
	b.file("loud.py", "print('first'); print('x' * 3_000_000, flush=True)")
	b.file("train.py", "print('trains')")
	if out, _ := b.fork(b.spec("train.py")).end(t); out != "trains\n" {
		t.Errorf("the worker printed %q", out)
	}
	if err := b.server.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the rest is counted", func() bool {
		text, _ := os.ReadFile(b.server.o.Output)
		return len(text) < outputLimit+100 && strings.HasPrefix(string(text), "first\nxxx") && strings.HasSuffix(string(text), "... 1951431 bytes more were not kept\n")
	})
}

// A library that takes care of forks itself may have threads.
func TestThreadsThatEndWhenAForkIsPreparedAreNoHindrance(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"aware"}})
	b.file("aware.py", `
import os, threading
end = threading.Event()
thread = threading.Thread(target=end.wait, daemon=True)
thread.start()
os.register_at_fork(before=lambda: (end.set(), thread.join()))
`)
	b.file("train.py", "import os; print(len(os.listdir('/proc/self/task')))")
	if out, _ := b.fork(b.spec("train.py")).end(t); out != "1\n" {
		t.Errorf("the worker printed %q", out)
	}
}

func TestAThreadThatAppearsLaterEndsWarmStarts(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"late"}})
	b.file("late.py", `
import os, threading, time
os.register_at_fork(after_in_parent=lambda: threading.Thread(target=time.sleep, args=(300,), daemon=True).start())
`)
	b.file("train.py", "print('trains')")
	if out, _ := b.fork(b.spec("train.py")).end(t); out != "trains\n" {
		t.Errorf("the worker printed %q", out)
	}
	if _, err := b.server.Fork(t.Context(), b.spec("train.py")); !errors.Is(err, ErrCold) {
		t.Errorf("the second fork gave %v", err)
	}
	b.mustTell("runs threads")
}

func TestAutoImportsWhatTheProgramImportsButNotItsOwnModules(t *testing.T) {
	const program = "'''doc'''\nfrom __future__ import annotations\nimport mine, json.decoder as d\nfrom xml import dom\nfrom mine import x\n" +
		"from collections import *\nif True:\n    import decimal\ndef f():\n    import fractions\nprint('decimal' in __import__('sys').modules)\n"
	for name, args := range map[string][]string{
		"script":  {"train.py"},
		"module":  {"-m", "app.train"},
		"package": {"-m", "app"},
		"text":    {"-c", program},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, Options{Preload: []string{"auto", "queue"}})
			b.file("mine.py", "import os\nx = os.environ['RANK']\n")
			b.file("train.py", program)
			if err := os.Mkdir(b.dir+"/app", 0o755); err != nil {
				t.Fatal(err)
			}
			b.file("app/__init__.py", "import os; os.environ['RANK']")
			b.file("app/train.py", program)
			b.file("app/__main__.py", program)
			if out, errs := b.fork(b.spec(args...)).end(t); out != "False\n" && out != "True\n" {
				t.Errorf("it printed %q and %q", out, errs)
			}
			if got, want := b.server.Status().Modules, []string{"json.decoder", "xml", "collections", "queue"}; !slices.Equal(got, want) {
				t.Errorf("imported %q, wanted %q", got, want)
			}
		})
	}
}

func TestAChangedFileOrEnvironmentIsImportedAnew(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"mine"}, PerLife: []string{"PORT"}})
	b.file("mine.py", "import os\nvalue = 'one'\nhome = os.environ['HOME']\n")
	b.file("train.py", "import mine, os; print(mine.value, mine.home, os.environ.get('PORT'), os.environ['RANK'])")
	see := func(want string, pairs ...string) int {
		t.Helper()
		s := b.spec("train.py")
		for _, pair := range pairs {
			name, _, _ := strings.Cut(pair, "=")
			s.Env = append(slices.DeleteFunc(s.Env, func(old string) bool { return strings.HasPrefix(old, name+"=") }), pair)
		}
		if out, errs := b.fork(s).end(t); out != want {
			t.Errorf("it printed %q and %q, wanted %q", out, errs, want)
		}
		return b.server.Status().PID
	}
	first := see("one /root None 0\n")
	if second := see("one /root 4711 1\n", "PORT=4711", "RANK=1", "VIGIL_ROLE_CRITIC_ADDRS=here:1"); second != first {
		t.Errorf("the fork server was replaced for what differs between lives: pid %d, then %d", first, second)
	}
	b.file("mine.py", "import os\nvalue = 'another'\nhome = os.environ['HOME']\n")
	changed := see("another /root None 0\n")
	if changed == first {
		t.Error("the fork server has the changed module and the same pid")
	}
	if other := see("another /tmp None 0\n", "HOME=/tmp"); other == changed {
		t.Error("the fork server has another environment and the same pid")
	}
}

// What a forked process refuses is heard also where it has refused before it could be adopted, as on a busy machine.
func TestARefusalBeforeTheAdoptionIsHeard(t *testing.T) {
	for _, refused := range []struct{ name, program, want string }{
		{"a file has changed", "train.py", "has changed"},
		{"there is no such program", "gone.py", "No such file"},
	} {
		t.Run(refused.name, func(t *testing.T) {
			b := newBench(t, Options{Preload: []string{"mine"}})
			b.file("mine.py", "value = 'one'\n")
			b.file("train.py", "import mine")
			b.fork(b.spec("train.py")).end(t)
			if refused.program == "train.py" {
				b.file("mine.py", "value = 'another'\n")
			}
			s := b.spec(refused.program)
			c, err := read(append([]string{s.Path}, s.Args...))
			if err != nil {
				t.Fatal(err)
			}
			w, err := b.server.life.bear()
			if err != nil {
				t.Fatal(err)
			}
			defer w.control.Close()
			if err := instruct(w.control, s, c); err != nil {
				t.Fatal(err)
			}
			awaitWords(t, w.control)
			p, err := b.keeper.AdoptChild(s, w.id)
			if err != nil {
				t.Fatal(err)
			}
			if err := release(w.control); err == nil || !strings.Contains(err.Error(), refused.want) {
				t.Errorf("it said %v, wanted %q", err, refused.want)
			}
			w.control.Close()
			select {
			case <-p.Done():
			case <-time.After(patience):
				t.Error("it does not end when it has been heard")
			}
			if _, err := b.keeper.Clear(t.Context(), p.Tree()); err != nil {
				t.Error(err)
			}
		})
	}
}

// awaitWords waits until there is something to read on a socket, reads nothing, and gives who wrote it the time to end.
func awaitWords(t *testing.T, c *net.UnixConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(patience))
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err == nil
	})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
}

// A sitecustomize of the service's can put itself into workers that were forked.
func TestWhatASitecustomizeLeftIsCalledInEachWorker(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("sitecustomize.py", `
import os, sys
if os.environ.get("VIGIL_FORK_SERVER"):
    sys.__dict__.setdefault("_vigil_forked", []).append(lambda: print("called with rank", os.environ["RANK"]))
`)
	b.file("train.py", "import os, sys; print('VIGIL_FORK_SERVER' in os.environ, hasattr(sys, '_vigil_forked'))")
	s := b.spec("train.py")
	s.Env = append(s.Env, "PYTHONPATH="+b.dir)
	if out, errs := b.fork(s).end(t); out != "called with rank 0\nFalse False\n" {
		t.Errorf("it printed %q and %q", out, errs)
	}
}

// What an agent sets up when Python starts, workers that were forked have as executed ones do: once, with what it has
// done to the environment, and with its words at the end of each.
// shows: FAULT-K1
func TestAnAgentThatPythonStartsWithIsSetUpOnceAndHoldsInEachWorker(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"json"}})
	b.file("sitecustomize.py", `
import atexit, os, sys
sys.__dict__.setdefault("setups", []).append(os.getpid())
os.environ["AGENT"] = "on"
os.environ["RANK"] = "of the agent"
os.environ["USER_SAYS"] += " and more"
os.environ.pop("HOME")
os.environ["PYTHONPATH"] = "without the agent"
atexit.register(lambda: print("uploaded by", os.environ["RANK"], flush=True))
`)
	b.file("train.py", `import os, sys; print(len(sys.setups), os.environ["AGENT"], os.environ["RANK"], os.environ["USER_SAYS"][-10:], os.environ.get("HOME"), os.environ["PYTHONPATH"])`)
	for _, rank := range []string{"0", "1"} {
		s := b.spec("train.py")
		for i, pair := range s.Env {
			if strings.HasPrefix(pair, "RANK=") {
				s.Env[i] = "RANK=" + rank
			}
		}
		s.Env = append(s.Env, "PYTHONPATH="+b.dir)
		want := "1 on " + rank + " x and more None without the agent\nuploaded by " + rank + "\n"
		if out, errs := b.fork(s).end(t); out != want {
			t.Errorf("it printed %q and %q, want %q", out, errs, want)
		}
	}
}

// The library for workers speaks for the life that it is in, not for the fork server.
func TestThePreloadedLibrarySpeaksForItsWorker(t *testing.T) {
	b := newBench(t, Options{Preload: []string{"vigil"}})
	b.file("train.py", "import sys, vigil; vigil.heartbeat(7); print(vigil.active(), sys.excepthook is not sys.__excepthook__)")
	source, err := filepath.Abs("../../python/src")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenPacket("unixgram", filepath.Join(b.dir, "up"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	s := b.spec("train.py")
	s.Env = append(s.Env, "PYTHONPATH="+source, "NOTIFY_SOCKET="+socket.LocalAddr().String())
	if out, errs := b.fork(s).end(t); out != "True True\n" {
		t.Errorf("it printed %q and %q", out, errs)
	}
	socket.SetReadDeadline(time.Now().Add(patience))
	var said []string
	for !slices.Contains(said, "X_VIGIL_STEP=7") {
		buf := make([]byte, 4096)
		n, _, err := socket.ReadFrom(buf)
		if err != nil {
			t.Fatalf("it said %q: %v", said, err)
		}
		said = append(said, strings.Split(string(buf[:n]), "\n")...)
	}
}
