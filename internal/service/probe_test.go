package service

import (
	"path/filepath"
	"strings"
	"testing"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// shows: FAULT-A1
func TestAnExecProbeHasTheWorkersEnvironmentWithoutItsVoice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := workerOf(`[ $RANK = 0 ] || exec sleep 1000; env > ` + dir + `/worker; exec sleep 1000`)
	r.Workers, r.Progress.Source = 2, job.FromHook
	r.Env["MINE"], r.Env["PYTHONPATH"] = "1", "/of/mine"
	r.Ready = &job.Probe{Exec: []string{"/bin/sh", "-c", `[ $RANK = 1 ] || { env > ` + dir + `/probe; [ -s ` + dir + `/worker ]; }`}}
	s := enter(t, r)
	s.must(run(1))
	s.ears.awaitState(t, 0, role.WorkerReady)
	worker, probe := environment(t, dir+"/worker"), environment(t, dir+"/probe")
	for _, name := range []string{"NOTIFY_SOCKET", "VIGIL_INBOX", "VIGIL_SERVICE_URL", "TORCHELASTIC_ERROR_FILE"} {
		if worker[name] == "" || probe[name] != "" {
			t.Errorf("%s is %q for the worker and %q for its probe, want some and none", name, worker[name], probe[name])
		}
	}
	if worker["PYTHONPATH"] != filepath.Join(s.logDir(), ".inject")+":/of/mine" || probe["PYTHONPATH"] != "/of/mine" {
		t.Errorf("PYTHONPATH is %q for the worker and %q for its probe", worker["PYTHONPATH"], probe["PYTHONPATH"])
	}
	for _, name := range []string{"MINE", "RANK", "VIGIL_RANK", "VIGIL_PEERS_FILE", "MASTER_PORT", "PATH"} {
		if probe[name] != worker[name] {
			t.Errorf("%s is %q for the probe, want the worker's %q", name, probe[name], worker[name])
		}
	}
	if got, want := probe[proc.Mark], s.life(1, 0).String()+"/probe"; got != want {
		t.Errorf("the probe's mark is %q, want %q", got, want)
	}
}

// environment reads what env has printed.
func environment(t *testing.T, path string) map[string]string {
	t.Helper()
	env := map[string]string{}
	for line := range strings.Lines(readFile(t, path)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[name] = value
	}
	return env
}

// shows: FAULT-A1
//
// What a probe leaves behind does not speak for the worker, even where it has found out how, and ends with the
// worker's life.
func TestWhatAProbeLeavesBehindDoesNotSpeakAndEndsWithTheLife(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := workerOf(`[ $RANK = 0 ] || exec sleep 1000; echo $NOTIFY_SOCKET > ` + dir + `/socket.new; mv ` + dir + `/socket.new ` + dir + `/socket; exec sleep 1000`)
	r.Ready = &job.Probe{Exec: []string{"/bin/sh", "-c", `[ $RANK = 1 ] || { cd ` + dir + `; until [ -e socket ]; do sleep 0.02; done
		export NOTIFY_SOCKET=$(cat socket)
		setsid sh -c 'echo $$ > pid; until [ -e go ]; do sleep 0.02; done; VIGIL_TEST_AS=say exec "$SELF" X_VIGIL_ERROR=of-a-daemon' > /dev/null 2>&1 &
		until [ -s pid ]; do sleep 0.02; done
		VIGIL_TEST_AS=say "$SELF" X_VIGIL_ERROR=of-a-probe > /dev/null 2>&1 & touch go; }`}}
	s := enter(t, r)
	s.must(run(1))
	s.ears.awaitState(t, 0, role.WorkerReady)
	pid := atoi(t, strings.TrimSpace(readFile(t, dir+"/pid")))
	s.ears.await(t, "both words to be counted", func() bool { return s.ears.foreign == 2 })
	if failed := s.ears.failed(); len(failed) > 0 {
		t.Errorf("failures %+v", failed)
	}
	s.must(stop(&api.Stop{}))
	gone(t, pid)
}

func TestTheHookIsTakenOutOfAProbesPath(t *testing.T) {
	for _, tt := range []struct{ folder, path, want string }{
		{"/logs/.inject", "/logs/.inject:/mine", "/mine"},
		{"/logs/.inject", "/logs/.inject", ""},
		{"/logs/.inject", "/mine", "/mine"},
		{"", "/mine", "/mine"},
	} {
		if got := withoutHook(tt.folder, tt.path); got != tt.want {
			t.Errorf("%q without %q is %q, want %q", tt.path, tt.folder, got, tt.want)
		}
	}
}
