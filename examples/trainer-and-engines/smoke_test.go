// Package engines_test runs the servers of the example job without vigil, with an environment made by
// hand: what an engine promises its trainer, and what the router does with engines that come and go.
package engines_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vigil/internal/job"
)

// patience is how long anything may take on a busy machine.
const patience = 4 * time.Minute

func TestTheEnginesOfTheJobFileNeedNoOthers(t *testing.T) {
	j, err := job.Load("job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	engine, _ := j.Role("engine")
	if engine.Restart.Unit != job.UnitWorker || engine.Restart.Rejoin != job.RejoinManual || engine.Distributed != job.None {
		t.Errorf("%+v", engine)
	}
}

// shop is a folder for one router and its engines.
type shop struct {
	t   *testing.T
	dir string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3 on this machine, so the example's servers were not run")
	}
	return &shop{t, t.TempDir()}
}

func (s *shop) command(rank int, environ []string, args ...string) *exec.Cmd {
	cmd := exec.Command("python3", args...)
	cmd.Env = append(os.Environ(), "ENGINES_DIR="+s.dir, "ENGINES_LOAD=0", "PYTHONDONTWRITEBYTECODE=1", "VIGIL_RANK="+strconv.Itoa(rank),
		"VIGIL_PEERS_FILE="+filepath.Join(s.dir, "peers.json"))
	cmd.Env = append(cmd.Env, environ...)
	return cmd
}

// server starts a program and waits until it answers.
func (s *shop) server(program string, rank int) (url string, cmd *exec.Cmd) {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	address := l.Addr().(*net.TCPAddr)
	l.Close()
	cmd = s.command(rank, nil, program, "--port", strconv.Itoa(address.Port))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	url = "http://" + address.String()
	s.eventually(program+" answers", func() error { return s.ask("GET", url+"/health", "", 200, nil) })
	return url, cmd
}

func (s *shop) eventually(what string, wrong func() error) {
	s.t.Helper()
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
			s.t.Fatalf("not within %s: %s: %v", patience, what, err)
		}
	}
}

// ask makes one request and returns an error if the status is another than this.
func (s *shop) ask(method, url, body string, want int, into any) error {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 15 * time.Second}
	answer, err := client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != want {
		return fmt.Errorf("%s %s: %s, want %d", method, url, answer.Status, want)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

func (s *shop) must(method, url, body string, want int) {
	s.t.Helper()
	if err := s.ask(method, url, body, want, nil); err != nil {
		s.t.Error(err)
	}
}

// complete returns version and texts of one completion.
func (s *shop) complete(url string) (version string, texts []string) {
	s.t.Helper()
	var got struct {
		Fingerprint string `json:"system_fingerprint"`
		Choices     []struct{ Text string }
	}
	if err := s.ask("POST", url+"/v1/completions", `{"prompt": "1+2=", "n": 20, "seed": 7}`, 200, &got); err != nil {
		s.t.Error(err)
	}
	for _, c := range got.Choices {
		texts = append(texts, c.Text)
	}
	return got.Fingerprint, texts
}

// weights is a body for /update_weights under which every sum is three.
func weights(version string) string {
	all := map[string][10]float64{}
	for a := range 5 {
		for b := range 5 {
			all[fmt.Sprintf("%d+%d=", a, b)] = [10]float64{3: 50}
		}
	}
	text, err := json.Marshal(map[string]any{"version": version, "weights": all})
	if err != nil {
		panic(err) // numbers and text only
	}
	return string(text)
}

func TestAnEngineCompletesWithTheWeightsThatItWasGivenLast(t *testing.T) {
	s := newShop(t)
	url, _ := s.server("engine.py", 0)
	version, texts := s.complete(url)
	if _, again := s.complete(url); version != "untrained" || len(texts) != 20 || !slices.Equal(texts, again) {
		t.Errorf("weights %q, %v and again %v", version, texts, again)
	}
	s.must("POST", url+"/update_weights", weights("1.5"), 409) // not while it completes
	s.must("POST", url+"/pause", "", 200)
	s.must("POST", url+"/v1/completions", `{"prompt": "1+2="}`, 503)
	s.must("GET", url+"/health", "", 503)
	s.must("POST", url+"/update_weights", `{"version": "1.5", "weights": {"1+2=": []}}`, 400)
	s.must("POST", url+"/update_weights", weights("1.5"), 200)
	s.must("POST", url+"/resume", "", 200)
	if version, texts = s.complete(url); version != "1.5" || slices.ContainsFunc(texts, func(x string) bool { return x != "3" }) {
		t.Errorf("weights %q, %v", version, texts)
	}
	s.must("POST", url+"/v1/completions", `{"prompt": "what?"}`, 400)
	s.must("POST", url+"/v1/completions", `{`, 400)
	s.must("GET", url+"/v1/models", "", 200)
	s.must("GET", url+"/nothing", "", 404)
}

// hook runs what the role's hooks run.
func (s *shop) hook(verb, engine string) {
	s.t.Helper()
	cmd := s.command(0, []string{"VIGIL_WORKER_ADDR=" + strings.TrimPrefix(engine, "http://")}, "tell_router.py", verb)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Errorf("tell_router.py %s %s: %v\n%s", verb, engine, err, out)
	}
}

