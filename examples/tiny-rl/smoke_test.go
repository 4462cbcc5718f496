// Package tinyrl_test runs the programs of the example job as vigil would, but with an environment
// made by hand: they learn, and each of them may be killed at any time.
package tinyrl_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vigil/internal/job"
)

// patience is how long anything may take on a busy machine.
const patience = 4 * time.Minute

// cluster is one job: the programs, and the folder that they share.
type cluster struct {
	t     *testing.T
	dir   string
	env   []string
	peers string
}

func newCluster(t *testing.T, env ...string) *cluster {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3 on this machine, so the example job was not run")
	}
	dir := t.TempDir()
	return &cluster{t: t, dir: dir, peers: filepath.Join(dir, "peers.json"), env: append(os.Environ(), append(env,
		"TINY_RL_DIR="+filepath.Join(dir, "run"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1",
		"VIGIL_PEERS_FILE="+filepath.Join(dir, "peers.json"), "VIGIL_LIFE=tiny-rl-00000000/any/1/0/1")...)}
}

// program is one running worker.
type program struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	ended  chan struct{}
	notify *net.UnixConn
	output *output

	mu    sync.Mutex
	words []string // heard on the notify socket, with their values
}

// start runs a role's program from a step.
func (c *cluster) start(role string, rank int, resume int64, args ...string) *program {
	c.t.Helper()
	socketDir, err := os.MkdirTemp("", "tiny")
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = os.RemoveAll(socketDir) })
	path := filepath.Join(socketDir, "n")
	p := &program{t: c.t, name: role, ended: make(chan struct{}), output: new(output)}
	if p.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}); err != nil {
		c.t.Fatal(err)
	}
	go p.listen()
	p.cmd = exec.Command("python3", append([]string{role + ".py"}, args...)...)
	p.cmd.Env = append(c.env, "NOTIFY_SOCKET="+path, "VIGIL_ROLE="+role, "VIGIL_RANK="+strconv.Itoa(rank), "VIGIL_RESUME_STEP="+strconv.FormatInt(resume, 10))
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	c.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		_ = p.notify.Close()
		if c.t.Failed() {
			c.t.Logf("%s %d said:\n%s", role, rank, p.output)
		}
	})
	return p
}

// startData runs the data role on a free port and tells the others where it is.
func (c *cluster) startData(resume int64) *program {
	c.t.Helper()
	p := c.start("data", 0, resume, "--port", "0")
	p.wait("line with its address", func() bool { return strings.HasSuffix(p.output.String(), "\n") })
	_, address, _ := strings.Cut(strings.TrimSpace(p.output.String()), "listens on ")
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		c.t.Fatalf("data said %s: %v", p.output, err)
	}
	text := fmt.Sprintf(`{"data": [{"rank": 0, "address": %q, "ports": {"http": %s}, "state": "ready"}]}`, host, port)
	if err := errors.Join(os.WriteFile(c.peers+".new", []byte(text), 0o600), os.Rename(c.peers+".new", c.peers)); err != nil {
		c.t.Fatal(err)
	}
	return p
}

// startAll runs all programs.
func (c *cluster) startAll() map[string]*program {
	c.t.Helper()
	all := map[string]*program{"data": c.startData(0)}
	for _, name := range []string{"rollout", "critic", "advantages", "actor_fwd", "actor"} {
		all[name] = c.start(name, 0, 0)
	}
	return all
}

func (p *program) listen() {
	buf := make([]byte, 4096)
	for {
		n, err := p.notify.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.words = append(p.words, strings.Split(string(buf[:n]), "\n")...)
		p.mu.Unlock()
	}
}

// values returns what followed the key, in the order in which it was said.
func (p *program) values(key string) []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []int64
	for _, w := range p.words {
		if v, ok := strings.CutPrefix(w, key+"="); ok {
			n, _ := strconv.ParseInt(v, 10, 64)
			out = append(out, n)
		}
	}
	return out
}

// wait polls until done says so; the program must not end before.
func (p *program) wait(what string, done func() bool) {
	p.t.Helper()
	over := time.NewTimer(patience)
	defer over.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case <-p.ended:
			p.t.Fatalf("%s ended (%v) before %s", p.name, p.cmd.ProcessState, what)
		case <-over.C:
			p.t.Fatalf("%s: no %s within %s", p.name, what, patience)
		}
	}
}

// beyond waits until the program has said n steps more than it has now.
func (p *program) beyond(n int) {
	p.t.Helper()
	had := len(p.values("X_VIGIL_STEP"))
	p.wait("further steps", func() bool { return len(p.values("X_VIGIL_STEP")) >= had+n })
}

// said returns everything heard on the notify socket.
func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.words, "\n")
}

