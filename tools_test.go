package vigil

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What finds tests that take load for a fault runs them beside its loops, says how long they took, and leaves
// no loop behind, also if it is killed.
// shows: FAULT-L1
func TestTestsAreRunBesideBusyLoopsThatEndWithTheirScript(t *testing.T) {
	slow(t)
	loop := filepath.Join(t.TempDir(), "sh") // whose path only the loops of this test have
	if err := os.Symlink("/bin/sh", loop); err != nil {
		t.Fatal(err)
	}
	left := func() string {
		out, _ := exec.Command("pgrep", "-f", "^"+loop+" -c while kill -0").Output()
		return strings.TrimSpace(string(out))
	}
	run := func(pkg string) *exec.Cmd {
		cmd := exec.Command("/bin/sh", "tools/loaded.sh", pkg)
		cmd.Env = append(os.Environ(), "LOADS=2", "LOOP="+loop)
		return cmd
	}
	out, err := run("./internal/nearest").CombinedOutput()
	for _, want := range []string{"# ./internal/nearest, beside 2 busy loops\n", "ok  \tvigil/internal/nearest\t", "# ./internal/nearest: 0 min "} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v: %q is missing in\n%s", err, want, out)
		}
	}
	if pids := left(); pids != "" {
		t.Errorf("loops %s are left", pids)
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		cmd := run("./internal/placement")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "loops", func() bool { return left() != "" })
		_ = cmd.Process.Signal(sig)
		_ = cmd.Wait()
		eventually(t, "loops to end after "+sig.String(), func() bool { return left() == "" })
	}
}

// What runs tests again and again says how many passed, and keeps what failed runs said.
// shows: FAULT-L5
func TestTheOutputOfFailedRunsIsKept(t *testing.T) {
	slow(t)
	logs := filepath.Join(t.TempDir(), "logs")
	cmd := exec.Command("sh", "tools/repeat.sh", "./internal/nearest", ".", "3", "2")
	cmd.Env = append(os.Environ(), "REPEAT_LOG="+logs)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "repeat: ./internal/nearest .: all 3 passed") {
		t.Errorf("%v: %s", err, out)
	}
	cmd = exec.Command("sh", "tools/repeat.sh", "./internal/nearest", ".", "2", "--", "-test.no-such-flag")
	cmd.Env = append(os.Environ(), "REPEAT_LOG="+logs)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "0 of 2 passed; the logs of the others are in "+logs) {
		t.Errorf("%v: %s", err, out)
	}
	for _, name := range []string{"1.log", "2.log"} {
		if text, err := os.ReadFile(filepath.Join(logs, name)); err != nil || !strings.Contains(string(text), "flag provided but not defined") {
			t.Errorf("%s: %v: %s", name, err, text)
		}
	}
}
