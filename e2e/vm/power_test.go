package vm

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/e2e/rig"
	"vigil/internal/wire/httpapi"
)

// A role that trains, and one that is stopped by hand, whose step is journalled before it is answered.
const cutJob = `name: cut
roles:
  main: {command: [/vm/bin/worker, beat], state: none}
  hand: {command: [/vm/bin/worker], state: none}
`

// begin starts the unit unless a boot has, stops one of its roles by hand, and keeps what the next boot is to be compared with.
func begin(t *testing.T) (hand int64) {
	t.Helper()
	unit := install(t, "cut", cutJob)
	run(t, "install", "-m", "0644", "-t", "/etc/systemd/system", "/vm/strangers.service")
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "--quiet", "enable", "strangers", unit)
	run(t, "systemctl", "start", unit)
	if err := ask(http.MethodPost, "/hand/stop_service", nil); err != nil {
		t.Fatal(err)
	}
	main := running(t, "main", 1)
	uid := jobOf(t).UID
	var pids []string
	for pid := range (&rig.Job{UID: uid}).Processes() {
		pids = append(pids, strconv.Itoa(pid))
	}
	if len(pids) < 2 {
		t.Fatalf("only the pids %v are the job's", pids)
	}
	write(t, filepath.Join(kept, "pids"), strings.Join(pids, "\n")+"\n", 0o644)
	write(t, filepath.Join(kept, "uid"), uid, 0o644)
	write(t, filepath.Join(kept, "incarnation"), fmt.Sprint(main.Incarnation), 0o644)
	unix.Sync()
	var step struct{ Step int64 }
	if err := ask(http.MethodGet, "/hand/get_step", &step); err != nil {
		t.Fatal(err)
	}
	return step.Step
}

// The host cuts the power while this goes on.
func TestTheJournalIsWritten(t *testing.T) {
	guest(t)
	for n := begin(t) + 1; ; n++ {
		if err := ask(http.MethodPost, fmt.Sprintf("/hand/set_step?step=%d", n), nil); err != nil {
			t.Fatalf("%v\n%s", err, log())
		}
		fmt.Printf("answered %d\n", n)
	}
}

// shows: A49
func TestAfterAPowerCut(t *testing.T) {
	answered, err := strconv.ParseInt(guest(t), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	goesOn(t, answered, answered+1)
}

func TestBeforeAReboot(t *testing.T) {
	guest(t)
	n := begin(t) + 1000
	if err := ask(http.MethodPost, fmt.Sprintf("/hand/set_step?step=%d", n), nil); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(kept, "step"), strconv.FormatInt(n, 10), 0o644)
}

// shows: A49
func TestAfterAReboot(t *testing.T) {
	guest(t)
	n, err := strconv.ParseInt(slurp(t, filepath.Join(kept, "step")), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	goesOn(t, n, n)
}

// goesOn demands that the unit has started a controller that goes on with the run of the last boot: the step of the role that
// was stopped by hand is one of these, the other role runs in a later life and nothing was spent on that, and no process
// that has got the pid of one of the last boot's was touched.
func goesOn(t *testing.T, least, most int64) {
	t.Helper()
	was, err := strconv.ParseUint(slurp(t, filepath.Join(kept, "incarnation")), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	main := running(t, "main", was+1)
	job := jobOf(t)
	if uid := slurp(t, filepath.Join(kept, "uid")); job.UID != uid {
		t.Errorf("the run is %s, and was %s", job.UID, uid)
	}
	if main.RestartCount != 0 || job.GlobalRestarts != 0 {
		t.Errorf("%d restarts and %d global ones are spent", main.RestartCount, job.GlobalRestarts)
	}
	if main.GivenStep == 0 || main.CurrentStep < main.GivenStep {
		t.Errorf("it was given step %d and is at %d", main.GivenStep, main.CurrentStep)
	}
	var hand httpapi.Role
	var step struct{ Step int64 }
	for path, into := range map[string]any{"/api/v1/roles/hand": &hand, "/hand/get_step": &step} {
		if err := ask(http.MethodGet, path, into); err != nil {
			t.Fatal(err)
		}
	}
	if hand.State != "stopped" || step.Step < least || step.Step > most {
		t.Errorf("hand is %s at step %d; want stopped, at %d to %d", hand.State, step.Step, least, most)
	}
	until(t, "the unit is active", func() error { return exec.Command("systemctl", "--quiet", "is-active", "vigil@cut").Run() })
	if n := run(t, "systemctl", "show", "--value", "--property=NRestarts", "vigil@cut"); n != "0" {
		t.Errorf("the controller was started %s times again", n)
	}
	strangers := strings.Fields(slurp(t, "/run/strangers"))
	if len(strangers) == 0 {
		t.Errorf("nobody has a pid of the last boot: %s", slurp(t, filepath.Join(kept, "pids")))
	}
	for _, pid := range strangers {
		if name, err := os.ReadFile("/proc/" + pid + "/comm"); err != nil || strings.TrimSpace(string(name)) != "sleep" {
			t.Errorf("pid %s, a stranger's, is %q: %v", pid, name, err)
		}
	}
	if t.Failed() {
		t.Logf("the controller says:\n%s", log())
	}
}
