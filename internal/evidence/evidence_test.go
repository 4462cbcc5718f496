package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/role"
)

// playAs has the test binary be a worker.
// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 3 * time.Minute

const playAs = "EVIDENCE_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(playAs) != "" {
		playWorker()
		return
	}
	os.Exit(m.Run())
}

// playWorker writes its stacks when SIGUSR2 asks for them, as faulthandler does, and the trace when a
// byte comes through the pipe, as torch does.
func playWorker() {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGUSR2)
	if stem := os.Getenv("TRACE"); stem != "" {
		pipe, err := os.OpenFile(stem+".pipe", os.O_RDWR, 0)
		if err != nil {
			panic(err)
		}
		go func() {
			if _, err := pipe.Read(make([]byte, 1)); err == nil {
				_ = os.WriteFile(stem, []byte("the collectives of this rank"), 0o600)
			}
		}()
	}
	fmt.Println("up")
	for range asked {
		fmt.Fprintln(os.Stderr, "Thread 0x1 (most recent call first):\n  File \"train.py\", line 7 in step")
	}
}

// worker is a process that can be looked at.
type worker struct {
	Subject
	cmd *exec.Cmd
	dir string
}

func start(t *testing.T, env ...string) *worker {
	t.Helper()
	dir := t.TempDir()
	w := &worker{dir: dir, Subject: Subject{
		Life:   role.Life{Job: "tiny-1", Role: "critic", Incarnation: 1, Rank: 0, Attempt: 1},
		Stdout: filepath.Join(dir, "out"), Stderr: filepath.Join(dir, "err"), ErrorFile: filepath.Join(dir, "error.json"), HeartbeatAge: -1, Step: -1,
	}}
	stdout, err := os.Create(w.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	stderr, err := os.Create(w.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	w.cmd = exec.Command(os.Args[0])
	w.cmd.Env = append(append(os.Environ(), playAs+"=1"), env...)
	w.cmd.Stdout, w.cmd.Stderr = stdout, stderr
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	})
	w.Processes = []int{w.cmd.Process.Pid}
	eventually(t, "the worker to be up", func() bool { return strings.Contains(read(w.Stdout), "up") })
	return w
}

// halt stops the worker as SIGSTOP does.
func (w *worker) halt(t *testing.T) {
	t.Helper()
	if err := w.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the worker to stop", func() bool { p := readProcess(procRoot, w.Processes[0]); return p.state == 'T' })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited 30s for %s", what)
		}
	}
}

func read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

// take takes evidence into a new folder and returns it.
func take(t *testing.T, form Form, cause role.Cause, subjects ...Subject) (string, Account) {
	t.Helper()
	dir := t.TempDir()
	account, err := Taker{}.Take(t.Context(), dir, 0, form, cause, subjects)
	if err != nil {
		t.Fatal(err)
	}
	var written Account
	if err := json.Unmarshal([]byte(read(filepath.Join(dir, "critic", "evidence.0.json"))), &written); err != nil {
		t.Fatal(err)
	}
	if len(written.Ranks) != len(subjects) {
		t.Errorf("the account has %d ranks, want %d", len(written.Ranks), len(subjects))
	}
	return dir, account
}

