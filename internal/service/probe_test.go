package service

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
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
// What a probe leaves behind does not speak for the worker, even where it has found out how, and ends with the probe.
func TestWhatAProbeLeavesBehindDoesNotSpeakAndEndsWithTheProbe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := workerOf(`[ $RANK = 0 ] || exec sleep 1000; echo $NOTIFY_SOCKET > ` + dir + `/socket.new; mv ` + dir + `/socket.new ` + dir + `/socket; exec sleep 1000`)
	r.Ready = &job.Probe{Exec: []string{"/bin/sh", "-c", `[ $RANK = 1 ] || { cd ` + dir + `; until [ -e socket ]; do sleep 0.02; done
		export NOTIFY_SOCKET=$(cat socket)
		(setsid sh -c 'echo $$ > pid; until [ -e go ]; do sleep 0.02; done; VIGIL_TEST_AS=say exec "$SELF" X_VIGIL_ERROR=of-a-daemon' > /dev/null 2>&1 &)
		until [ -s pid ]; do sleep 0.02; done
		VIGIL_TEST_AS=say "$SELF" X_VIGIL_ERROR=of-a-probe > /dev/null 2>&1 & touch go
		until [ -e heard ]; do sleep 0.02; done; }`}}
	r.Ready.Timeout = patience
	s := enter(t, r)
	s.must(run(1))
	s.ears.await(t, "both words to be counted", func() bool { return s.ears.foreign == 2 })
	if err := os.WriteFile(dir+"/heard", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.ears.awaitState(t, 0, role.WorkerReady)
	gone(t, atoi(t, strings.TrimSpace(readFile(t, dir+"/pid"))))
	if failed := s.ears.failed(); len(failed) > 0 {
		t.Errorf("failures %+v", failed)
	}
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

// shows: FAULT-F5
//
// It covers the three probes that ask, and that the newest reason is the one that is told.
func TestWhyAWorkerIsNotReadyIsToldWithWhatItsProbeMet(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		probe job.Probe
		want  string
	}{
		"http": {job.Probe{HTTP: &job.HTTPProbe{Port: "http", Path: "/"}}, "probe: dial tcp 127.0.0.1:%s: connect: connection refused"},
		"tcp":  {job.Probe{TCP: &job.TCPProbe{Port: "http"}}, "probe: dial tcp 127.0.0.1:%s: connect: connection refused"},
		"exec": {job.Probe{Exec: []string{"/bin/sh", "-c", `echo first >&2; echo "port ${port.http} is closed" >&2; exit 3`}}, "probe /bin/sh: exit code 3: port %s is closed"},
		"slow": {job.Probe{Exec: []string{"/bin/sh", "-c", `echo "waiting for ${port.http}" >&2; exec sleep 1000`}, Timeout: time.Second}, "probe /bin/sh: no answer in time: waiting for %s"},
		"loud": {job.Probe{Exec: []string{"/bin/sh", "-c", `head -c 3000000 /dev/zero | tr '\0' x >&2; exit ${port.http}`}}, "probe /bin/sh: exit code"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := workerOf(`exec sleep 1000`)
			r.Ready = &tt.probe
			r.Ready.Period = 50 * time.Millisecond
			s := enter(t, r)
			port := unused(t)
			order := run(1)
			for _, w := range order.GetRun().Workers {
				w.Ports = map[string]uint32{"http": uint32(port)}
			}
			s.must(order)
			want := strings.ReplaceAll(tt.want, "%s", strconv.Itoa(port))
			s.ears.await(t, want, func() bool {
				return slices.ContainsFunc(s.ears.states, func(w rpc.WorkerState) bool {
					return w.Life.Rank == 0 && w.State == role.WorkerStarting && strings.HasPrefix(w.Unready, want) && len(w.Unready) < 1000
				})
			})
		})
	}
}

// unused is a port on which nobody listens.
func unused(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// shows: FAULT-F5
func TestAProbeTriesTheLoopbackAddressOfIPv6WhereNobodyListensOnThatOfIPv4(t *testing.T) {
	refused, absent, other := error(unix.ECONNREFUSED), error(unix.EADDRNOTAVAIL), errors.New("status 503")
	w := &worker{ports: map[string]uint32{"http": 8000}}
	for _, tt := range []struct {
		name      string
		four, six error
		want      error
		asked     int
	}{
		{"IPv4 answers", nil, nil, nil, 1},
		{"IPv4 answers badly", other, nil, other, 1},
		{"refused, and IPv6 answers", refused, nil, nil, 2},
		{"refused, and IPv6 answers badly", refused, other, other, 2},
		{"both refuse", refused, fmt.Errorf("six: %w", refused), refused, 2},
		{"refused, and there is no IPv6", refused, absent, refused, 2},
		{"there is no IPv4, and IPv6 refuses", absent, refused, refused, 2},
		{"there is no IPv4, and IPv6 answers", absent, nil, nil, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked []string
			got := w.atLoopback("http", func(address string) error {
				asked = append(asked, address)
				if address == "[::1]:8000" {
					return tt.six
				}
				return tt.four
			})
			if got != tt.want || len(asked) != tt.asked || asked[0] != "127.0.0.1:8000" {
				t.Errorf("%v after asking %v, want %v after %d", got, asked, tt.want, tt.asked)
			}
		})
	}
	if err := w.atLoopback("grpc", func(string) error { return nil }); err == nil {
		t.Error("a port that was not leased was asked")
	}
}

// What a probe puts into the background is ended whenever it is over, also as a daemon with a session of its own, and said
// once; the worker's own is left alone.
// shows: FAULT-K3
func TestWhatAProbePutsIntoTheBackgroundDoesNotPileUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := workerOf(`sleep 1001 & echo $! > ` + dir + `/own.new; mv ` + dir + `/own.new ` + dir + `/own; exec sleep 1000`)
	r.Ready = &job.Probe{Period: 10 * time.Millisecond, Exec: []string{"/bin/sh", "-c", `cd ` + dir + `; touch left; before=$(wc -l < left)
		sleep 1002 & echo $! >> left
		(setsid sh -c 'echo $$ >> left; exec sleep 1003' &)
		until [ $(wc -l < left) = $((before + 2)) ]; do sleep 0.01; done
		[ -e own ] && [ $before -ge 6 ]`}}
	s := enter(t, r)
	s.must(run(1))
	s.ears.awaitState(t, 0, role.WorkerReady)
	for _, pid := range strings.Fields(readFile(t, dir+"/left")) {
		eventually(t, "the end of what a probe has left", func() bool { return unix.Kill(atoi(t, pid), 0) == unix.ESRCH })
	}
	own, err := proc.Identify(atoi(t, strings.TrimSpace(readFile(t, dir+"/own"))))
	if err != nil || !own.Alive() {
		t.Errorf("what the worker itself has in the background was ended (%v)", err)
	}
}
