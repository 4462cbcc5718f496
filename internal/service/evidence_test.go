package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/evidence"
	"vigil/internal/job"
	"vigil/internal/role"
)

// kept reads a file of the evidence of incident 7.
func (s *stage) kept(path ...string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{s.incidentDir(), "7", "critic"}, path...)...))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

func (s *stage) account() evidence.Account {
	s.t.Helper()
	var a evidence.Account
	if err := json.Unmarshal([]byte(s.kept("evidence.0.json")), &a); err != nil {
		s.t.Fatal(err)
	}
	return a
}

// shows: A13
func TestAHungWorkersEvidenceIsKeptBeforeItIsKilled(t *testing.T) {
	t.Parallel()
	r := workerOf(`[ $RANK = 0 ] || exec sleep 1000
		"$SELF" X_VIGIL_STEP=41 X_VIGIL_PHASE=+all_reduce exit:0
		printf 'Traceback (most recent call last):\n  File "train.py", line 7\nValueError: without an end' >&2
		echo up; while :; do sleep 1000; done`)
	r.Env[playAs] = "say"
	s := enter(t, r)
	s.must(run(1))
	s.awaitLog(1, 0, "up")
	pid := s.ears.awaitState(t, 0, role.WorkerReady).PID
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker to stop", func() bool {
		stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		return strings.Contains(string(stat), ") T ")
	})
	s.must(stop(&api.Stop{AfterFailure: true, Incident: "7", Cause: string(role.Silent)}))
	gone(t, pid)
	if got := s.kept("1", "0.1", "kernel.txt"); !strings.Contains(got, "was stopped by a signal") || !strings.Contains(got, "sleep") {
		t.Errorf("kernel.txt does not say how the worker and its child stood:\n%s", got)
	}
	if got := s.kept("1", "0.1", "stderr.txt"); !strings.HasSuffix(got, "line 7\nValueError: without an end\n") {
		t.Errorf("stderr.txt ends in %q", got)
	}
	a := s.account()
	if a.Form != evidence.Full || len(a.Ranks) != 2 {
		t.Fatalf("account %+v", a)
	}
	if r := a.Ranks[0]; r.HeartbeatAge == nil || *r.HeartbeatAge > patience.Seconds() || r.Step == nil || *r.Step != 41 || len(r.Phases) != 1 || r.Phases[0].Name != "all_reduce" {
		t.Errorf("rank 0: %+v", r)
	}
	if r := a.Ranks[1]; r.HeartbeatAge != nil || r.Step != nil || len(r.Processes) == 0 {
		t.Errorf("rank 1: %+v", r)
	}
}

// shows: A13
func TestTheFaultHandlerThatAWorkerHasArmedIsAskedBeforeTheKill(t *testing.T) {
	t.Parallel()
	r := workerOf(`trap 'echo "  File \"train.py\", line 7 in step" >&2' USR2; trap 'exit 0' TERM
		"$SELF" X_VIGIL_FAULTHANDLER=SIGUSR2 X_VIGIL_STEP=1 exit:0; echo up; while :; do sleep 0.02; done`)
	r.Env[playAs] = "say"
	s := enter(t, r)
	s.must(run(1))
	s.awaitLog(1, 0, "up")
	s.awaitLog(1, 1, "up")
	s.must(stop(&api.Stop{AfterFailure: true, Incident: "7", Cause: string(role.Stuck)}))
	for _, rank := range []string{"0.1", "1.1"} {
		if got := s.kept("1", rank, "stack.txt"); !strings.Contains(got, "line 7 in step") {
			t.Errorf("the stack of %s: %q", rank, got)
		}
	}
}

func TestWithoutAnIncidentNothingIsKeptAndAFolderThatCannotBeWrittenHoldsUpNothing(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(orderly))
	runsOrderly(s)
	s.must(stop(&api.Stop{}))
	if _, err := os.Stat(s.incidentDir()); err == nil {
		t.Error("evidence was kept of a wanted end")
	}
	touch(t, s.incidentDir())
	s.must(run(2))
	s.awaitLog(2, 0, "up")
	s.must(stop(&api.Stop{AfterFailure: true, Incident: "7", Cause: string(role.Silent)}))
	if said := s.said.String(); !strings.Contains(said, "evidence is not kept") {
		t.Error("nobody says that evidence is not kept")
	}
}

