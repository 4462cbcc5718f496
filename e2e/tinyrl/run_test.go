package tinyrl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

type incident = httpapi.Incident

// controllerProgram is what the tests run.
var controllerProgram string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		bin, err := os.MkdirTemp("", "vigil-tinyrl-bin-")
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

// run is one running job.
type run struct {
	t       *testing.T
	trial   trial
	dir     string // short, so that sockets fit
	cmd     *exec.Cmd
	began   time.Time
	took    time.Duration
	ended   chan struct{}
	url     string
	uid     string
	session *http.Client

	mu     sync.Mutex
	events []event.Event
	kept   []incident // the newest answer
	follow sync.WaitGroup
}

// begin starts the job and waits until its controller answers.
func begin(t *testing.T, tr trial) *run {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3 on this machine, so the example job was not run")
	}
	dir, err := os.MkdirTemp("", "vt-")
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, trial: tr, dir: dir, began: time.Now(), ended: make(chan struct{}), session: &http.Client{Timeout: 20 * time.Second}}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r.cmd = exec.Command(controllerProgram, "--job", "../../examples/tiny-rl/job.yaml", "--use-health-check", "--max-global-restart", "20", "--heartbeat-timeout", "5s",
		"--http", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"), "--runtime-dir", filepath.Join(dir, "run"))
	r.cmd.Env = append(os.Environ(), "TINY_RL_DIR="+filepath.Join(dir, "learned"), "TINY_RL_STEPS="+strconv.Itoa(tr.steps), "PYTHONDONTWRITEBYTECODE=1")
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.cmd.Wait(); r.took = time.Since(r.began); close(r.ended) }()
	t.Cleanup(r.clean)
	started := regexp.MustCompile(`job started job=(\S+) .*http=(\S+)`)
	r.eventually("the controller answers", func() (bool, error) {
		m := started.FindStringSubmatch(r.log())
		if m == nil {
			return false, errors.New("it has not said where")
		}
		r.uid, r.url = m[1], m[2]
		return true, nil
	})
	r.follow.Go(r.listen)
	return r
}

// clean ends what is left when a test has failed midway, and shows the log then.
func (r *run) clean() {
	_ = r.cmd.Process.Kill()
	<-r.ended
	r.follow.Wait()
	if r.t.Failed() {
		r.t.Logf("the controller said:\n%s", r.log())
	}
	for pid := range r.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = os.RemoveAll(r.dir)
}

func (r *run) log() string {
	text, err := os.ReadFile(filepath.Join(r.dir, "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// listen keeps the events and the incidents until the controller is gone.
func (r *run) listen() {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for after := uint64(0); ; {
		var list httpapi.EventList
		var incidents httpapi.IncidentList
		err := errors.Join(r.get("/api/v1/events?limit=10000&after="+strconv.FormatUint(after, 10), &list), r.get("/api/v1/incidents", &incidents))
		if err == nil {
			r.mu.Lock()
			r.events, r.kept = append(r.events, list.Events...), incidents.Incidents
			r.mu.Unlock()
			after = list.Next
		}
		select {
		case <-tick.C:
		case <-r.ended:
			return
		}
	}
}

func (r *run) heard() []event.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// incidents returns what was last heard, newest first.
func (r *run) incidents() []incident {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.kept)
}

// end waits for the end of the job: well, and with nothing left.
func (r *run) end() {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(r.trial.limit):
		r.t.Fatalf("the job has not ended after %s", r.trial.limit)
	}
	r.follow.Wait()
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		r.t.Errorf("the job ended with %v", r.cmd.ProcessState)
	}
	for pid, environ := range r.processes() {
		r.t.Errorf("process %d of the job is left: %q", pid, environ)
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "vigil-"+r.uid) {
			r.t.Errorf("cgroup %s is left", path)
		}
		return nil // what has gone meanwhile is not left
	})
	for _, pattern := range []string{filepath.Join(r.dir, "run", "[^p]*"), filepath.Join(r.dir, "run", "ports", "*.lock"), "/dev/shm/*" + r.uid + "*", filepath.Join(r.dir, "learned", "*", ".new-*")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			r.t.Errorf("left behind: %v", left)
		}
	}
}