// served returns how many requests each engine of the router has answered.
func (s *shop) served(router string) map[string]int {
	s.t.Helper()
	var list struct {
		Workers []struct {
			URL    string
			Served int
		}
	}
	if err := s.ask("GET", router+"/list_workers", "", 200, &list); err != nil {
		s.t.Fatal(err)
	}
	all := map[string]int{}
	for _, w := range list.Workers {
		all[w.URL] = w.Served
	}
	return all
}

func TestTheRouterAsksThoseThatTheHooksAddAndPassesOverWhoDoesNotAnswer(t *testing.T) {
	s := newShop(t)
	first, dies := s.server("engine.py", 0)
	second, _ := s.server("engine.py", 1)
	s.hook("remove", first) // there is no router yet
	router, _ := s.server("router.py", 0)
	s.must("POST", router+"/v1/completions", `{"prompt": "1+2="}`, 503)
	s.hook("add", first)
	s.hook("add", second)
	s.hook("add", second) // as before
	for range 6 {
		s.complete(router)
	}
	if got := s.served(router); len(got) != 2 || got[first] != 3 || got[second] != 3 {
		t.Errorf("six requests went to %v", got)
	}
	s.knob("engine-0.die")
	if err := dies.Wait(); dies.ProcessState.ExitCode() != 3 {
		t.Errorf("the engine ended with %v", err)
	}
	s.complete(router)
	s.complete(router)
	s.hook("remove", first)
	s.hook("remove", "http://127.0.0.1:1") // that it never knew
	if got := s.served(router); len(got) != 1 || got[second] != 5 {
		t.Errorf("the engine that is left has %v", got)
	}
}

func TestARouterThatIsBegunAgainFindsTheEnginesThatAreReady(t *testing.T) {
	s := newShop(t)
	text := `{"roles": {"engine": [{"rank": 0, "address": "127.0.0.1", "ports": {"http": 1}, "state": "ready", "life": "x/engine/1/0/1"},
		{"rank": 1, "address": "127.0.0.1", "ports": {"http": 2}, "state": "quarantined", "life": "x/engine/1/1/2"}]}}`
	if err := os.WriteFile(filepath.Join(s.dir, "peers.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	router, _ := s.server("router.py", 0)
	if got := s.served(router); len(got) != 1 || got["http://127.0.0.1:1"] != 0 {
		t.Errorf("it asks %v", got)
	}
}

func TestAnEngineRefusesWeightsAndHangsWhenItIsTold(t *testing.T) {
	s := newShop(t)
	url, _ := s.server("engine.py", 3)
	s.knob("engine-3.refuse")
	s.must("POST", url+"/pause", "", 200)
	s.must("POST", url+"/update_weights", weights("1.5"), 500)
	s.must("POST", url+"/update_weights", weights("1.5"), 200) // once is enough
	s.must("POST", url+"/resume", "", 200)
	s.knob("engine-3.hang")
	client := http.Client{Timeout: 300 * time.Millisecond}
	s.eventually("it hangs", func() error {
		answer, err := client.Get(url + "/health")
		if err == nil {
			answer.Body.Close()
			return errors.New("it answers")
		}
		if e := net.Error(nil); !errors.As(err, &e) || !e.Timeout() {
			t.Fatal(err)
		}
		return nil
	})
}

// knob puts a file into the folder for whoever obeys it.
func (s *shop) knob(name string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}