// shows: A83
func TestTheRootCauseIsTheEarliestErrorFileAlsoWhenItsRankEndsLater(t *testing.T) {
	t.Parallel()
	r := workerOf(`if [ $RANK = 1 ]; then
			echo '{"message": {"message": "RuntimeError: NaN in loss", "extraInfo": {"timestamp": "1700000000"}}}' > "$TORCHELASTIC_ERROR_FILE"
			touch raised; exec sleep 1000
		fi
		until [ -e raised ]; do sleep 0.01; done
		echo '{"message": "ConnectionError: peer closed", "timestamp": 1700000001}' > "$TORCHELASTIC_ERROR_FILE"; exit 1`)
	r.Workdir = t.TempDir()
	s := enter(t, r)
	s.must(run(1))
	if f := s.ears.awaitFailure(t, 1); f.Detail != "rank 1 failed first: RuntimeError: NaN in loss" || f.Life.Rank != 0 || f.Exit.Code != 1 {
		t.Errorf("detail %q of rank %d, exit %v", f.Detail, f.Life.Rank, f.Exit)
	}
	s.must(stop(&api.Stop{AfterFailure: true, Incident: "7", Cause: string(role.Exited)}))
	a := s.account()
	if a.Form != evidence.Short || a.Ranks[1].Error != "RuntimeError: NaN in loss" || !strings.HasPrefix(a.Ranks[0].Exit, "exit code 1") {
		t.Errorf("account %+v", a)
	}
	if got := s.kept("1", "1.1", "error.json"); !strings.Contains(got, "1700000000") {
		t.Errorf("error.json: %q", got)
	}
}

// What a peer has felt of a death is not the cause of it.
// shows: A83
func TestAWorkerThatWasKilledHasNotFailedBecauseItsPeerRaised(t *testing.T) {
	t.Parallel()
	r := workerOf(`if [ $RANK = 0 ]; then
			until [ -e kill ]; do sleep 0.01; done
			echo '{"message": "RuntimeError: closed by peer"}' > "$TORCHELASTIC_ERROR_FILE"; touch felt; exec sleep 1000
		fi
		touch kill; until [ -e felt ]; do sleep 0.01; done; kill -KILL $$`)
	r.Workdir = t.TempDir()
	s := enter(t, r)
	s.must(run(1))
	if f := s.ears.awaitFailure(t, 1); f.Life.Rank != 1 || !strings.HasPrefix(f.Detail, "SIGKILL") {
		t.Errorf("detail %q of rank %d", f.Detail, f.Life.Rank)
	}
}

// shows: A83
func TestTheRootCauseIsFoundAmongTheRanksOfAllServicesOfTheRoleOnTheMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t, workerOf(`echo '{"message": "ConnectionError: peer closed", "timestamp": 1700000001}' > "$TORCHELASTIC_ERROR_FILE"; [ $RANK = 0 ] || exec sleep 1000; exit 1`))
	other := func(inc, rank, attempt int, message string) {
		path := filepath.Join(s.logDir(), "critic", strconv.Itoa(inc), fmt.Sprintf("%d.%d", rank, attempt), "error.json")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(`{"message": "`+message+`", "timestamp": 1700000000}`), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	other(1, 5, 1, "an attempt that was made good")
	other(1, 5, 2, "RuntimeError: NaN in loss")
	other(0, 6, 1, "another incarnation")
	s.start()
	s.joined()
	s.must(run(1))
	if f := s.ears.awaitFailure(t, 1); f.Detail != "rank 5 failed first: RuntimeError: NaN in loss" || f.Life.Rank != 0 {
		t.Errorf("detail %q of rank %d", f.Detail, f.Life.Rank)
	}
}

// shows: A83
func TestAWorkerThatIsRestartedAloneHasOnlyItself(t *testing.T) {
	t.Parallel()
	r := workerOf(`if [ $RANK = 1 ]; then echo '{"message": "an hour ago"}' > "$TORCHELASTIC_ERROR_FILE"; touch raised; exec sleep 1000; fi
		until [ -e raised ]; do sleep 0.01; done; exit 4`)
	r.Workdir = t.TempDir()
	r.Restart.Unit = job.UnitWorker
	s := enter(t, r)
	s.must(run(1))
	if f := s.ears.awaitFailure(t, 1); !strings.HasPrefix(f.Detail, "exit code 4") {
		t.Errorf("detail %q", f.Detail)
	}
}

