package service

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/notify"
)

// shows: A22
func TestPhasesReachTheControllerInOrderAndABareNameClosesTheOneBefore(t *testing.T) {
	t.Parallel()
	s := enter(t, sayer("X_VIGIL_PHASE=load", "X_VIGIL_PHASE=+inner\nX_VIGIL_PHASE=-inner", "X_VIGIL_PHASE=step\nX_VIGIL_STEP=41", "X_VIGIL_PHASE=-step", "X_VIGIL_PHASE=eval", "STATUS=said"))
	s.must(run(1))
	want := []string{"+load", "+inner", "-inner", "-load", "+step", "-step", "+eval"}
	s.ears.await(t, "the phases", func() bool { return len(s.ears.phases) >= len(want) })
	s.ears.mu.Lock()
	defer s.ears.mu.Unlock()
	if !slices.Equal(s.ears.phases, want) {
		t.Errorf("heard %q, want %q", s.ears.phases, want)
	}
}

func TestAPhaseNameOf10kBAndADatagramOf1MBAreSaidOnceAndTheJobGoesOn(t *testing.T) {
	t.Parallel()
	r := workerOf(`[ $RANK = 0 ] || exec sleep 1000
		long=$(head -c 10000 /dev/zero | tr '\0' p)
		"$SELF" "X_VIGIL_PHASE=+$long" "X_VIGIL_PHASE=+$long" "X_VIGIL_PHASE=+ok" exit:0
		exec sleep 1000`)
	r.Env[playAs] = "say"
	s := enter(t, r)
	s.must(run(1))
	s.ears.await(t, "the phase that is right", func() bool { return slices.Equal(s.ears.phases, []string{"+ok"}) })
	if n := strings.Count(s.said.String(), "a name of 10000 bytes, 64 are the most"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
	if f := s.ears.failed(); len(f) > 0 {
		t.Errorf("failures %v", f)
	}
}

func TestSixteenPhasesMayBeOpenAndMoreAreToldOnce(t *testing.T) {
	t.Parallel()
	said := make([]string, 0, 20)
	for i := range 20 {
		said = append(said, fmt.Sprintf("X_VIGIL_PHASE=+p%d", i))
	}
	s := enter(t, sayer(append(said, "X_VIGIL_STEP=41")...))
	s.must(run(1))
	s.ears.await(t, "the step", func() bool { return slices.Contains(s.ears.beats, beat{s.life(1, 0), 41, true}) })
	s.ears.await(t, "17 phases", func() bool { return len(s.ears.phases) >= 17 })
	s.ears.mu.Lock()
	defer s.ears.mu.Unlock()
	if len(s.ears.phases) != 17 {
		t.Errorf("heard %q", s.ears.phases)
	}
}

// shows: A23
func TestStepsOfAHookAreGuessesUntilTheProgramSaysItsOwn(t *testing.T) {
	t.Parallel()
	s := enter(t, sayer("X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=41"))
	s.must(run(1))
	s.ears.await(t, "the guess", func() bool { return slices.Contains(s.ears.guesses, beat{s.life(1, 0), 41, true}) })
	if got := s.must(getStep()).Step; got != 41 {
		t.Errorf("the role's step is %d", got)
	}

	s = enter(t, sayer("X_VIGIL_STEP=5", "X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=500", "X_VIGIL_STEP=6", "X_VIGIL_PHASE=end"))
	s.must(run(1))
	s.ears.await(t, "the end", func() bool { return len(s.ears.phases) > 0 })
	s.ears.await(t, "the step", func() bool { return slices.Contains(s.ears.beats, beat{s.life(1, 0), 6, true}) })
	if len(s.ears.guesses) > 0 {
		t.Errorf("guesses %v", s.ears.guesses)
	}
}

func TestAWorkerThatIsReadyAndStopsAnsweringIsStuck(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{"exec": `touch $VIGIL_RANK.up; sleep 1; rm 0.up; exec sleep 1000`, "notify": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := sayer("WATCHDOG=1")
			r.Alive = &job.Alive{Probe: job.Probe{Notify: true, Period: 300 * time.Millisecond}, Failures: 3}
			if name == "exec" {
				r = workerOf(script)
				r.Workdir = t.TempDir()
				r.Alive = &job.Alive{Probe: job.Probe{Exec: []string{"/bin/sh", "-c", `[ $RANK = 1 ] || [ -e 0.up ]`}, Period: 50 * time.Millisecond, Timeout: 20 * time.Second}, Failures: 3}
			}
			s := enter(t, r)
			s.must(run(1))
			s.ears.awaitState(t, 0, role.WorkerReady)
			f := s.ears.awaitFailure(t, 1)
			if f.Cause != role.Stuck || !strings.Contains(f.Detail, "its alive probe has failed 3 times in a row: probe") {
				t.Errorf("failure %+v", f)
			}
			s.ears.awaitFailure(t, 2) // told again: a pause may have kept the first from being taken
		})
	}
}

