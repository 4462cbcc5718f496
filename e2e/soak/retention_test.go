package soak

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vigil/e2e/rig"
)

// retentionVariable asks for as many restarts and runs as a job sees in months.
const retentionVariable = "VIGIL_RETENTION"

// left is what a run has left on the disk, and holds.
type leftBehind struct {
	files, folders int
	bytes, journal int64
	open           int // descriptors of the controller
	memory         int // KiB, resident
}

func look(t *testing.T, state string, pid int) leftBehind {
	t.Helper()
	var l leftBehind
	err := filepath.WalkDir(state, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it has been removed meanwhile
		}
		if d.IsDir() {
			l.folders++
			return nil
		}
		l.files++
		if info, err := d.Info(); err == nil {
			l.bytes += info.Size()
			if d.Name() == "journal.db" {
				l.journal = info.Size()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		l.open = len(files)
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &l.memory)
	}
	return l
}

// What a job leaves behind does not grow with its restarts and runs: state directory, journal, memory and descriptors
// are bounded, and what is removed is said.
// shows: FAULT-I11
func TestRetentionBoundsWhatRestartsAndRunsLeave(t *testing.T) {
	restarts, lives, runs, keep := 40, 5, 6, 3
	if os.Getenv(retentionVariable) != "" {
		restarts, lives, runs, keep = 2000, 50, 50, 20
	}
	state := rig.Folder(t)
	file := filepath.Join(rig.Folder(t), "job.yaml")
	text := fmt.Sprintf(`name: kept
controller: {use_health_check: true, keep_lives: %d, keep_runs: %d, keep_incidents: 0s, status_every: 0s}
roles:
  main:
    command: [sh, -c, 'echo begun; [ $VIGIL_INCARNATION -gt %d ] && exec sleep 1000; exit 3']
    restart: {on_failure: in_place, escalate_at: 0, backoff: {base: 0}}
`, lives, keep, restarts)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := rig.Options{Environ: os.Environ(), Args: []string{"--job", file, "--state-dir", state}, Patience: patience}
	if restarts > 1000 {
		o.Patience = 40 * patience
	}
	j := rig.Begin(t, o)
	half, err := leftBehind{}, error(nil)
	j.Eventually("all restarts are over", func() error {
		roles, err := j.Roles()
		if err != nil || len(roles) != 1 {
			return errors.Join(err, errors.New("there is no role"))
		}
		if half == (leftBehind{}) && roles[0].Incarnation > restarts/2 {
			half = look(t, state, j.PID())
		}
		if roles[0].Incarnation <= restarts {
			return fmt.Errorf("it is in incarnation %d", roles[0].Incarnation)
		}
		return nil
	})
	var now leftBehind
	most := 30 + 4*(lives+4) + 3*200 // logs of the lives, incidents with their evidence
	j.Eventually("what is too much is removed", func() error {
		now = look(t, state, j.PID())
		if logs, _ := filepath.Glob(filepath.Join(state, j.UID, "logs", "main", "[0-9]*")); len(logs) > lives+4 {
			return fmt.Errorf("logs of %d lives are there", len(logs))
		}
		if now.files > most {
			return fmt.Errorf("%d files are there, want at most %d", now.files, most)
		}
		return nil
	})
	t.Logf("after %d restarts: %+v; half way: %+v", restarts, now, half)
	if now.journal > 4<<20 || now.open > half.open+100 || now.memory > half.memory+64<<10 {
		t.Errorf("it grows: %+v, half way %+v", now, half)
	}
	if said, err := os.ReadFile(filepath.Join(state, j.UID, "logs", "main", "thinned.log")); err != nil || !strings.Contains(string(said), "--keep-lives") {
		t.Errorf("it is not said what was removed: %q, %v", said, err)
	}
	if !strings.Contains(j.Log(), "old logs are removed") {
		t.Error("the log does not say it")
	}
	j.Eventually("its role runs", func() error {
		roles, err := j.Roles()
		if err == nil && roles[0].State != "running" {
			err = errors.New("not yet")
		}
		return err
	})
	stop(t, j, 130)
	if err = os.WriteFile(filepath.Join(state, "mine.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	last := ""
	text = text[:strings.Index(text, "    command:")] + "    command: [sh, -c, 'echo done']\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for range runs {
		one := rig.Begin(t, o)
		one.End(0)
		last = one.UID
	}
	folders, err := filepath.Glob(filepath.Join(state, "kept-*"))
	if err != nil || len(folders) > keep+1 { // the newest was not there yet when it was looked at
		t.Errorf("%d runs are there, want %d: %v", len(folders), keep, err)
	}
	for _, path := range []string{"mine.txt", last, "thinned.log"} {
		if _, err := os.Stat(filepath.Join(state, path)); err != nil {
			t.Error(err)
		}
	}
}

// stop ends a job as Ctrl-C does.
func stop(t *testing.T, j *rig.Job, exit int) {
	t.Helper()
	if err := syscall.Kill(j.PID(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	j.End(exit)
}

// The built-in job leaves nothing outside the state and runtime directory.
// shows: FAULT-I11
func TestRetentionOfTheBuiltInJob(t *testing.T) {
	temporary := t.TempDir()
	o := rig.Options{Environ: append(os.Environ(), "TMPDIR="+temporary), Args: []string{"--use-health-check"}, Patience: patience}
	j := rig.Begin(t, o)
	j.Eventually("the actor has saved", func() error {
		_, err := exec.Command("sh", "-c", "ls "+filepath.Join(j.Dir, "state", j.UID, "example", "actor", "0")+"/*").Output()
		return err
	})
	stop(t, j, 130)
	if files, err := os.ReadDir(temporary); err != nil || len(files) > 0 {
		t.Errorf("it has left %v, %v", files, err)
	}
}