// onPath puts a program of that name first on the PATH.
func onPath(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// shows: A13
func TestAWorkerThatHangsIsDescribedThreadByThreadWithItsLastLinesPhasesAndHeartbeats(t *testing.T) {
	w := start(t)
	w.HeartbeatAge, w.Step, w.Phases = 12*time.Second, 41, []Phase{{"step", 12}, {"all_reduce", 11.5}}
	var lines bytes.Buffer
	for i := range 300 {
		fmt.Fprintf(&lines, "line %d\n", i)
	}
	lines.WriteString("ValueError: without an end")
	if err := os.WriteFile(w.Stderr, lines.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	w.halt(t)
	dir, account := take(t, Full, role.Silent, w.Subject)
	at := filepath.Join(dir, "critic", "1", "0.1")
	kernel := read(filepath.Join(at, "kernel.txt"))
	pid := strconv.Itoa(w.Processes[0])
	for _, want := range []string{"pid " + pid, "was stopped by a signal", "thread " + pid, "state T", "syscall ", "voluntary_ctxt_switches"} {
		if !strings.Contains(kernel, want) {
			t.Errorf("kernel.txt lacks %q:\n%s", want, kernel)
		}
	}
	if n := strings.Count(kernel, "  thread "); n < 3 {
		t.Errorf("%d threads, the Go program has more", n)
	}
	stderr := strings.Split(strings.TrimSuffix(read(filepath.Join(at, "stderr.txt")), "\n"), "\n")
	if len(stderr) != logLines || stderr[0] != "line 101" || stderr[logLines-1] != "ValueError: without an end" {
		t.Errorf("stderr.txt has %d lines from %q to %q", len(stderr), stderr[0], stderr[len(stderr)-1])
	}
	want := "pid " + pid + " was stopped by a signal; last heartbeat 12.0 s before, step 41; in phase step for 12.0 s; in phase all_reduce for 11.5 s"
	if got := account.Ranks[0].Says; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	if missing := account.Ranks[0].Missing; len(missing) != 1 || !strings.Contains(missing[0], "py-spy is not in the PATH") {
		t.Errorf("missing: %q", missing)
	}
}

// shows: A13
func TestStacksAreTakenByPySpyWhereItIsInstalled(t *testing.T) {
	onPath(t, "py-spy", `echo "$@"; echo 'all_reduce (torch/distributed.py:7)'`)
	w := start(t)
	w.halt(t)
	w.FaultHandler = unix.SIGUSR2 // is not needed then
	dir, _ := take(t, Full, role.Silent, w.Subject)
	want := fmt.Sprintf("dump --nonblocking --pid %d\nall_reduce (torch/distributed.py:7)\n", w.Processes[0])
	if got := read(filepath.Join(dir, Folder(w.Life), "stack.txt")); got != want {
		t.Errorf("stack.txt has %q, want %q", got, want)
	}
}

// shows: A13
func TestAWorkerWithAFaultHandlerWritesItsStacksAlsoWhenItWasStopped(t *testing.T) {
	w := start(t)
	if err := os.WriteFile(w.Stderr, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.FaultHandler = unix.SIGUSR2
	w.halt(t)
	dir, account := take(t, Full, role.Silent, w.Subject)
	if got := read(filepath.Join(dir, Folder(w.Life), "stack.txt")); !strings.Contains(got, "line 7 in step") {
		t.Errorf("stack.txt has %q; missing: %q", got, account.Ranks[0].Missing)
	}
	if !strings.Contains(account.Ranks[0].Says, "was stopped by a signal") {
		t.Errorf("it says %q, want how it was found", account.Ranks[0].Says)
	}
}

// The process that has armed the handler may be a child of a wrapper, whom the signal would kill.
func TestTheSignalOfAFaultHandlerGoesToNobodyWhoDoesNotHandleIt(t *testing.T) {
	w := start(t)
	wrapper := exec.Command("sleep", "100")
	if err := wrapper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = wrapper.Process.Kill(); _ = wrapper.Wait() })
	w.FaultHandler = unix.SIGUSR2
	w.Processes = append([]int{wrapper.Process.Pid}, w.Processes...)
	dir, account := take(t, Full, role.Silent, w.Subject)
	if got := read(filepath.Join(dir, Folder(w.Life), "stack.txt")); !strings.Contains(got, "line 7 in step") {
		t.Errorf("stack.txt has %q; missing: %q", got, account.Ranks[0].Missing)
	}
	w.Processes = w.Processes[:1]
	_, account = take(t, Full, role.Silent, w.Subject)
	if missing := account.Ranks[0].Missing; len(missing) != 1 || !strings.Contains(missing[0], "none of its processes handles SIGUSR2") {
		t.Errorf("missing: %q", missing)
	}
	if status := read(fmt.Sprintf("/proc/%d/status", wrapper.Process.Pid)); !strings.Contains(status, "State:\tS") {
		t.Errorf("the wrapper was killed: %s", status)
	}
}

// shows: A13
func TestTheFlightRecorderIsToldToWriteBeforeTheKill(t *testing.T) {
	stem := filepath.Join(t.TempDir(), "trace_0")
	if err := unix.Mkfifo(stem+".pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	w := start(t, "TRACE="+stem)
	w.Trace, w.Pipe = stem, stem+".pipe"
	dir, account := take(t, Full, role.Stuck, w.Subject)
	if got := read(filepath.Join(dir, Folder(w.Life), "nccl_trace")); got != "the collectives of this rank" {
		t.Errorf("nccl_trace has %q; missing: %q", got, account.Ranks[0].Missing)
	}
}

func TestAPeersShortFormStartsNoOtherProgramAndSendsNothing(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "ran")
	onPath(t, "py-spy", "touch "+mark)
	onPath(t, "nvidia-smi", "touch "+mark)
	w := start(t)
	w.FaultHandler, w.Devices = unix.SIGUSR2, 1
	dir, account := take(t, Short, role.Exited, w.Subject)
	if _, err := os.Stat(mark); err == nil || read(w.Stderr) != "" {
		t.Errorf("a program was started (%v), or the worker was asked: %q", err, read(w.Stderr))
	}
	if read(filepath.Join(dir, Folder(w.Life), "kernel.txt")) == "" || account.Form != Short {
		t.Error("nothing was kept")
	}
}

func TestHelpersThatHangCostTheBoundAndNoMore(t *testing.T) {
	slow(t)
	onPath(t, "py-spy", "sleep 1000")
	onPath(t, "nvidia-smi", "exec sleep 1000")
	var all []Subject
	for rank := range 3 {
		w := start(t)
		w.Life.Rank, w.Devices = rank, 1
		all = append(all, w.Subject)
	}
	began := time.Now()
	dir, account := take(t, Full, role.Silent, all...)
	if took := time.Since(began); took > patience { // the helpers hang for longer
		t.Errorf("it took %s, the bound is %s", took, fullTime)
	}
	for i := range all {
		if read(filepath.Join(dir, Folder(all[i].Life), "kernel.txt")) == "" {
			t.Errorf("what rank %d does in the kernel was not kept", i)
		}
	}
	if !slices.ContainsFunc(account.Missing, func(s string) bool { return strings.HasPrefix(s, "nvidia-smi -q") }) {
		t.Errorf("missing: %q", account.Missing)
	}
}

// shows: A07 A13
func TestAnEndedWorkerIsDescribedByItsEndAndWhoSentTheSignal(t *testing.T) {
	dir := t.TempDir()
	life := role.Life{Job: "tiny-1", Role: "critic", Incarnation: 1, Attempt: 1}
	tests := []struct {
		exit         role.Exit
		says, sender string
	}{
		{role.Exit{Signal: "SIGKILL", PID: 7, Sender: "oom-killer"}, "killed by the kernel: out of memory (pid 7)", "oom-killer"},
		{role.Exit{Signal: "SIGKILL", PID: 7}, "SIGKILL (pid 7)", "unknown"},
		{role.Exit{Signal: "SIGTERM", PID: 7, Sender: "vigil"}, "SIGTERM (pid 7, sent by vigil)", "vigil"},
		{role.Exit{Code: 3, PID: 7}, "exit code 3 (pid 7)", ""},
	}
	for _, tt := range tests {
		_, account := take(t, Short, role.Exited, Subject{Life: life, Exit: &tt.exit, Stdout: filepath.Join(dir, "none"), Stderr: filepath.Join(dir, "none"), ErrorFile: filepath.Join(dir, "none"), HeartbeatAge: -1, Step: -1})
		if r := account.Ranks[0]; r.Says != tt.says || r.Sender != tt.sender || len(r.Missing) > 0 {
			t.Errorf("says %q, sent by %q, missing %q; want %q, %q", r.Says, r.Sender, r.Missing, tt.says, tt.sender)
		}
	}
}

func TestDevicesAreDescribedByNvidiaSmiAndTheKernelsLog(t *testing.T) {
	onPath(t, "nvidia-smi", `echo "asked $1"`)
	log := filepath.Join(t.TempDir(), "kmsg")
	now := SinceBoot().Microseconds()
	text := fmt.Sprintf("6,1,%d,-;eth0: link up\n3,2,%d,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.\n SUBSYSTEM=pci\n", now, now)
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w := start(t)
	w.Devices = 1
	dir := t.TempDir()
	account, err := Taker{KernelLog: log}.Take(t.Context(), dir, 0, Full, role.Silent, []Subject{w.Subject})
	if err != nil || len(account.Xids) != 1 || !strings.Contains(account.Xids[0], "fallen off the bus") {
		t.Errorf("xids %q, error %v", account.Xids, err)
	}
	if got := read(filepath.Join(dir, "critic", "nvidia-smi.txt")); got != "asked -q\n" {
		t.Errorf("nvidia-smi.txt has %q", got)
	}
}

func TestXidsAreReadWithNumberProcessAndTimeAndThoseOfProgramsAreNoSignOfAnIllDevice(t *testing.T) {
	log := filepath.Join(t.TempDir(), "kmsg")
	text := "3,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 48, an old one\n" +
		"3,2,5000000,-;NVRM: Xid (PCI:0000:3b:00): 13, pid='11', name=python, Graphics Exception\n" +
		"3,3,6000000,-;NVRM: Xid (PCI:0000:3b:00): 94, pid=12, name=python, Contained\n" +
		"3,4,7000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n" +
		"6,5,8000000,-;somebody says Xid 79"
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range (Taker{KernelLog: log}).Xids(2 * time.Second) {
		got = append(got, fmt.Sprintln(x.Number, x.PID, x.At, x.Hardware()))
	}
	want := []string{"13 11 5s false\n", "94 12 6s true\n", "79 0 7s true\n"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if none := (Taker{KernelLog: filepath.Join(t.TempDir(), "none")}).Xids(0); len(none) > 0 {
		t.Errorf("a log that is not there says %v", none)
	}
}

func TestAFolderThatCannotBeMadeIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Taker{}.Take(t.Context(), file, 0, Short, role.Exited, []Subject{{Life: role.Life{Role: "critic"}}})
	var path *os.PathError
	if !errors.As(err, &path) {
		t.Errorf("error %v", err)
	}
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
