// Package prometheus_test holds the Prometheus files of this folder against a real Prometheus and
// promtool, and against the metrics that a controller really shows.
package prometheus_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
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
	"vigil/internal/metrics"
	"vigil/internal/role"
)

// tool finds a program of Debian's package prometheus, or skips the test and says so.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIPPED, NOTHING IS SHOWN: %v; install it with: apt-get install prometheus", err)
	}
	return path
}

// ill is a controller whose critic is unhealthy.
type ill struct{}

func (ill) Snapshot() metrics.Snapshot {
	return metrics.Snapshot{
		Roles: []metrics.Role{
			{Name: "actor", Healthy: true, Step: 7, Incarnation: 1, Workers: []metrics.Worker{{State: role.WorkerReady}}},
			{Name: "critic", Healthy: false, Step: 7, Incarnation: 2, HeartbeatAge: time.Minute},
		},
		MaxGlobalRestarts: 3,
	}
}

func illMetrics() *metrics.Metrics {
	m := metrics.New(metrics.Options{Source: ill{}, Version: "test"})
	e := event.New(time.Now(), event.Decided)
	e.Role, e.Action, e.Rule = "critic", role.InPlace, "role_can_stay"
	m.Observe(e)
	return m
}

func TestPromtoolAcceptsTheConfigurationAndTheRulesFireWhenTheyShould(t *testing.T) {
	promtool := tool(t, "promtool")
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"},
		{"check", "rules", "alerts.yml"},
		{"test", "rules", "alerts_test.yml"},
	} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func TestPromtoolHasNothingToSayAboutTheMetrics(t *testing.T) {
	promtool := tool(t, "promtool")
	w := httptest.NewRecorder()
	illMetrics().Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	lint := exec.Command(promtool, "check", "metrics")
	lint.Stdin = w.Body
	if out, err := lint.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

var metricName = regexp.MustCompile(`vigil_[a-z_]+`)

func TestEveryMetricThatTheAlertsAskForIsShown(t *testing.T) {
	alerts, err := os.ReadFile("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	families, err := illMetrics().Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, f := range families {
		shown = append(shown, f.GetName())
	}
	asked := metricName.FindAllString(string(alerts), -1)
	if len(asked) < 6 {
		t.Errorf("the alerts ask only for %v", asked)
	}
	for _, name := range asked {
		if !slices.Contains(shown, name) {
			t.Errorf("alerts.yml asks for %s, which is not among %v", name, shown)
		}
	}
}

func TestARealPrometheusScrapesTheMetricsAndAnAlertFiresWhenARoleStaysUnhealthy(t *testing.T) {
	prometheus := tool(t, "prometheus")
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", illMetrics().Handler())
	controller := httptest.NewServer(mux)
	t.Cleanup(controller.Close)
	base := startPrometheus(t, prometheus, hasten(t, controller.Listener.Addr().String()))
	var firing []alert
	if !poll(time.Minute, func() bool {
		firing = firingAlerts(base)
		return slices.ContainsFunc(firing, func(a alert) bool { return a.Labels["alertname"] == "VigilRoleUnhealthy" })
	}) {
		t.Fatalf("VigilRoleUnhealthy did not fire within a minute; firing: %v", firing)
	}
	for _, a := range firing {
		if a.Labels["alertname"] != "VigilRoleUnhealthy" || a.Labels["role"] != "critic" {
			t.Errorf("fires too: %v", a)
		}
		if want := "Role critic has been unhealthy for a minute"; a.Annotations["summary"] != want {
			t.Errorf("summary %q, want %q", a.Annotations["summary"], want)
		}
	}
}

// scraper is the user of Prometheus where we are root: another than the controller's, as Debian's package has it.
const scraper = 65534

// folder returns a new one of Prometheus's user.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err == nil && os.Geteuid() == 0 {
		err = os.Chown(dir, scraper, scraper)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// hasten writes the files of this folder to a new one, with a second for every interval and wait and
// with target to scrape, and returns the path of the configuration.
func hasten(t *testing.T, target string) string {
	t.Helper()
	dir := folder(t)
	for name, changes := range map[string][][2]string{
		"prometheus.yml": {{`_interval: \w+`, "_interval: 1s"}, {`127\.0\.0\.1:8000`, target}},
		"alerts.yml":     {{`for: \w+`, "for: 1s"}},
	} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes {
			pattern := regexp.MustCompile(c[0])
			if !pattern.Match(text) {
				t.Fatalf("%s has no %s", name, c[0])
			}
			text = pattern.ReplaceAll(text, []byte(c[1]))
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "prometheus.yml")
}

// startPrometheus starts one that ends with the test, and returns the URL of its interface.
func startPrometheus(t *testing.T, program, config string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(folder(t), "data"), "--web.listen-address="+addr)
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: scraper, Gid: scraper}
	}
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("prometheus ended: %v\n%s", err, log.String())
		}
	})
	return "http://" + addr
}

type alert struct {
	Labels, Annotations map[string]string
	State               string
}

// firingAlerts asks Prometheus; it returns nothing while Prometheus does not answer or is not ready.
func firingAlerts(base string) []alert {
	client := &http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(base + "/api/v1/alerts")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	var body struct{ Data struct{ Alerts []alert } }
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		return []alert{{State: fmt.Sprint(err)}}
	}
	return slices.DeleteFunc(body.Data.Alerts, func(a alert) bool { return a.State != "firing" })
}

// poll asks five times a second until done is true; false when it was not within that time.
func poll(within time.Duration, done func() bool) bool {
	deadline := time.After(within)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline:
			return false
		case <-tick.C:
		}
	}
	return true
}

// lockedBuffer is written by the process's copier while a test may read it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
