package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/e2e/rig"
	"vigil/internal/wire/httpapi"
)

// controllerURL is where the controller of the unit answers, since nothing says otherwise.
const controllerURL = "http://127.0.0.1:8000"

// kept is the guest's folder for what is to be known after the next boot.
const kept = "/var/lib/vm"

// trainer is the ordinary user.
const trainer = 1000

// run runs a program in the guest and returns what it prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s\n%s", name, strings.Join(args, " "), err, out, log())
	}
	return strings.TrimSpace(string(out))
}

// log is what the units have printed.
func log() string {
	out, _ := exec.Command("journalctl", "--boot", "--no-pager", "--output=cat", "--lines=60", "--unit=vigil@*", "--unit=user@*", "--unit=card").CombinedOutput()
	return string(out)
}

// until looks until nothing is wrong.
func until(t *testing.T, what string, wrong func() error) {
	t.Helper()
	over := time.NewTimer(patience / 2)
	defer over.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := wrong()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-over.C:
			t.Fatalf("not within %s: %s: %v\n%s", patience/2, what, err, log())
		}
	}
}

// ask makes a request as the job's owner.
func ask(method, path string, into any) error {
	req, err := http.NewRequest(method, controllerURL+path, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// running waits until a role runs, is healthy and has spoken, in this incarnation or a later one.
func running(t *testing.T, name string, incarnation uint64) httpapi.Role {
	t.Helper()
	var r httpapi.Role
	until(t, name+" runs", func() error {
		r = httpapi.Role{}
		if err := ask(http.MethodGet, "/api/v1/roles/"+name, &r); err != nil {
			return err
		}
		if r.State != "running" || !r.Healthy || uint64(r.Incarnation) < incarnation || len(r.Workers) == 0 || r.Workers[0].Step == nil {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	return r
}

func jobOf(t *testing.T) httpapi.Job {
	t.Helper()
	var j httpapi.Job
	until(t, "the controller answers", func() error { return ask(http.MethodGet, "/api/v1/job", &j) })
	return j
}

// write makes a file of the guest, and its folder.
func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func slurp(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// install does what deploy/systemd/README.md says, and gives the unit this job.
func install(t *testing.T, name, job string) (unit string) {
	t.Helper()
	run(t, "install", "-D", "-t", "/usr/local/bin", "/vm/bin/controller", "/vm/bin/service")
	run(t, "install", "-D", "-m", "0644", "/vm/deploy/systemd/vigil@.service", "/etc/systemd/system/vigil@.service")
	write(t, "/etc/vigil/"+name+".yaml", job, 0o600)
	run(t, "systemctl", "daemon-reload")
	return "vigil@" + name
}

// left returns what there is of a job that has ended, with the runtime directory that its user's programs have.
func left(t *testing.T, uid, runtime string) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(runtime, filepath.Join(dir, "run")); err != nil {
		t.Fatal(err)
	}
	return (&rig.Job{UID: uid, URL: controllerURL, Dir: dir}).Left()
}

// leavesNothing looks for what is left of a job that has ended, and for the processes that escaped from its workers.
func leavesNothing(t *testing.T, uid, runtime, escaped string) {
	t.Helper()
	for _, one := range left(t, uid, runtime) {
		t.Errorf("left: %s", one)
	}
	files, _ := filepath.Glob(escaped + ".*")
	if len(files) == 0 {
		t.Errorf("no process has escaped, of which %s would tell", escaped)
	}
	for _, file := range files {
		if gone(t, file) != nil {
			t.Errorf("left: what %s names", file)
		}
	}
}

// gone says whether the process that a file names is no more; a zombie that waits for pid 1 is not.
func gone(t *testing.T, file string) error {
	t.Helper()
	text, err := os.ReadFile("/proc/" + slurp(t, file) + "/stat")
	if err != nil || strings.Contains(string(text), ") Z ") {
		return nil //nolint:nilerr // that is what is asked for
	}
	return fmt.Errorf("%s: %s", file, text)
}

// services returns the pids of a job's services.
func services(uid string) (all []int) {
	for pid, p := range (&rig.Job{UID: uid}).Processes() {
		if p.Life() == "" {
			all = append(all, pid)
		}
	}
	return all
}

func TestTheGuest(t *testing.T) {
	guest(t)
	if name := slurp(t, "/proc/1/comm"); name != "systemd" {
		t.Errorf("pid 1 is %s", name)
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		t.Errorf("/sys/fs/cgroup: %v, type %x", err, st.Type)
	}
	if strings.Contains(slurp(t, "/proc/mounts"), " cgroup ") {
		t.Error("there are cgroups of version 1")
	}
	run(t, "systemctl", "is-active", "multi-user.target", "--quiet", "--wait")
}

// leaves is a job whose worker has a port, and a process that escapes from its session and its environment and ignores
// signals; then it does this. No global restart may be spent, so that its third failure ends it.
func leaves(name, escaped, then string) string {
	return fmt.Sprintf(`name: %s
controller: {max_global_restart: 0}
roles:
  main:
    command: [/vm/bin/worker, 'escape=%s.$VIGIL_INCARNATION', 'listen=$P', %s]
    ports: {p: auto}
    env: {P: '${port.p}'}
    stop: {grace: 1s}
    restart: {backoff: {base: 0}}
`, name, escaped, then)
}

// killAll kills the controller and its services at once.
func killAll(t *testing.T, main, uid string) {
	t.Helper()
	pid, err := strconv.Atoi(main)
	if err != nil || pid < 2 {
		t.Fatalf("the controller's pid is %q", main)
	}
	all := append(services(uid), pid)
	if len(all) < 2 {
		t.Fatal("there is no service")
	}
	for _, pid := range all {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

// shows: A08 A12
func TestTheUnitLeavesNothing(t *testing.T) {
	guest(t)
	escaped := filepath.Join(t.TempDir(), "escaped")
	unit := install(t, "ends", leaves("ends", escaped, "beat"))
	run(t, "systemctl", "start", unit)
	was := running(t, "main", 1)
	uid := jobOf(t).UID
	if group := slurp(t, fmt.Sprintf("/proc/%d/cgroup", was.Workers[0].PID)); !strings.Contains(group, "/"+unit+".service/") || !strings.Contains(group, "/vigil-"+uid) {
		t.Errorf("the worker's cgroup is %s", group)
	}
	if err := unix.Kill(was.Workers[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	running(t, "main", 2)
	until(t, "what escaped from the first life is gone", func() error { return gone(t, escaped+".1") })

	killAll(t, run(t, "systemctl", "show", "--value", "--property=MainPID", unit), uid)
	running(t, "main", 3)
	until(t, "what escaped from the second life is gone", func() error { return gone(t, escaped+".2") })
	if now := jobOf(t).UID; now != uid {
		t.Errorf("the run is %s, and was %s", now, uid)
	}
	run(t, "systemctl", "stop", unit)
	leavesNothing(t, uid, "/run/vigil", escaped)
	if state := run(t, "systemctl", "show", "--value", "--property=Result", unit); state != "success" {
		t.Errorf("the unit's result is %s", state)
	}
}

// shows: A08
func TestTheUnitOfAJobThatFailsLeavesNothing(t *testing.T) {
	guest(t)
	folder := t.TempDir()
	escaped := filepath.Join(folder, "escaped")
	unit := install(t, "fails", leaves("fails", escaped, fmt.Sprintf("'await=%s/go', 'exit=3'", folder)))
	run(t, "systemctl", "start", unit)
	uid := jobOf(t).UID
	write(t, filepath.Join(folder, "go"), "", 0o644)
	until(t, "the unit fails", func() error {
		return exec.Command("systemctl", "--quiet", "is-failed", unit).Run()
	})
	if said := run(t, "systemctl", "show", "--value", "--property=ExecMainStatus,NRestarts", unit); strings.Join(strings.Fields(said), " ") != "0 1" && strings.Join(strings.Fields(said), " ") != "1 0" {
		t.Errorf("its status and how often it was started again: %s", said)
	}
	leavesNothing(t, uid, "/run/vigil", escaped)
}

// shows: A08 A12
func TestAnOrdinaryUsersUnitLeavesNothing(t *testing.T) {
	guest(t)
	as := func(args ...string) string {
		t.Helper()
		return run(t, "setpriv", append([]string{"--reuid=trainer", "--regid=trainer", "--init-groups", "env", "-i", "PATH=" + os.Getenv("PATH"),
			"HOME=/home/trainer", "XDG_RUNTIME_DIR=" + fmt.Sprintf("/run/user/%d", trainer)}, args...)...)
	}
	folder := t.TempDir()
	for dir := folder; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	escaped := filepath.Join(folder, "escaped")
	install(t, "mine", leaves("mine", escaped, "beat"))
	if err := os.Chmod("/etc/vigil/mine.yaml", 0o644); err != nil {
		t.Fatal(err)
	}
	var mine []string
	for line := range strings.Lines(slurp(t, "/vm/deploy/systemd/vigil@.service") + "\n") {
		if !strings.HasPrefix(line, "StateDirectory") {
			mine = append(mine, strings.Replace(line, " --state-dir /var/lib/vigil/%i", "", 1))
		}
	}
	write(t, "/home/trainer/.config/systemd/user/vigil@.service", strings.Join(mine, ""), 0o644)
	run(t, "chown", "-R", "trainer:trainer", "/home/trainer")
	run(t, "loginctl", "enable-linger", "trainer")
	until(t, "the user's systemd", func() error { _, err := os.Stat(fmt.Sprintf("/run/user/%d/systemd/private", trainer)); return err })
	as("systemctl", "--user", "daemon-reload")
	as("systemctl", "--user", "start", "vigil@mine")
	running(t, "main", 1)
	uid := jobOf(t).UID
	killAll(t, as("systemctl", "--user", "show", "--value", "--property=MainPID", "vigil@mine"), uid)
	running(t, "main", 2)
	until(t, "what escaped from the first life is gone", func() error { return gone(t, escaped+".1") })
	as("systemctl", "--user", "stop", "vigil@mine")
	leavesNothing(t, uid, fmt.Sprintf("/tmp/vigil-%d", trainer), escaped)
}

// shows: CARD2
func TestDebiansPrometheusScrapesTheCard(t *testing.T) {
	guest(t)
	run(t, "systemd-run", "--quiet", "--unit=card", "--setenv=HOME="+t.TempDir(), "--property=KillMode=process", "--property=SuccessExitStatus=143",
		"/vm/bin/controller", "--use-health-check", "--max-global-restart", "3")
	for _, name := range []string{"actor", "rollout", "critic", "actor_fwd", "advantages"} {
		running(t, name, 1)
	}
	run(t, "install", "-m", "0644", "-t", "/etc/prometheus", "/vm/deploy/prometheus/prometheus.yml", "/vm/deploy/prometheus/alerts.yml")
	run(t, "systemctl", "start", "prometheus")
	until(t, "Prometheus has scraped five healthy roles", func() error {
		out, err := exec.Command("curl", "-sG", "--data-urlencode", `query=sum(vigil_role_healthy)*on()up{job="vigil"}`, "http://127.0.0.1:9090/api/v1/query").Output()
		if !strings.Contains(string(out), `,"5"]`) {
			return fmt.Errorf("%w: %s", errors.Join(err, errors.New("it answers")), out)
		}
		return nil
	})
	if user := run(t, "ps", "-o", "user=", "-p", run(t, "systemctl", "show", "--value", "--property=MainPID", "prometheus")); !strings.HasPrefix("prometheus", strings.TrimRight(user, "+")) {
		t.Errorf("Prometheus runs as %s", user)
	}
	run(t, "systemctl", "stop", "prometheus")
	uid := jobOf(t).UID
	run(t, "systemctl", "stop", "card")
	for _, one := range left(t, uid, "/run/vigil") {
		t.Errorf("left: %s", one)
	}
}
