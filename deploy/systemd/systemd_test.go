// Package systemd checks the unit in this folder.
package systemd

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"vigil/internal/journal"
)

// unit reads the keys of the unit's sections.
func unit(t *testing.T) map[string]string {
	t.Helper()
	src, err := os.ReadFile("vigil@.service")
	if err != nil {
		t.Fatal(err)
	}
	keys, section := map[string]string{}, ""
	for line := range strings.Lines(string(src)) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		case ok:
			keys[section+"."+name] = value
		default:
			t.Errorf("a line that systemd would not read: %q", line)
		}
	}
	return keys
}

func TestTheUnitSaysWhatTheControllerNeeds(t *testing.T) {
	keys := unit(t)
	for name, want := range map[string]string{
		"Service.Type": "notify", "Service.KillMode": "process", "Service.Delegate": "yes", "Service.NotifyAccess": "main",
		"Service.Restart": "on-failure", "Service.WatchdogSec": "60",
	} {
		if keys[name] != want {
			t.Errorf("%s=%s, want %s", name, keys[name], want)
		}
	}
	if exec := keys["Service.ExecStart"]; !strings.Contains(exec, "--use-health-check") || strings.Contains(exec, "--controller-grace") {
		t.Errorf("ExecStart=%s", exec)
	}
}

// A run that an exit closes, or that never began, is not begun again by systemd; one that is left open is.
func TestOnlyRunsThatAreOpenAreStartedAgain(t *testing.T) {
	prevented := " " + unit(t)["Service.RestartPreventExitStatus"] + " "
	for _, code := range []struct {
		text string
		exit int
	}{{"1", 1}, {"93", 93}, {"75", 75}, {"134", 134}, {"137", 137}} {
		if got := strings.Contains(prevented, " "+code.text+" "); got != journal.Closes(code.exit) {
			t.Errorf("exit %s: kept from a restart %v, closes the run %v", code.text, got, journal.Closes(code.exit))
		}
	}
	if !strings.Contains(prevented, " 2 ") {
		t.Error("a job that never began is begun again and again")
	}
}

func TestSystemdReadsTheUnit(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: systemd-analyze is missing")
	}
	out, err := exec.Command(verify, "verify", "--man=no", "./vigil@.service").CombinedOutput()
	if strings.Contains(string(out), "Unknown key") || strings.Contains(string(out), "Failed to parse") {
		t.Errorf("systemd-analyze says %v:\n%s", err, out)
	}
}
