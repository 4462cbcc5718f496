package warm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vigil/e2e/rig"
	"vigil/internal/wire/httpapi"
)

// patience is how long anything may take on a busy machine.
const patience = 4 * time.Minute

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// restarts is how often a training is restarted.
func restarts(t *testing.T) int {
	text := os.Getenv("VIGIL_WARM")
	if text == "" {
		return 10
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("VIGIL_WARM=%s: want a number from 1", text)
	}
	return n
}

// worker says whether it was forked with the modules, and lives until it is killed. Its module is found
// beside it.
const worker = `import sys
print("warm" if "marker" in sys.modules else "cold", flush=True)
import signal
while True: signal.pause()
`

// job is one running job, of the role main.
type job struct {
	*rig.Job
	t      *testing.T
	folder string // of worker and modules
}

// begin runs worker with the modules of a folder preloaded. more are lines of the job file, of the role.
func begin(t *testing.T, preload string, modules map[string]string, more ...string) *job {
	t.Helper()
	j := &job{t: t, folder: rig.Folder(t)}
	files := map[string]string{"worker.py": worker, "marker.py": ""}
	for name, text := range modules {
		files[name] = text
	}
	files["job.yaml"] = "name: warm\ncontroller: {use_health_check: true, max_global_restart: 100000}\nroles:\n  main:\n    command: [python3, -u, worker.py]\n    preload: " +
		preload + "\n    env: {PYTHONPATH: " + j.folder + "}\n    restart: {backoff: {base: 0}}\n"
	for _, line := range more {
		files["job.yaml"] += "    " + line + "\n"
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(j.folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	j.Job = rig.Begin(t, rig.Options{Workdir: j.folder, Environ: plain(), Patience: patience, Args: []string{"--job", "job.yaml"}})
	return j
}

// plain is the environment of this test without what a shell put there.
func plain(more ...string) []string {
	return slices.Concat([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "USE_LIBUV=0"}, more)
}

// life waits until all workers of an incarnation run, and returns them by rank.
func (j *job) life(incarnation int) []int {
	j.t.Helper()
	var pids []int
	j.Eventually(fmt.Sprintf("incarnation %d", incarnation), func() error {
		var got httpapi.Role
		if err := j.Get("/api/v1/roles/main", &got); err != nil {
			return err
		}
		pids = nil
		for _, w := range got.Workers {
			if w.PID > 1 && strings.Contains(w.Life, fmt.Sprintf("/main/%d/", incarnation)) {
				pids = append(pids, w.PID)
			}
		}
		if got.Incarnation != incarnation || len(pids) == 0 || len(pids) != len(got.Workers) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	return pids
}

// began waits until the worker of an incarnation has said how it began.
func (j *job) began(incarnation int) string {
	j.t.Helper()
	said := ""
	j.Eventually(fmt.Sprintf("the worker of incarnation %d has said how it began", incarnation), func() error {
		text, err := os.ReadFile(j.Output("main", incarnation, 0))
		if said = strings.TrimSpace(string(text)); said == "" {
			return errors.Join(errors.New("it has said nothing"), err)
		}
		return nil
	})
	return said
}

// mustBegin fails the test if the worker of an incarnation began otherwise than warm or cold.
func (j *job) mustBegin(incarnation int, how string) {
	j.t.Helper()
	if said := j.began(incarnation); said != how {
		j.t.Fatalf("incarnation %d began %s, want %s\n%s", incarnation, said, how, j.serviceLog())
	}
}

func (j *job) serviceLog() string {
	text, _ := os.ReadFile(filepath.Join(j.Dir, "state", j.UID, "logs", "main", "service.0.log"))
	return string(text)
}

var ready = regexp.MustCompile(`fork server is ready.* pid=(\d+)`)

// servers returns the fork servers that were ready, oldest first.
func (j *job) servers() []int {
	var all []int
	for _, m := range ready.FindAllStringSubmatch(j.serviceLog(), -1) {
		pid, err := strconv.Atoi(m[1])
		if err != nil {
			j.t.Fatal(err)
		}
		all = append(all, pid)
	}
	return all
}

// server waits until so many fork servers have been ready and returns the last.
func (j *job) server(n int) int {
	j.t.Helper()
	var all []int
	j.Eventually(fmt.Sprintf("fork server %d is ready", n), func() error {
		if all = j.servers(); len(all) < n {
			return fmt.Errorf("%d were", len(all))
		}
		return nil
	})
	if len(all) != n {
		j.t.Fatalf("%d fork servers were ready, want %d\n%s", len(all), n, j.serviceLog())
	}
	return all[n-1]
}

// says waits until the controller has said all the words in one line.
func (j *job) says(words ...string) {
	j.t.Helper()
	j.Eventually(fmt.Sprintf("the controller says %q", words), func() error {
		for line := range strings.Lines(j.Log()) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return nil
			}
		}
		return fmt.Errorf("it does not; the service says\n%s", j.serviceLog())
	})
}

func (j *job) signal(pid int, s syscall.Signal) {
	j.t.Helper()
	if pid <= 0 { // it would be a group's, our own even
		j.t.Fatalf("send %s: there is no such process", s)
	}
	if err := syscall.Kill(pid, s); err != nil {
		j.t.Fatalf("send %s to %d: %v", s, pid, err)
	}
}

// stop ends the job as Ctrl-C does, and looks whether anything is left.
func (j *job) stop() {
	j.t.Helper()
	j.signal(j.PID(), syscall.SIGINT)
	j.End(130)
}

// spent returns how many restarts of any kind the role has had.
func (j *job) spent() int {
	j.t.Helper()
	var got httpapi.Role
	if err := j.Get("/api/v1/roles/main", &got); err != nil {
		j.t.Fatal(err)
	}
	return got.RestartCount + got.Incarnation - 1
}
