package takeover

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vigil/internal/wire/httpapi"
)

// clockVariable names the file whose number of seconds is added to the wall clock of programs that were
// built by jumping. libfaketime does not reach programs without libc, and a time namespace has no wall
// clock of its own.
const clockVariable = "VIGIL_TEST_CLOCK"

// jump is added to Go's package time: the wall clock jumps, the monotonic one does not, as when somebody
// sets the machine's time.
const jump = `package time

import (
	"sync/atomic"
	"syscall"
)

var jumped atomic.Int64

func init() {
	path, ok := syscall.Getenv("` + clockVariable + `")
	if !ok {
		return
	}
	readJump(path)
	go func() {
		for {
			Sleep(5 * Millisecond)
			readJump(path)
		}
	}()
}

func readJump(path string) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	var text [32]byte
	n, _ := syscall.Read(fd, text[:])
	sign, value := int64(1), int64(0)
	for _, c := range text[:max(n, 0)] {
		switch {
		case c == '-':
			sign = -1
		case c >= '0' && c <= '9':
			value = 10*value + int64(c-'0')
		}
	}
	jumped.Store(sign * value)
}
`

// jumping builds the controller with a wall clock that can be set.
func jumping(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "vigil-clock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	std := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const now = "sec, nsec, mono := runtimeNow()\n"
	if !strings.Contains(string(text), now) {
		t.Skipf("SKIPPED: this Go's package time is another, so its clock cannot be set")
	}
	files := map[string]string{"time.go": strings.ReplaceAll(string(text), now, now+"\tsec += jumped.Load()\n"), "jump.go": jump}
	overlay := map[string]map[string]string{"Replace": {}}
	for name, content := range files {
		own := filepath.Join(folder, name)
		if err := os.WriteFile(own, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay["Replace"][filepath.Join(std, name)] = own
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "overlay.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "controller")
	build := exec.Command("go", "build", "-overlay", filepath.Join(folder, "overlay.json"), "-o", program, "../../cmd/controller")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the controller: %v\n%s", err, said)
	}
	return program
}

// clockJob has a role that says steps, and one that is in a phase for as long as it lives.
const clockJob = `name: takeover
roles:
  actor: {command: [WORKER, 'note=lives $VIGIL_LIFE', beat], workers: 2}
  critic:
    command: [WORKER, 'note=lives $VIGIL_LIFE', step=1, 'say=X_VIGIL_PHASE=+eval', beat]
    limits: {phases: {eval: 10m}}
`

// The wall clock is set forward and back by an hour, while there is a controller and while there is none.
// shows: A49
func TestAClockThatJumpsIsNoFailure(t *testing.T) {
	if os.Getenv("VIGIL_TAKEOVER") != "all" {
		t.Skip("LEFT OUT: the standard library is built anew for this; VIGIL_TAKEOVER=all does it")
	}
	t.Parallel()
	j := prepare(t, false, clockJob, "--heartbeat-timeout", "20s")
	j.program = jumping(t)
	clock := filepath.Join(j.dir, "clock")
	j.environ = []string{clockVariable + "=" + clock}
	set := func(seconds int) {
		t.Helper()
		if err := os.WriteFile(clock+".new", fmt.Appendf(nil, "%d\n", seconds), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(clock+".new", clock); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	was := begun(j)
	began := was.roles["actor"].LastHeartbeat
	unharmed := func(when string) {
		t.Helper()
		j.goOn("actor", "critic")
		now := j.well(when)
		j.unharmed(was, now)
		var incidents httpapi.IncidentList
		if err := j.get("/api/v1/incidents", &incidents); err != nil || len(incidents.Incidents) > 0 {
			t.Errorf("%s: incidents %+v (%v)", when, incidents, err)
		}
		if len(now.roles["critic"].Workers[0].Phases) != 1 {
			t.Errorf("%s: the phases of the critic are %+v", when, now.roles["critic"].Workers[0].Phases)
		}
	}
	for _, hours := range []int{1, 0, -1, 0} {
		set(hours * 3600)
		unharmed(fmt.Sprintf("the clock is set to %+d h", hours))
		now, err := j.look()
		if err != nil {
			t.Fatal(err)
		}
		if off := now.roles["actor"].LastHeartbeat.Sub(began).Hours(); off < float64(hours)-0.5 || off > float64(hours)+0.5 {
			t.Fatalf("the clock is off by %.1f h, want %d", off, hours)
		}
	}
	for _, hours := range []int{1, -1, 0} {
		j.kill()
		set(hours * 3600)
		unharmed(fmt.Sprintf("the clock is set to %+d h while there is no controller", hours))
	}
	j.interrupt(func() {})
	j.livedOnce()
}