// shows: A83
func TestABrokenErrorFileIsSaidAndTheExitIsTheCause(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"it is no regular file (FIFO)": `mkfifo "$TORCHELASTIC_ERROR_FILE"`,
		"it is no JSON":                `echo junk > "$TORCHELASTIC_ERROR_FILE"`,
		"it has 1073741824 bytes":      `truncate -s 1G "$TORCHELASTIC_ERROR_FILE"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := enter(t, workerOf(`[ $RANK = 0 ] || exec sleep 1000; `+script+`; exit 3`))
			s.must(run(1))
			f := s.ears.awaitFailure(t, 1)
			if !strings.HasPrefix(f.Detail, "exit code 3") || !strings.Contains(f.Detail, name) {
				t.Errorf("detail %q", f.Detail)
			}
			if said := s.said.String(); !strings.Contains(said, "the error file says nothing") {
				t.Error("the service's log does not say it")
			}
		})
	}
}

func TestADeviceThatFailedDuringALifeMakesItsEndTheHardwaresFault(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "kmsg")
	now := evidence.SinceBoot().Microseconds()
	text := fmt.Sprintf("3,1,%d,-;NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, before this life\n3,2,%d,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n",
		now-time.Minute.Microseconds(), now+time.Minute.Microseconds())
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newStage(t, workerOf(`[ $RANK = 0 ] || exec sleep 1000; exit 1`))
	s.env = []string{"VIGIL_OPT_KERNEL_LOG=" + log}
	s.start()
	s.joined()
	order := runOrder(1)
	order.Workers[0].Devices = []string{"GPU-0"}
	s.must(&api.ToService{Order: &api.ToService_Run{Run: order}})
	f := s.ears.awaitFailure(t, 1)
	if f.Cause != role.Hardware || !strings.HasPrefix(f.Detail, "NVRM: Xid (PCI:0000:3b:00): 79, ") || !strings.Contains(f.Detail, "; exit code 1") {
		t.Errorf("cause %s, detail %q", f.Cause, f.Detail)
	}
	s.must(stop(&api.Stop{AfterFailure: true, Incident: "7", Cause: string(role.Hardware)}))
	if a := s.account(); len(a.Xids) != 2 {
		t.Errorf("xids %q", a.Xids)
	}
}

func TestAnIllDeviceIsTheOneWhoseXidNamesUsOrNobodyWhoRuns(t *testing.T) {
	t.Parallel()
	self := os.Getpid()
	x := func(number, pid int) evidence.Xid { return evidence.Xid{Number: number, PID: pid, At: time.Second} }
	tests := []struct {
		name string
		xids []evidence.Xid
		want int // 0: none
	}{
		{"of the worker", []evidence.Xid{x(94, 1<<22+1)}, 94},
		{"of nobody", []evidence.Xid{x(79, 0)}, 79},
		{"of a process that runs on and is another's", []evidence.Xid{x(79, self)}, 0},
		{"of the program on the device", []evidence.Xid{x(13, 0), x(31, 0)}, 0},
		{"the newest of several", []evidence.Xid{x(48, 0), x(79, 0), x(45, 0)}, 79},
		{"none", nil, 0},
	}
	for _, tt := range tests {
		if got, ok := illDevice(tt.xids, 1<<22+1); got.Number != tt.want || ok != (tt.want != 0) {
			t.Errorf("%s: %d, %v, want %d", tt.name, got.Number, ok, tt.want)
		}
	}
}

func TestTheFlightRecorderIsSetUpWhereNobodyHasAndReadWhereItWrites(t *testing.T) {
	t.Parallel()
	s := critic()
	s.TraceDir = "/logs/critic/1/1.1"
	s.Base = []string{"TORCH_FR_BUFFER_SIZE=7"}
	_, env, err := compose(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"TORCH_FR_BUFFER_SIZE=7", "TORCH_NCCL_TRACE_BUFFER_SIZE=7", "TORCH_NCCL_DUMP_ON_TIMEOUT=1", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/logs/critic/1/1.1/nccl_trace_rank_"} {
		if !slices.Contains(env, want) {
			t.Errorf("the environment lacks %s", want)
		}
	}
	if trace, pipe := recorder(env, 3); trace != "/logs/critic/1/1.1/nccl_trace_rank_3" || pipe != "/logs/critic/1/1.1/nccl_pipe_rank_3.pipe" {
		t.Errorf("trace %q, pipe %q", trace, pipe)
	}
	s.Base = []string{"TORCH_NCCL_TRACE_BUFFER_SIZE=0", "TORCH_FR_DUMP_TEMP_FILE=/mine/dump_"}
	if _, env, err = compose(s); err != nil || !slices.Contains(env, "TORCH_FR_BUFFER_SIZE=0") {
		t.Errorf("who has switched it off finds it on: %q, %v", env, err)
	}
	if trace, _ := recorder(env, 3); trace != "/mine/dump_3" {
		t.Errorf("trace %q", trace)
	}
	s.Base, s.TraceDir = nil, ""
	if _, env, _ = compose(s); slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TORCH_NCCL_D") }) {
		t.Errorf("without a device: %q", env)
	}
}