func TestAnOpenCheckpointPhaseGivesTheFullGraceAfterAFailure(t *testing.T) {
	w := &worker{proc: new(proc.Process)}
	s := &Service{lives: map[int]*worker{0: w}}
	s.opts.Role.Stop = job.StopPolicy{Signal: "TERM", Grace: 30 * time.Second, GraceOnFailure: 3 * time.Second}
	grace := func(want time.Duration) {
		t.Helper()
		if g := s.stopSpec(stoppedAfterFailure).Grace; g != want {
			t.Errorf("the grace is %s, want %s", g, want)
		}
	}
	grace(3 * time.Second)
	s.takePhase(w, notify.Word{Kind: notify.PhaseBegin, Text: "checkpoint"}, &words{})
	grace(30 * time.Second)
	s.takePhase(w, notify.Word{Kind: notify.PhaseEnd, Text: "checkpoint"}, &words{})
	grace(3 * time.Second)
}

// timerScript is a worker that writes these requests, with PID for its own pid and +N for the time in N
// seconds, into the file of torchelastic's timer, and then sleeps.
func timerScript(requests string) job.Role {
	r := workerOf(`[ $RANK = 0 ] || exec sleep 1000
		now=$(date +%s)
		for r in ` + requests + `; do
			set -- $(echo $r | tr , ' ')
			case $2 in -*) at=-1;; *) at=$((now + $2));; esac
			echo "{\"version\": 1, \"pid\": $$, \"scope_id\": \"$1\", \"expiration_time\": $at.5, \"signal\": $3}" > "$TORCHELASTIC_TIMER_FILE"
		done
		echo set
		exec sleep 1000`)
	r.Env[timerSwitch] = "1"
	return r
}

// shows: A27
func TestAFileTimerThatRunsOutEndsTheWorkerAndIsTheFailure(t *testing.T) {
	slow(t)
	t.Parallel()
	s := enter(t, timerScript("outer,600,9 inner,1,9"))
	s.must(run(1))
	f := s.ears.awaitFailure(t, 1)
	if f.Cause != role.Stuck || f.Life != s.life(1, 0) || !strings.Contains(f.Detail, `its torchelastic timer "inner" has run out`) {
		t.Errorf("failure %+v", f)
	}
	s.ears.await(t, "the worker's end", func() bool {
		return slices.ContainsFunc(s.ears.failures, func(f role.Failure) bool { return f.Exit != nil && f.Exit.Signal == "SIGKILL" })
	})
}

// shows: A27
func TestAFileTimerThatIsReleasedOrHasNoSignalEndsNobody(t *testing.T) {
	slow(t)
	t.Parallel()
	s := enter(t, timerScript("watched,0,0 outer,2,9 inner,600,9 outer,-1,0"))
	s.must(run(1))
	s.awaitLog(1, 0, "set")
	limit := time.NewTimer(3 * time.Second)
	defer limit.Stop()
	select {
	case <-limit.C:
	case <-s.exited:
	}
	if f := s.ears.failed(); len(f) > 0 {
		t.Errorf("failures %+v", f)
	}
}

func TestJunkInTheFileTimerIsSaidOnceAndAStrangerIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := workerOf(`[ $RANK = 0 ] || exec sleep 1000
		{ head -c 100000 /dev/zero | tr '\0' x; echo; echo junk; echo '{"pid": 0, "scope_id": "a", "expiration_time": 0, "signal": 9}'; } > "$TORCHELASTIC_TIMER_FILE"
		echo '{"version": 1, "pid": 1, "scope_id": "s", "expiration_time": 1.5, "signal": 9}' > "$TORCHELASTIC_TIMER_FILE"
		exec sleep 1000`)
	r.Env[timerSwitch] = "1"
	s := enter(t, r)
	s.must(run(1))
	eventually(t, "the stranger to be said", func() bool { return strings.Contains(s.said.String(), "a timer of a stranger has run out") })
	if n := strings.Count(s.said.String(), "a timer that cannot be meant"); n != 1 {
		t.Errorf("junk was said %d times", n)
	}
	if f := s.ears.failed(); len(f) > 0 {
		t.Errorf("failures %v", f)
	}
}

// shows: A27
func TestTorchelasticsOwnClientSetsTimers(t *testing.T) {
	slow(t)
	t.Parallel()
	python := ""
	for _, p := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(p, "-c", "import torch.distributed.elastic.timer").Run() == nil {
			python = p
			break
		}
	}
	if python == "" {
		t.Skip("no Python with torch here")
	}
	r := workerOf(`[ $RANK = 0 ] || exec sleep 1000
		exec ` + python + ` -c '
import os, time
import torch.distributed.elastic.timer as timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=60):
    print("released soon", flush=True)
with timer.expires(after=1):
    time.sleep(1000)
'`)
	r.Env[timerSwitch] = "1"
	s := enter(t, r)
	s.must(run(1))
	if f := s.ears.awaitFailure(t, 1); f.Cause != role.Stuck || !strings.Contains(f.Detail, "its torchelastic timer") {
		t.Errorf("failure %+v", f)
	}
}

