package programs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vigil/internal/wire/httpapi"
)

// patience is how long anything may take on a busy machine: importing torch alone can take seconds.
const patience = 90 * time.Second

// controllerProgram is what the tests run.
var controllerProgram string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		bin, err := os.MkdirTemp("", "vigil-programs-bin-")
		if err == nil {
			defer os.RemoveAll(bin)
			controllerProgram = filepath.Join(bin, "controller")
			build := exec.Command("go", "build", "-o", controllerProgram, "../../cmd/controller")
			build.Stderr = os.Stderr
			err = build.Run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "build the controller:", err)
			return 1
		}
		return m.Run()
	}())
}

// python returns an interpreter that has PyTorch. The test is skipped where there is none.
var python = sync.OnceValue(func() string {
	for _, name := range []string{os.Getenv("TORCH_PYTHON"), "python3", "/usr/bin/python3"} {
		path, err := exec.LookPath(name)
		if err == nil && exec.Command(path, "-c", "import torch.distributed.run").Run() == nil {
			return path
		}
	}
	return ""
})

func needTorch(t *testing.T) string {
	t.Helper()
	if python() == "" {
		t.Skip("SKIPPED: no python3 here has PyTorch (Debian: apt-get install python3-torch; or set TORCH_PYTHON), so no real training was run")
	}
	return python()
}

// folder is a short one, so that sockets fit.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// run is one running job.
type run struct {
	t     *testing.T
	dir   string // of state and sockets
	cmd   *exec.Cmd
	ended chan struct{}
	url   string
	uid   string
}

// begin starts the controller in workdir with these arguments, which come after the folders' flags if
// they begin with a flag, and waits until it answers. What it inherits is environ.
func begin(t *testing.T, workdir string, environ []string, args ...string) *run {
	t.Helper()
	r := &run{t: t, dir: folder(t), ended: make(chan struct{})}
	log, err := os.Create(filepath.Join(r.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r.cmd = exec.Command(controllerProgram, args...)
	r.cmd.Dir = workdir
	r.cmd.Env = append(slices.Clone(environ), "VIGIL_OPT_STATE_DIR="+filepath.Join(r.dir, "state"), "VIGIL_OPT_RUNTIME_DIR="+filepath.Join(r.dir, "run"), "VIGIL_OPT_HTTP=127.0.0.1:0")
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.cmd.Wait(); close(r.ended) }()
	t.Cleanup(r.clean)
	started := regexp.MustCompile(`job started job=(\S+) .*http=(\S+)`)
	r.eventually("the controller answers", func() error {
		m := started.FindStringSubmatch(r.log())
		if m == nil {
			return errors.New("it has not said where")
		}
		r.uid, r.url = m[1], m[2]
		return nil
	})
	return r
}

// clean ends what is left when a test has failed midway, and shows the log then.
func (r *run) clean() {
	_ = r.cmd.Process.Kill()
	<-r.ended
	if r.t.Failed() {
		r.t.Logf("the controller said:\n%s", r.log())
	}
	for _, pid := range r.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func (r *run) log() string {
	text, err := os.ReadFile(filepath.Join(r.dir, "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// end waits for the end of the job with this exit status, and that nothing is left.
func (r *run) end(exit int) {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.t.Fatalf("the job has not ended after %s", patience)
	}
	if code := r.cmd.ProcessState.ExitCode(); code != exit {
		r.t.Errorf("the job ended with %v, want %d", r.cmd.ProcessState, exit)
	}
	if left := r.processes(); len(left) > 0 {
		r.t.Errorf("processes of the job are left: %v", left)
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "vigil-"+r.uid) {
			r.t.Errorf("cgroup %s is left", path)
		}
		return nil // what has gone meanwhile is not left
	})
}

// processes returns the pids of the job's services and workers, and of what workers have started with
// their environment. Zombies have none.
func (r *run) processes() []int {
	if r.uid == "" {
		return nil
	}
	var found []int
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte("VIGIL_LIFE="+r.uid+"/")) && !bytes.Contains(text, []byte("VIGIL_OPT_JOB_UID="+r.uid)) {
			continue // gone, of others, or of none
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/environ", &pid); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// role returns what the controller says of a role.
func (r *run) role(name string) (httpapi.Role, error) {
	var got httpapi.Role
	client := http.Client{Timeout: 20 * time.Second}
	answer, err := client.Get(r.url + "/api/v1/roles/" + name)
	if err != nil {
		return got, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return got, fmt.Errorf("GET role %s: %s", name, answer.Status)
	}
	return got, json.NewDecoder(answer.Body).Decode(&got)
}

// living waits until every worker of the role's incarnation has a pid, and returns them by rank.
func (r *run) living(name string, incarnation int) []int {
	r.t.Helper()
	var pids []int
	r.eventually(fmt.Sprintf("incarnation %d of %s", incarnation, name), func() error {
		got, err := r.role(name)
		if err != nil {
			return err
		}
		pids = nil
		for _, w := range got.Workers {
			if w.PID > 1 {
				pids = append(pids, w.PID)
			}
		}
		if got.Incarnation != incarnation || len(got.Workers) == 0 || len(pids) != len(got.Workers) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	return pids
}

// eventually looks until nothing is wrong. It fails when the job ends before, or patience does.
func (r *run) eventually(what string, wrong func() error) {
	r.t.Helper()
	over := time.NewTimer(patience)
	defer over.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := wrong()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.ended:
			if err := wrong(); err != nil {
				r.t.Fatalf("the job ended (%v) before %s: %v", r.cmd.ProcessState, what, err)
			}
			return
		case <-over.C:
			r.t.Fatalf("not within %s: %s: %v", patience, what, err)
		}
	}
}

// plain is the environment of this test without what a shell or another launcher put there.
func plain(more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "USE_LIBUV=0"}, more...)
}
