// Package rig runs a job under the real controller for a test: it builds the program, starts it with
// folders of its own, follows what the controller says, and looks for what is left when it has ended.
package rig

import (
	"context"
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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/wire/httpapi"
)

// Controller is the program that Main has built.
var Controller string

// Main builds the controller, runs the tests of a package two levels below the root, and returns the
// exit status for their TestMain.
func Main(m *testing.M) int {
	bin, err := os.MkdirTemp("", "vigil-rig-")
	if err == nil {
		defer func() { _ = os.RemoveAll(bin) }()
		Controller = filepath.Join(bin, "controller")
		build := exec.Command("go", "build", "-o", Controller, "../../cmd/controller")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the controller:", err)
		return 1
	}
	return m.Run()
}

// Folder makes a short folder, so that sockets fit, which goes with the test.
func Folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "vr-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Options say how a job is run.
type Options struct {
	Workdir  string        // of the controller
	Environ  []string      // what it inherits
	Args     []string      // its arguments
	Patience time.Duration // how long anything may take
	Look     time.Duration // between two looks at events and incidents; 0: nobody looks
}

// Job is one running job. Its methods fail the test that began it.
type Job struct {
	UID string
	URL string
	Dir string // of state, sockets and the controller's log

	t        *testing.T
	patience time.Duration
	cmd      *exec.Cmd
	ended    chan struct{}
	client   *http.Client

	follow    sync.WaitGroup
	mu        sync.Mutex
	events    []event.Event
	missed    uint64
	incidents []httpapi.Incident // oldest first
}

// Begin starts the controller and waits until it answers.
func Begin(t *testing.T, o Options) *Job {
	t.Helper()
	j := &Job{t: t, patience: o.Patience, Dir: Folder(t), ended: make(chan struct{}), client: &http.Client{Timeout: 10 * time.Second}}
	log, err := os.Create(filepath.Join(j.Dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	j.cmd = exec.Command(Controller, o.Args...)
	j.cmd.Dir = o.Workdir
	j.cmd.Env = append(slices.Clone(o.Environ), "VIGIL_OPT_STATE_DIR="+filepath.Join(j.Dir, "state"),
		"VIGIL_OPT_RUNTIME_DIR="+filepath.Join(j.Dir, "run"), "VIGIL_OPT_HTTP=127.0.0.1:0")
	j.cmd.Stdout, j.cmd.Stderr = log, log
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = j.cmd.Wait(); close(j.ended) }()
	t.Cleanup(j.clean)
	started := regexp.MustCompile(`job started job=(\S+) .*http=(\S+)`)
	j.Eventually("the controller answers", func() error {
		m := started.FindStringSubmatch(j.Log())
		if m == nil {
			return errors.New("it has not said where")
		}
		j.UID, j.URL = m[1], m[2]
		return nil
	})
	if o.Look > 0 {
		j.follow.Go(func() { j.listen(o.Look) })
	}
	return j
}

// clean ends what is left when a test has failed midway, and shows the end of the log then.
func (j *Job) clean() {
	_ = j.cmd.Process.Kill()
	<-j.ended
	j.follow.Wait()
	if j.t.Failed() {
		said := strings.Split(j.Log(), "\n")
		j.t.Logf("the controller said at last:\n%s", strings.Join(said[max(0, len(said)-150):], "\n"))
	}
	for pid := range j.Processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Log returns what the controller has printed.
func (j *Job) Log() string {
	text, err := os.ReadFile(filepath.Join(j.Dir, "log"))
	if err != nil {
		j.t.Fatal(err)
	}
	return string(text)
}

// PID is the controller's.
func (j *Job) PID() int { return j.cmd.Process.Pid }

// listen keeps the events and the incidents until the controller is gone.
func (j *Job) listen(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for after := uint64(0); ; {
		var list httpapi.EventList
		if j.Get(fmt.Sprintf("/api/v1/events?limit=10000&after=%d", after), &list) == nil {
			after = list.Next
			j.mu.Lock()
			j.events, j.missed = append(j.events, list.Events...), j.missed+list.Missed
			j.mu.Unlock()
		}
		var incidents httpapi.IncidentList
		if j.Get("/api/v1/incidents", &incidents) == nil {
			j.keep(incidents.Incidents)
		}
		select {
		case <-tick.C:
		case <-j.ended:
			return
		}
	}
}

// keep takes in the newest incidents, newest first; the controller need not keep them all.
func (j *Job) keep(newest []httpapi.Incident) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, one := range slices.Backward(newest) {
		if i := slices.IndexFunc(j.incidents, func(had httpapi.Incident) bool { return had.ID == one.ID }); i >= 0 {
			j.incidents[i] = one
		} else {
			j.incidents = append(j.incidents, one)
		}
	}
}

// Events returns what was heard, oldest first, and how many were not.
func (j *Job) Events() (heard []event.Event, missed uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.events), j.missed
}

// Incidents returns what was last heard of each, oldest first.
func (j *Job) Incidents() []httpapi.Incident {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.incidents)
}

// Roles returns how the roles stand.
func (j *Job) Roles() ([]httpapi.Role, error) {
	var list httpapi.RoleList
	err := j.Get("/api/v1/roles", &list)
	return list.Roles, err
}

// Get reads JSON from the controller.
func (j *Job) Get(path string, into any) error {
	answer, err := j.client.Get(j.URL + path)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return fmt.Errorf("GET %s: %s: %s", path, answer.Status, text)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// Post does what curl -d BODY does.
func (j *Job) Post(path, body string) error {
	answer, err := j.client.Post(j.URL+path, "text/plain", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: %s: %s", path, answer.Status, text)
	}
	return nil
}

// Eventually looks until nothing is wrong. It fails the test when the job ends before, or patience does.
func (j *Job) Eventually(what string, wrong func() error) {
	j.t.Helper()
	over := time.NewTimer(j.patience)
	defer over.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := wrong()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-j.ended:
			if err := wrong(); err != nil {
				j.t.Fatalf("the job ended (%v) before %s: %v", j.cmd.ProcessState, what, err)
			}
			return
		case <-over.C:
			j.t.Fatalf("not within %s: %s: %v", j.patience, what, err)
		}
	}
}

// Pause waits; it fails the test if the job ends meanwhile.
func (j *Job) Pause(d time.Duration) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	select {
	case <-ctx.Done():
	case <-j.ended:
		j.t.Fatalf("the job ended: %v", j.cmd.ProcessState)
	}
}

// End waits for the end of the job with this exit status, and looks whether anything is left. It returns
// what is, which is an error of the test.
func (j *Job) End(exit int) []string {
	j.t.Helper()
	select {
	case <-j.ended:
	case <-time.After(j.patience):
		j.t.Fatalf("the job has not ended after %s", j.patience)
	}
	j.follow.Wait()
	if code := j.cmd.ProcessState.ExitCode(); code != exit {
		j.t.Errorf("the job ended with %v, want %d", j.cmd.ProcessState, exit)
	}
	left := j.Left()
	for _, one := range left {
		j.t.Errorf("left: %s", one)
	}
	return left
}