// processes returns the environments of the job's services and workers by pid; zombies have none.
func (r *run) processes() map[int][]string {
	found := map[int][]string{}
	if r.uid == "" {
		return found
	}
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(text, []byte("VIGIL_LIFE="+r.uid+"/")) && !bytes.Contains(text, []byte("VIGIL_OPT_JOB_UID="+r.uid)) {
			continue // gone, of others, or of none
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found[pid] = strings.Split(string(text), "\x00")
		}
	}
	return found
}

// service returns the process that serves a role; 0 if there is none.
func (r *run) service(name role.Name) int {
	for pid, environ := range r.processes() {
		if slices.Contains(environ, "VIGIL_OPT_ROLE="+string(name)) {
			return pid
		}
	}
	return 0
}

func (r *run) worker(name role.Name, rank int) httpapi.Worker {
	r.t.Helper()
	var got httpapi.Role
	if err := r.get("/api/v1/roles/"+string(name), &got); err != nil {
		r.t.Fatal(err)
	}
	if w := got.Workers[rank]; w.PID > 1 {
		return w
	}
	r.t.Fatalf("%s rank %d does not run: %+v", name, rank, got)
	return httpapi.Worker{}
}

// standing is who does a role's work.
type standing struct {
	incarnation, restarts, service int
	workers                        []int
}

func (r *run) standings() map[role.Name]standing {
	r.t.Helper()
	var list httpapi.RoleList
	if err := r.get("/api/v1/roles", &list); err != nil {
		r.t.Fatal(err)
	}
	out := map[role.Name]standing{}
	for _, one := range list.Roles {
		s := standing{incarnation: one.Incarnation, restarts: one.RestartCount, service: r.service(one.Name)}
		for _, w := range one.Workers {
			s.workers = append(s.workers, w.PID)
		}
		out[one.Name] = s
	}
	return out
}

// wellAt waits until the actor is at the step and every worker of every role has made one in its life.
func (r *run) wellAt(step int64) map[role.Name]standing {
	r.t.Helper()
	r.eventually(fmt.Sprintf("step %d with everybody well", step), func() (bool, error) {
		var list httpapi.RoleList
		if err := r.get("/api/v1/roles", &list); err != nil {
			return false, err
		}
		for _, one := range list.Roles {
			silent := slices.ContainsFunc(one.Workers, func(w httpapi.Worker) bool { return w.Step == nil })
			if !one.Healthy || one.State != role.Running || silent || one.Name == "actor" && one.CurrentStep < step {
				return false, fmt.Errorf("%+v", one)
			}
		}
		return true, nil
	})
	return r.standings()
}

// eventually looks until it is so. It fails when the job ends before, or the trial's limit is over.
func (r *run) eventually(what string, look func() (bool, error)) {
	r.t.Helper()
	over := time.NewTimer(r.trial.limit)
	defer over.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		so, err := look()
		if so {
			return
		}
		select {
		case <-tick.C:
		case <-r.ended:
			r.t.Fatalf("the job ended (%v) before %s: %v", r.cmd.ProcessState, what, err)
		case <-over.C:
			r.t.Fatalf("not within %s: %s: %v", r.trial.limit, what, err)
		}
	}
}

func (r *run) get(path string, into any) error {
	answer, err := r.session.Get(r.url + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// post does what curl -d BODY does.
func (r *run) post(path, body string) error {
	answer, err := r.session.Post(r.url+path, "text/plain", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: %s: %s", path, answer.Status, text)
	}
	return nil
}

// pause waits, so that what comes next does not keep step with the job.
func pause(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	<-ctx.Done()
}
