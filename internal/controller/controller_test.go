package controller

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
	"vigil/internal/service"
)

// The test program is the service program too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "service" {
		os.Exit(service.Main(os.Args[2:], os.Stderr))
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 3 * time.Minute

// printed collects what a controller prints.
type printed struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.buf.String()
}

// play is one controller under test.
type play struct {
	*Controller
	said *printed
	out  chan engine.Outcome
}

// begin runs a job until the test ends. self is the service program's controller; nil is this one.
func begin(t *testing.T, file string, self ...string) *play {
	t.Helper()
	return beginWith(t, file, func(o *Options) { o.Self = self })
}

// beginWith is begin with other options.
func beginWith(t *testing.T, file string, change func(*Options)) *play {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "vigil")
	if err != nil {
		t.Fatal(err)
	}
	j, err := job.Parse("job.yaml", []byte(file), dir)
	if err != nil {
		t.Fatal(err)
	}
	said := &printed{}
	o := Options{Job: j, Environ: os.Environ(), UseHealthCheck: true, MaxGlobalRestart: 1, GlobalRestart: "keep", StartTimeout: time.Minute,
		CheckInterval: time.Second, HTTP: "127.0.0.1:0", StateDir: filepath.Join(dir, "state"), RuntimeDir: filepath.Join(dir, "run"), LogFormat: "text", LogLevel: "info", Stderr: said}
	change(&o)
	c, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	p := &play{c, said, make(chan engine.Outcome, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out, err := c.Run(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Errorf("run: %v", err)
		}
		p.out <- out
	}()
	t.Cleanup(func() {
		c.Stop(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Log(said)
		}
		os.RemoveAll(dir)
	})
	return p
}

// until waits until it is so.
func (p *play) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// ready waits until every role runs and is ready.
func (p *play) ready(t *testing.T) {
	t.Helper()
	p.until(t, "every role ready", func() bool {
		recs, _ := p.store.Records()
		for _, r := range recs {
			if !r.Ready {
				return false
			}
		}
		return true
	})
}

const sleepers = `
name: sleepers
roles:
  a: {command: [sleep, "1000"], distributed: none}
  b: {command: [sleep, "1000"], distributed: none}
  c: {command: [sleep, "1000"], distributed: none}
  d: {command: [sleep, "1000"], distributed: none}
`

// Each of four services comes up only when all of them have been started: one that was started after
// another is up would never come.
// shows: D25 FAULT-L1
func TestServicesStartSideBySide(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := `mkdir -p "$0" && : >"$0/$$" || exit 1
until [ "$(ls "$0" | wc -l)" -ge 4 ]; do sleep 0.05; done
exec "$@"`
	p := begin(t, sleepers, "/bin/sh", "-c", script, filepath.Join(t.TempDir(), "started"), self)
	p.ready(t)
}

// A service that ends at its start is not waited for, its last words are shown, and a job in which
// none comes up ends with its reason.
// shows: D7 D25
func TestAServiceThatEndsAtItsStartIsNotWaitedFor(t *testing.T) {
	p := begin(t, strings.ReplaceAll(sleepers, "distributed: none", "distributed: none, restart: {escalate_at: 1, backoff: {base: 0}}"), "/bin/sh", "-c", "echo no rights to register >&2; exit 1")
	out := <-p.out
	if out.Exit != 1 || out.Rule != "global_budget_spent" {
		t.Errorf("the job ended with %+v", out)
	}
	for _, want := range []string{"start service", "it ended: exit code 1", "service.0.log"} {
		if !strings.Contains(p.said.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	p.out <- out
}

// stop_service of a service's own HTTP is what it is on the controller: the role is stopped by hand,
// nothing has failed, and restart begins it again.
// shows: R39
func TestARoleThatIsStoppedAtItsServiceIsStoppedByHand(t *testing.T) {
	p := begin(t, sleepers)
	p.ready(t)
	at := ""
	for _, r := range p.hub.Registrations() {
		if r.ID.Role == "b" {
			at = r.HTTPAddress
		}
	}
	res, err := http.Post("http://"+at+"/b/stop_service", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("stop_service answered %s: %s", res.Status, body)
	}
	p.until(t, "b stopped by hand", func() bool { return p.engine.Status("b").State == role.Stopped })
	if got := p.history.Incidents(); len(got) != 0 {
		t.Errorf("that was taken for failures: %+v", got)
	}
	if _, err := (view{p.Controller}).Restart(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	p.until(t, "b running again", func() bool {
		rec, _ := p.store.Record("b")
		return rec.Ready && rec.Incarnation == 2 && p.engine.Status("b").State == role.Running
	})
	if spent := p.engine.Ledger().Roles["b"].InPlace; spent != 0 {
		t.Errorf("that spent %d restarts", spent)
	}
}

// A worker's step is the step that the controller answers, and a role that is not there is named with
// those that are.
// shows: R6
func TestAnUnknownRoleIsNamedWithThoseThatAre(t *testing.T) {
	p := begin(t, sleepers)
	res, err := http.Post(fmt.Sprintf("%s/nobody/report_error", p.url()), "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusNotFound || !strings.Contains(string(body), `"roles":["a","b","c","d"]`) {
		t.Errorf("answered %s: %s", res.Status, body)
	}
}

// A service that was given up because it did not answer may be back by the time its workers are to be
// stopped: it runs on then, and registers again. It is replaced all the same. Which came first, its word or
// the order, was chance, and so was whether the pid that somebody had seen was gone after the repair.
// shows: FAULT-L5
func TestAServiceThatWasGivenUpIsReplacedAlsoIfItIsBack(t *testing.T) {
	p := begin(t, "name: back\nroles:\n  a: {command: [sleep, '1000'], distributed: none, restart: {on_failure: in_place}}\n")
	p.ready(t)
	before := p.crew.of("a")[0]
	p.crew.lost(before.id, before.service.PID(), role.Unreachable, "its service is unreachable: the test says so") // and it answers
	p.until(t, "the second life of the role runs", func() bool {
		st := p.engine.Status("a")
		return st.Incarnation == 2 && st.State == role.Running
	})
	if after := p.crew.of("a"); len(after) != 1 || after[0].service.PID() == before.service.PID() {
		t.Errorf("pid %d serves the role still", before.service.PID())
	}
	select {
	case <-before.service.Done():
	default:
		t.Error("the service that was given up runs")
	}
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
