package warm

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vigil/e2e/rig"
	"vigil/internal/wire/httpapi"
)

func TestADeadForkServerIsReplacedAndCostsNoRestart(t *testing.T) {
	t.Parallel()
	j := begin(t, "[marker]", nil)
	worker := j.life(1)[0]
	j.mustBegin(1, "warm")
	j.signal(j.server(1), syscall.SIGKILL)
	second := j.server(2)
	if now := j.life(1)[0]; now != worker || j.spent() != 0 {
		t.Errorf("worker %d, %d restarts; it was %d", now, j.spent(), worker)
	}
	j.signal(worker, syscall.SIGKILL)
	j.life(2)
	j.mustBegin(2, "warm")
	if now := j.server(2); now != second {
		t.Errorf("fork server %d, want %d", now, second)
	}
	j.stop()
}

// What is wrong is said once, where the user looks; the role starts all the same.
func TestABadPreloadIsSaidInTheControllersLogAndSpendsNoRestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		module string
		words  []string
		more   []string
	}{
		"does not import": {"import no_such_module", []string{"workers start cold", "import bad: ModuleNotFoundError"}, nil},
		"hangs":           {"import time; time.sleep(300)", []string{"workers start cold", "importing bad takes longer than 3s"}, []string{"limits: {start: 3s}"}},
		"forks":           {"import os, time\nif os.fork() == 0: time.sleep(300)", []string{"workers start cold", "started processes that still run"}, nil},
		"is killed":       {"import os; os.kill(os.getpid(), 9)", []string{"workers start cold", "3 fork servers were lost in a row"}, nil},
		"starts a thread": {"import threading, time; threading.Thread(target=time.sleep, args=(300,), daemon=True).start()", []string{"workers start cold", "runs threads"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := begin(t, "[marker, bad]", map[string]string{"bad.py": c.module}, c.more...)
			worker := j.life(1)[0]
			j.mustBegin(1, "cold")
			j.says(c.words...)
			if spent := j.spent(); spent != 0 {
				t.Errorf("%d restarts were spent", spent)
			}
			j.signal(worker, syscall.SIGKILL)
			j.life(2)
			j.mustBegin(2, "cold")
			j.stop()
		})
	}
}

func TestMegabytesThatAPreloadPrintsHoldNothingUpAndOneIsKept(t *testing.T) {
	t.Parallel()
	j := begin(t, "[marker, loud]", map[string]string{"loud.py": "for i in range(20000): print('x' * 400)"})
	j.life(1)
	j.mustBegin(1, "warm")
	info, err := os.Stat(filepath.Join(j.Dir, "state", j.UID, "logs", "main", "preload.0.log"))
	if err != nil || info.Size() < 1<<20 || info.Size() > 1<<20+1000 {
		t.Errorf("of 8 MB %v are kept (%v)", info.Size(), err)
	}
	j.stop()
}

// The fork would have one thread only. Processes that stand ready were forked before and are used.
func TestAThreadThatAppearsInTheForkServerMakesTheRoleCold(t *testing.T) {
	t.Parallel()
	j := begin(t, "[marker, sleeper]", map[string]string{"sleeper.py": `import signal, threading, time
def begin(*_): threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
signal.signal(signal.SIGUSR1, begin)
`})
	worker := j.life(1)[0]
	j.mustBegin(1, "warm")
	j.signal(j.server(1), syscall.SIGUSR1)
	for incarnation := 2; ; incarnation++ {
		j.signal(worker, syscall.SIGKILL)
		worker = j.life(incarnation)[0]
		if j.began(incarnation) == "cold" {
			break
		}
		if incarnation > 5 {
			t.Fatalf("it began warm five times\n%s", j.serviceLog())
		}
	}
	j.says("workers start cold", "runs threads")
	j.stop()
}

func TestAGlobalRestartKeepsTheForkServer(t *testing.T) {
	t.Parallel()
	j := begin(t, "[marker]", nil)
	worker := j.life(1)[0]
	service := j.Service("main")
	j.mustBegin(1, "warm")
	server := j.server(1)
	for incarnation := 2; incarnation <= 4; incarnation++ {
		if err := j.Post("/main/mark_unhealthy_for_testing", ""); err != nil {
			t.Fatal(err)
		}
		now := j.life(incarnation)[0]
		if now == worker {
			t.Errorf("incarnation %d has the same process", incarnation)
		}
		worker = now
		j.mustBegin(incarnation, "warm")
	}
	if now := j.server(1); now != server || j.Service("main") != service {
		t.Errorf("fork server %d of service %d, want %d of %d", now, j.Service("main"), server, service)
	}
	var incidents httpapi.IncidentList
	if err := j.Get("/api/v1/incidents", &incidents); err != nil || len(incidents.Incidents) != 3 {
		t.Fatalf("%d incidents, %v", len(incidents.Incidents), err)
	}
	if last := incidents.Incidents[0]; last.Action != "global" {
		t.Errorf("the third restart was %s", last.Action)
	}
	j.stop()
}

func TestAServiceThatDoesNotAnswerIsReplacedWithItsForkServer(t *testing.T) {
	t.Parallel()
	j := begin(t, "[marker]", nil)
	j.life(1)
	j.mustBegin(1, "warm")
	service, old := j.Service("main"), j.server(1)
	j.signal(service, syscall.SIGSTOP)
	j.life(2)
	j.mustBegin(2, "warm")
	if now := j.Service("main"); now == service {
		t.Error("the service is the same")
	}
	all := j.servers()
	if now := all[len(all)-1]; now == old {
		t.Error("the fork server is the same")
	}
	if err := syscall.Kill(old, 0); err == nil {
		t.Errorf("the old fork server %d still runs", old)
	}
	j.stop()
}

func TestOneRoleIsRunWarmByAFlag(t *testing.T) {
	t.Parallel()
	j := &job{t: t, folder: rig.Folder(t)}
	for name, text := range map[string]string{"worker.py": worker, "marker.py": ""} {
		if err := os.WriteFile(filepath.Join(j.folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	j.Job = rig.Begin(t, rig.Options{Workdir: j.folder, Environ: plain("PYTHONPATH=" + j.folder), Patience: patience, Args: []string{"run", "--preload", "json,marker", "worker.py"}})
	j.life(1)
	j.mustBegin(1, "warm")
	j.stop()
}

// An interpreter may take its time to end.
func TestAForkedWorkersErrorIsHeardWhenItIsRaised(t *testing.T) {
	t.Parallel()
	j := begin(t, "[marker]", map[string]string{"worker.py": `import atexit, os, sys, time
print("warm" if "marker" in sys.modules else "cold", flush=True)
if os.environ["VIGIL_INCARNATION"] == "1":
    atexit.register(time.sleep, 60)
    raise RuntimeError("no data")
time.sleep(300)
`})
	j.life(2)
	j.mustBegin(1, "warm")
	j.says("main", "rank 0", "RuntimeError: no data (worker.py:5 in <module>)")
	text, err := os.ReadFile(filepath.Join(filepath.Dir(j.Output("main", 1, 0)), "stderr.log"))
	if err != nil || !strings.Contains(string(text), "Traceback") {
		t.Errorf("its standard error is %q (%v)", text, err)
	}
	j.stop()
}