// starve has a process, which leads a session of its own, compete with a busy loop for one CPU, from which it gets next to nothing.
func starve(t *testing.T, pid int) {
	t.Helper()
	hog := exec.Command("/bin/sh", "-c", "while :; do :; done")
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hog.Process.Kill(); hog.Wait() })
	var ours, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !ours.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	for _, pid := range []int{pid, hog.Process.Pid} {
		if err := unix.SchedSetaffinity(pid, &one); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		t.Fatal(err)
	}
	// Where sessions compete first (sched(7), autogroup), its session must stand back, too.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte("19"), 0)
}

func TestThatASilentWorkerIsKeptFromTheCPUIsTold(t *testing.T) {
	slow(t)
	t.Parallel()
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("this kernel keeps no schedstat")
	}
	r := workerOf(`"$SELF" X_VIGIL_STEP=41 exit:0; [ $RANK = 0 ] || exec sleep 1000; while :; do :; done`)
	r.Env[playAs] = "say"
	s := enter(t, r)
	s.must(run(1))
	worker := s.ears.awaitState(t, 0, role.WorkerReady)
	s.ears.await(t, "both to have spoken", func() bool { return len(s.ears.beats) >= 2 })
	starve(t, worker.PID)
	s.ears.await(t, "the hunger of rank 0", func() bool {
		told := time.Duration(0)
		for _, waited := range s.ears.starved {
			told += waited
		}
		return told > time.Second
	})
}

func TestAProcessThatOthersKeepFromTheCPUIsSeenToWaitAndOneThatSleepsIsNot(t *testing.T) {
	t.Parallel()
	begin := func(script string) int {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // its session stands back alone
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); cmd.Wait() }) // with the shell's child
		return cmd.Process.Pid
	}
	starving, asleep := begin(`while :; do :; done`), begin("sleep 1000; :")
	starve(t, starving)
	if len(threadsBelow(starving)) == 0 {
		t.Skip("this kernel keeps no schedstat")
	}
	eventually(t, "the sleeper to sleep", func() bool { // until then it has to start, which a busy machine lets wait
		threads := threadsBelow(asleep)
		name, _ := os.ReadFile(filepath.Join("/proc", childOf(asleep), "comm"))
		return len(threads) == 2 && string(name) == "sleep\n" && !slices.ContainsFunc(slices.Collect(maps.Keys(threads)), wantsToRun)
	})
	at := func(pid int) health.CPULook {
		return health.CPULook{At: time.Now(), Threads: threadsBelow(pid), Stuck: wantsToRun}
	}
	var hungry, content health.CPU
	last, firstAsleep := at(starving), at(asleep)
	hungry.All(last)
	content.All(firstAsleep)
	eventually(t, "the starving one to have waited for half of the time since the last look", func() bool {
		if time.Since(last.At) < 300*time.Millisecond {
			return false
		}
		now := at(starving)
		passed := now.At.Sub(last.At)
		last = now // a wait that has not ended is in no account: only that nothing has moved since the last look tells of it
		return hungry.All(now) > passed/2
	})
	if now := at(asleep); content.All(now) > now.At.Sub(firstAsleep.At)/5 {
		t.Error("the sleeper has waited for a CPU")
	}
	if n := len(threadsBelow(asleep)); n != 2 {
		t.Errorf("%d threads of the shell and its child (%s)", n, childOf(asleep))
	}
}

// childOf returns the pid of a process's one child.
func childOf(pid int) string {
	children, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "task", fmt.Sprint(pid), "children"))
	return strings.TrimSpace(string(children))
}

func TestTheWordsOfTheNotifySocketCanBePostedToo(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`[ $RANK = 0 ] || exec sleep 1000; echo "$VIGIL_SERVICE_URL"; exec sleep 1000`))
	s.must(run(1))
	s.awaitLog(1, 0, "/life/")
	at := strings.TrimSpace(s.log(1, 0, "stdout")) + "/notify"
	post := func(lines string, want int) {
		t.Helper()
		resp, err := http.Post(at, "text/plain", strings.NewReader(lines))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("answered %d, want %d", resp.StatusCode, want)
		}
	}
	post("X_VIGIL_PHASE=+eval\nX_VIGIL_STEP=41", http.StatusOK)
	post("X_VIGIL_STEP=ten\nX_VIGIL_PHASE=-eval", http.StatusBadRequest)
	post(strings.Repeat("x", 1<<20), http.StatusRequestEntityTooLarge)
	s.ears.await(t, "what was said", func() bool {
		return slices.Equal(s.ears.phases, []string{"+eval", "-eval"}) && slices.Contains(s.ears.beats, beat{s.life(1, 0), 41, true})
	})
	s.must(stop(&api.Stop{}))
	s.must(run(2))
	post("X_VIGIL_STEP=42", http.StatusConflict)
}