// end waits for the program's own end and returns how it was.
func (p *program) end() *os.ProcessState {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// metric is one line of metrics.jsonl.
type metric struct {
	Step   int64   `json:"step"`
	Reward float64 `json:"reward"`
}

func (c *cluster) metrics() []metric {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "run", "metrics.jsonl"))
	if err != nil {
		c.t.Fatal(err)
	}
	var out []metric
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var m metric
		if err := d.Decode(&m); err != nil {
			c.t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

func mean(lines []metric) float64 {
	sum := 0.0
	for _, m := range lines {
		sum += m.Reward
	}
	return sum / float64(len(lines))
}

// whole checks that there is a line for every step, once.
func (c *cluster) whole(steps int) []metric {
	c.t.Helper()
	lines := c.metrics()
	if len(lines) != steps {
		c.t.Fatalf("there are %d lines, want %d", len(lines), steps)
	}
	for i, m := range lines {
		if m.Step != int64(i+1) {
			c.t.Fatalf("line %d is of step %d", i+1, m.Step)
		}
	}
	return lines
}

func TestTheMeanRewardRisesAndTheActorEndsWell(t *testing.T) {
	c := newCluster(t, "TINY_RL_STEPS=150", "TINY_RL_PERIOD=0")
	all := c.startAll()
	c.start("rollout", 1, 0)
	if s := all["actor"].end(); s.ExitCode() != 0 {
		t.Fatalf("the actor ended with %v", s)
	}
	lines := c.whole(150)
	if first, last := mean(lines[:20]), mean(lines[130:]); last < first+0.5 || last < 0.5 {
		t.Errorf("mean reward %.2f at first, %.2f at last", first, last)
	}
	for name, p := range all {
		if name == "actor" {
			continue
		}
		if len(p.values("X_VIGIL_STEP")) == 0 {
			t.Errorf("%s has said no step", name)
		}
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if s := p.end(); s.ExitCode() != 128+int(syscall.SIGTERM) {
			t.Errorf("%s was stopped and ended with %v", name, s)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(c.dir, "run", "*", ".new-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAKilledActorGoesOnFromItsCheckpoint(t *testing.T) {
	c := newCluster(t, "TINY_RL_STEPS=60", "TINY_RL_PERIOD=0.01")
	actor := c.startAll()["actor"]
	actor.wait("second checkpoint", func() bool { return len(actor.values("X_VIGIL_CHECKPOINT")) >= 2 })
	actor.kill()
	checkpoints, steps := actor.values("X_VIGIL_CHECKPOINT"), actor.values("X_VIGIL_STEP")
	saved, said := checkpoints[len(checkpoints)-1], steps[len(steps)-1]

	actor = c.start("actor", 0, max(said, saved))
	actor.beyond(1)
	// The actor may have saved once more in the moment before it was killed.
	if got := actor.values("X_VIGIL_STEP")[0]; got != saved+1 && got != saved+11 {
		t.Errorf("goes on with step %d after checkpoint %d", got, saved)
	}
	if s := actor.end(); s.ExitCode() != 0 {
		t.Fatalf("the actor ended with %v", s)
	}
	if !strings.Contains(actor.output.String(), "resumed from checkpoint") {
		t.Error("it does not say that it resumed")
	}
	c.whole(60)
}

func TestEveryProgramSurvivesTheDeathOfEveryOther(t *testing.T) {
	c := newCluster(t, "TINY_RL_STEPS=1000000", "TINY_RL_PERIOD=0")
	all := c.startAll()
	all["actor"].beyond(2)
	for _, name := range []string{"data", "critic", "rollout", "advantages", "actor_fwd", "data", "actor"} {
		said := all[name].values("X_VIGIL_STEP")
		resume := said[len(said)-1]
		all[name].kill()
		if name == "data" {
			all[name] = c.startData(resume) // on another port
		} else {
			all[name] = c.start(name, 0, resume)
		}
		for _, p := range all {
			p.beyond(2)
		}
	}
}

// The shortest limit that a job can set for silence is 5 s. Who waits for a program that hangs must not
// be taken for one that hangs.
func TestWhoWaitsForADataRoleThatHangsSaysSoInTime(t *testing.T) {
	c := newCluster(t, "TINY_RL_STEPS=1000000", "TINY_RL_PERIOD=0")
	all := c.startAll()
	all["actor"].beyond(2)
	if err := all["data"].cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for name, p := range all {
		if name == "data" {
			continue
		}
		p.wait("word that it waits", func() bool { return strings.Contains(p.said(), "STATUS=data cannot be reached") })
	}
}

func TestABodyThatWasCutShortByADeathIsNotPassedOn(t *testing.T) {
	c := newCluster(t)
	data := c.startData(0)
	_, address, _ := strings.Cut(strings.TrimSpace(data.output.String()), "listens on ")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "POST /queue/ready?wait=0 HTTP/1.1\r\nHost: data\r\nContent-Length: 100\r\n\r\n{\"episodes\": ["); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	answer, err := http.Get("http://" + address + "/queue/ready?wait=0.5")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusNoContent {
		t.Errorf("data hands out %q with status %d", body, answer.StatusCode)
	}
}

func TestACheckpointBeyondTheStepResumedFromIsNotComeBackTo(t *testing.T) {
	c := newCluster(t, "TINY_RL_STEPS=60", "TINY_RL_PERIOD=0.01")
	all := c.startAll()
	if s := all["actor"].end(); s.ExitCode() != 0 {
		t.Fatalf("the actor ended with %v", s)
	}
	actor := c.start("actor", 0, 30)
	actor.wait("step", func() bool { return len(actor.values("X_VIGIL_STEP")) > 0 })
	actor.kill()
	// The life before had saved 60. Its way was left at 30, with what was noted of it.
	actor = c.start("actor", 0, 60)
	if s := actor.end(); s.ExitCode() != 0 {
		t.Fatalf("the actor ended with %v", s)
	}
	c.whole(60)
}

func TestTheJobFileIsValid(t *testing.T) {
	j, err := job.Load("job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if j.Lead != "actor" || len(j.Roles) != 6 {
		t.Errorf("lead is %s of %d roles", j.Lead, len(j.Roles))
	}
}

// output keeps what a program prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
