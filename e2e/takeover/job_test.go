package takeover

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
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

// nobody is an ordinary user.
const nobody = 65534

// job is one run over all its controllers. Its methods fail the test that began it.
type job struct {
	t        *testing.T
	dir      string // of everything
	ordinary bool   // it runs as an ordinary user
	program  string // the controller; empty: the usual one
	group    bool   // it leads a process group of its own
	piped    bool   // what it says goes through a pipe: no file of its own is written
	environ  []string
	args     []string // of every controller
	uid, url string

	cmd    *exec.Cmd
	ended  chan struct{} // closed when the controller has ended
	starts int
	deaths int
	undo   bool                                    // the first death takes the newest commit of the journal with it
	dies   func() (after time.Duration, does bool) // of a controller that has just begun; nil: it does not
}

// prepare makes a job's folder and its file.
func prepare(t *testing.T, ordinary bool, file string, args ...string) *job {
	t.Helper()
	j := &job{t: t, ordinary: ordinary, args: args, dir: rig.Folder(t)}
	if err := os.WriteFile(filepath.Join(j.dir, "job.yaml"), []byte(strings.ReplaceAll(file, "WORKER", worker)), 0o644); err != nil {
		t.Fatal(err)
	}
	if ordinary {
		if err := os.Chown(j.dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(j.clean)
	return j
}

// clean ends what is left when a test has failed midway, and shows the logs then.
func (j *job) clean() {
	if j.cmd != nil {
		_ = j.cmd.Process.Kill()
		<-j.ended
	}
	for pid := range j.rig().Processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for i := range j.starts {
		if j.t.Failed() {
			said := strings.Split(j.log(i+1), "\n")
			j.t.Logf("controller %d said at last:\n%s", i+1, strings.Join(said[max(0, len(said)-60):], "\n"))
		}
	}
}

// rig is the job as package rig knows it, for looking what there is of it.
func (j *job) rig() *rig.Job { return &rig.Job{UID: j.uid, URL: j.url, Dir: j.dir} }

// log is what one of the job's controllers has said.
func (j *job) log(number int) string {
	text, err := os.ReadFile(filepath.Join(j.dir, "log."+strconv.Itoa(number)))
	if err != nil {
		j.t.Fatal(err)
	}
	return string(text)
}

var answers = regexp.MustCompile(`job started job=(\S+) .*http=(\S+)`)

// command is a controller of the job.
func (j *job) command(args ...string) *exec.Cmd {
	cmd := exec.Command(cmp.Or(j.program, controller), append(append([]string{"--use-health-check", "--job", "job.yaml"}, j.args...), args...)...)
	cmd.Dir = j.dir
	cmd.Env = append(append(os.Environ(), "HOME="+j.dir, "VIGIL_OPT_STATE_DIR="+filepath.Join(j.dir, "state"),
		"VIGIL_OPT_RUNTIME_DIR="+filepath.Join(j.dir, "run"), "VIGIL_OPT_HTTP=127.0.0.1:0"), j.environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: j.group}
	if j.ordinary {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

// refused runs a controller that does not begin, and returns what it says and how it ends.
func (j *job) refused(args ...string) (said string, status int) {
	j.t.Helper()
	cmd := j.command(args...)
	text, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) {
		j.t.Fatalf("it is not refused: %v\n%s", err, text)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// start begins a controller and waits until it answers or has been killed.
func (j *job) start(args ...string) {
	j.t.Helper()
	j.starts++
	log, err := os.Create(filepath.Join(j.dir, "log."+strconv.Itoa(j.starts)))
	if err != nil {
		j.t.Fatal(err)
	}
	defer log.Close()
	j.cmd = j.command(args...)
	j.cmd.Stdout, j.cmd.Stderr = log, log
	if j.piped {
		copied, err := os.OpenFile(log.Name(), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			j.t.Fatal(err)
		}
		j.t.Cleanup(func() { _ = copied.Close() })
		j.cmd.Stdout, j.cmd.Stderr, j.cmd.WaitDelay = nil, struct{ io.Writer }{copied}, time.Second
	}
	if err := j.cmd.Start(); err != nil {
		j.t.Fatal(err)
	}
	cmd, ended := j.cmd, make(chan struct{})
	j.ended = ended
	go func() { _ = cmd.Wait(); close(ended) }()
	if j.dies != nil {
		if after, does := j.dies(); does {
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
	}
	j.poll("the controller answers", func() error {
		m := answers.FindStringSubmatch(j.log(j.starts))
		switch {
		case m != nil && j.uid != "" && m[1] != j.uid:
			j.t.Fatalf("the job was %s, and this controller runs %s", j.uid, m[1])
		case m != nil:
			j.uid, j.url = m[1], m[2]
			return nil
		case j.killed():
			return nil
		}
		return errors.New("it has not said where")
	})
}

// killed reports whether the controller has been killed. Another end is an error.
func (j *job) killed() bool {
	j.t.Helper()
	select {
	case <-j.ended:
	default:
		return false
	}
	if w, ok := j.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !w.Signaled() || w.Signal() != syscall.SIGKILL {
		j.t.Fatalf("controller %d ended: %v", j.starts, j.cmd.ProcessState)
	}
	return true
}

// poll looks until nothing is wrong.
func (j *job) poll(what string, wrong func() error) {
	j.t.Helper()
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
		case <-over.C:
			j.t.Fatalf("not within %s: %s: %v", patience, what, err)
		}
	}
}

// eventually looks until nothing is wrong, and begins a new controller whenever the last has been killed.
func (j *job) eventually(what string, wrong func() error) {
	j.t.Helper()
	j.poll(what, func() error {
		for j.killed() {
			j.revive()
		}
		return wrong()
	})
}

// revive starts the next controller.
func (j *job) revive() {
	j.t.Helper()
	j.deaths++
	undo := j.undo
	if undo {
		j.undo = false
		undoNewest(j.t, j.journal())
	}
	j.start()
	if undo && !strings.Contains(j.log(j.starts), "the newest commit of the journal is missing") {
		j.t.Error("it is not said that a commit is missing")
	}
}

func (j *job) journal() string { return filepath.Join(j.dir, "state", "journal.db") }

// kill kills the controller and waits for its end.
func (j *job) kill() {
	_ = j.cmd.Process.Kill()
	<-j.ended
}

// interrupt ends the job as Ctrl-C does, with whatever controllers that takes, and looks for what is left.
func (j *job) interrupt(between func()) {
	j.t.Helper()
	for range 100 {
		if err := j.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			j.t.Fatal(err)
		}
		select {
		case <-j.ended:
		case <-time.After(patience):
			j.t.Fatalf("the job has not ended after %s", patience)
		}
		if j.cmd.ProcessState.ExitCode() == 130 {
			for _, left := range j.rig().Left() {
				j.t.Errorf("left: %s", left)
			}
			return
		}
		if j.killed() {
			j.revive()
			between()
		}
	}
	j.t.Error("it is killed whenever it is stopped")
}

var client = http.Client{Timeout: 10 * time.Second}

// get reads JSON from the controller.
func (j *job) get(path string, into any) error { return j.ask(http.MethodGet, path, into) }

// post tells the controller something.
func (j *job) post(path string) error { return j.ask(http.MethodPost, path, nil) }

func (j *job) ask(method, path string, into any) error {
	req, err := http.NewRequest(method, j.url+path, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// standing is how the job stands.
type standing struct {
	job   httpapi.Job
	roles map[string]httpapi.Role
}

func (j *job) look() (standing, error) {
	s := standing{roles: map[string]httpapi.Role{}}
	var list httpapi.RoleList
	if err := errors.Join(j.get("/api/v1/job", &s.job), j.get("/api/v1/roles", &list)); err != nil {
		return s, err
	}
	for _, r := range list.Roles {
		s.roles[string(r.Name)] = r
	}
	return s, nil
}

// ill says which role is not well: running, healthy, and every worker with a step.
func (s standing) ill() error {
	for _, r := range s.roles {
		ok := r.Healthy && r.State == "running"
		for _, w := range r.Workers {
			ok = ok && w.PID > 0 && w.Step != nil
		}
		if !ok {
			return fmt.Errorf("%s is not well: %+v", r.Name, r)
		}
	}
	return nil
}

// lives are the pids of all workers by their lives.
func (s standing) lives() map[string]int {
	all := map[string]int{}
	for _, r := range s.roles {
		for _, w := range r.Workers {
			all[w.Life] = w.PID
		}
	}
	return all
}

// unharmed demands that every worker that was there is there still, but for those of these roles.
func (j *job) unharmed(was, now standing, but ...string) {
	j.t.Helper()
	is := now.lives()
	for life, pid := range was.lives() {
		if name := strings.Split(life, "/")[1]; is[life] != pid && !slices.Contains(but, name) {
			j.t.Errorf("%s was well and was restarted", life)
		}
	}
}
