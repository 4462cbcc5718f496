package prometheus_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"
)

// sick is a job whose critic always fails. Its first restart is at once, the second a minute later, so
// that it stays unhealthy.
const sick = `name: sick
controller: {use_health_check: true, http: "127.0.0.1:0"}
roles:
  actor:
    command: ["%PROGRAM%", example-worker, actor]
  critic:
    command: [sh, -c, "echo out of memory >&2; exit 3"]
    restart: {escalate_at: 0, backoff: {base: 1m, max: 1m}}
`

// shows: FAULT-A3
func TestARealPrometheusScrapesARunningControllerAndTheAlertFiresForTheRoleThatIsIll(t *testing.T) {
	prometheus := tool(t, "prometheus")
	controller := startController(t, sick)
	base := startPrometheus(t, prometheus, hasten(t, controller))
	var firing []alert
	if !poll(time.Minute, func() bool { firing = firingAlerts(base); return len(firing) > 0 }) {
		t.Fatal("nothing fired within a minute")
	}
	if len(firing) != 1 || firing[0].Labels["alertname"] != "VigilRoleUnhealthy" || firing[0].Labels["role"] != "critic" || firing[0].Labels["instance"] != controller {
		t.Errorf("fires: %v; want only VigilRoleUnhealthy of critic at %s", firing, controller)
	}
	for query, want := range map[string]string{
		`up{job="vigil"}`:                                            "1",
		`vigil_role_healthy{role="actor"}`:                           "1",
		`vigil_role_healthy{role="critic"}`:                          "0",
		`sum(vigil_failures_total{role="critic"})`:                   "2",
		`sum(vigil_restarts_total{role="critic",action="in_place"})`: "2",
		`vigil_role_step{role="actor"} > bool 0`:                     "1",
	} {
		if got := ask(t, base, query); !slices.Equal(got, []string{want}) {
			t.Errorf("Prometheus answers %s with %q, want %s", query, got, want)
		}
	}
}

var answersAt = regexp.MustCompile(`http=http://(\S+)`)

// startController runs a job that ends with the test, in order, and returns its address once it answers.
func startController(t *testing.T, jobFile string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-") // short, so that sockets fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "controller")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/controller").CombinedOutput(); err != nil {
		t.Fatalf("build the controller: %v\n%s", err, out)
	}
	file := filepath.Join(dir, "job.yaml")
	text := regexp.MustCompile(`%PROGRAM%`).ReplaceAllLiteralString(jobFile, program)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--job", file, "--state-dir", filepath.Join(dir, "state"), "--runtime-dir", filepath.Join(dir, "run"))
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		slow := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		if !slow.Stop() || cmd.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
			t.Errorf("the controller ended with %v", cmd.ProcessState)
		}
		if t.Failed() {
			t.Logf("the controller said:\n%s", log.String())
		}
	})
	var at []string
	if !poll(20*time.Second, func() bool { at = answersAt.FindStringSubmatch(log.String()); return at != nil }) {
		t.Fatal("the controller does not say where it answers")
	}
	return at[1]
}

// ask returns the values of an instant query.
func ask(t *testing.T, base, query string) []string {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(base + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var body struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, r := range body.Data.Result {
		if v, ok := r.Value[1].(string); ok {
			values = append(values, v)
		}
	}
	return values
}
