package service

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// sayer is a role whose rank 0 says these datagrams; rank 1 waits to be stopped.
func sayer(datagrams ...string) job.Role {
	r := workerOf("")
	r.Command = append([]string{"/bin/sh", "-c", `[ $RANK = 0 ] || exec sleep 1000; exec "$SELF" "$@"`, "sh"}, datagrams...)
	r.Env[playAs] = "say"
	return r
}

func TestWordsOnTheNotifySocketReachTheController(t *testing.T) {
	t.Parallel()
	s := enter(t, sayer("STATUS=warming up", "WATCHDOG=1", "hello", "X_VIGIL_STEP=41\nX_VIGIL_CHECKPOINT=40"))
	s.must(run(1))
	life := s.life(1, 0)
	s.ears.await(t, "step 41", func() bool { return slices.Contains(s.ears.beats, beat{life, 41, true}) })
	s.ears.await(t, "the checkpoint", func() bool { return slices.Equal(s.ears.checkpoints, []int64{40}) })
	s.ears.await(t, "the status", func() bool {
		return slices.ContainsFunc(s.ears.states, func(w rpc.WorkerState) bool { return w.Life == life && w.Status == "warming up" })
	})
	if got := s.must(getStep()).Step; got != 41 {
		t.Errorf("the role's step is %d, want 41, of the only rank that has spoken", got)
	}
	eventually(t, "the junk to be said", func() bool { return strings.Contains(s.said.String(), "hello") })
	if n := len(s.ears.failed()); n > 0 {
		t.Errorf("%d failures", n)
	}
}

func TestAnErrorIsToldOncePerLifeAndAgainOnlyIfItTurnsOutFatal(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		said []string
		want []string
	}{
		{"twice the same", []string{"X_VIGIL_ERROR=bad batch", "X_VIGIL_ERROR=bad batch", "exit:0"}, []string{"reported bad batch false"}},
		{"fatal beside it, whichever comes first", []string{"X_VIGIL_FATAL=1\nX_VIGIL_ERROR=no data", "exit:0"}, []string{"reported no data true"}},
		{"fatal after it", []string{"X_VIGIL_ERROR=no data", "X_VIGIL_FATAL=1", "X_VIGIL_FATAL=1", "exit:0"}, []string{"reported no data false", "reported no data true"}},
		{"its end repeats what it reported", []string{"X_VIGIL_ERROR=bad batch", "exit:3"}, []string{"reported bad batch false", "exited bad batch false"}},
		{"its end is fatal when it said so", []string{"X_VIGIL_FATAL=1", "exit:3"}, []string{"exited exit code 3 true"}},
		{"a trigger", []string{"WATCHDOG=trigger", "exit:0"}, []string{"reported the worker said that it has failed (WATCHDOG=trigger) false"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := enter(t, sayer(tt.said...))
			s.must(run(1))
			s.ears.await(t, "the worker's end", func() bool {
				return slices.ContainsFunc(s.ears.states, func(w rpc.WorkerState) bool { return w.Life.Rank == 0 && w.Exit != nil })
			})
			var got []string
			for _, f := range s.ears.failed() {
				detail, _, _ := strings.Cut(f.Detail, " (pid")
				got = append(got, fmt.Sprint(f.Cause, " ", detail, " ", f.Fatal))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("told %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheTorchErrorFileSaysWhyAWorkerEnded(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`[ $RANK = 0 ] || exec sleep 1000
		echo '{"message": {"message": "RuntimeError: NaN in loss", "extraInfo": {}}}' > "$TORCHELASTIC_ERROR_FILE"; exit 1`))
	s.must(run(1))
	if f := s.ears.awaitFailure(t, 1); f.Detail != "RuntimeError: NaN in loss" || f.Exit.Code != 1 {
		t.Errorf("detail %q, exit %v", f.Detail, f.Exit)
	}
}

func TestTheRolesStepIsTheLeastOfTheRanksThatHaveSpoken(t *testing.T) {
	s := steps{}
	s.begin(40)
	check := func(want int64) {
		t.Helper()
		if got := s.role(); got != want {
			t.Errorf("step %d, want %d", got, want)
		}
	}
	check(40)
	s.said(1, 43)
	check(43)
	s.said(0, 42)
	check(42)
	s.said(0, 30) // late word
	check(42)
	s.took(0, 10)
	check(10)
	s.said(0, 11)
	check(11)
	s.begin(11)
	check(11)
}

// listeners is a role of workers that bind their inboxes.
func listeners() job.Role {
	r := workerOf("")
	r.Command = []string{"/bin/sh", "-c", `exec "$SELF"`}
	r.Env[playAs] = "listen"
	return r
}

func TestRunningWorkersTakeAStepEvenALowerOne(t *testing.T) {
	t.Parallel()
	s := enter(t, listeners())
	s.must(run(1))
	for rank := range 2 {
		s.ears.await(t, "step 100 of both", func() bool {
			return slices.ContainsFunc(s.ears.beats, func(b beat) bool { return b.life.Rank == rank && b.step == 100 })
		})
	}
	if answer := s.must(setStep(7)); answer.Pending || answer.Step != 7 {
		t.Errorf("answer %v, want 7, not pending", answer)
	}
	if got := s.must(getStep()).Step; got != 7 {
		t.Errorf("the role's step is %d, want 7", got)
	}
	for rank := range 2 {
		if err := unix.Kill(s.ears.awaitState(t, rank, role.WorkerReady).PID, unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		s.ears.await(t, "both to go on from 7", func() bool {
			return slices.ContainsFunc(s.ears.beats, func(b beat) bool { return b.life.Rank == rank && b.step == 8 })
		})
	}
	if got := s.must(getStep()).Step; got != 8 {
		t.Errorf("the role's step is %d, want 8", got)
	}
	s.must(stop(&api.Stop{}))
	for rank := range 2 {
		if got := s.log(1, rank, "stdout"); !strings.Contains(got, "stopped by word") {
			t.Errorf("rank %d was not told to stop: %q", rank, got)
		}
	}
}

func TestAStepIsSetOnTheIdleServiceAndReadBack(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`echo $VIGIL_RESUME_STEP`))
	if answer := s.must(setStep(77)); answer.Pending || answer.Step != 77 {
		t.Errorf("answer %v, want 77, not pending", answer)
	}
	if got := s.must(getStep()).Step; got != 77 {
		t.Errorf("get_step %d, want 77", got)
	}
	if _, err := s.call(setStep(-1)); err == nil {
		t.Error("a negative step was taken")
	}
}

func TestAStepThatNobodyListensForIsTakenAtTheNextStart(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`echo $VIGIL_RESUME_STEP; exec sleep 1000`))
	s.must(run(1))
	if answer := s.must(setStep(12)); !answer.Pending {
		t.Errorf("answer %v, want pending", answer)
	}
	s.must(stop(&api.Stop{}))
	if got := s.must(getStep()).Step; got != 12 {
		t.Errorf("idle get_step %d, want 12", got)
	}
	if got := s.must(run(2)).Step; got != 12 {
		t.Errorf("started from %d, want 12", got)
	}
	s.awaitLog(2, 0, "12\n")
	s.must(stop(&api.Stop{}))
	if got := s.must(run(3)).Step; got != 40 {
		t.Errorf("started from %d, want the order's 40 again", got)
	}
}

// request asks the service and returns the status and the body.
func request(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// shows: R37 R38 R39 R40
func TestTheRolesEndpointsStandOnTheService(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(`echo "$VIGIL_SERVICE_URL"; exec sleep 1000`))
	at := "http://" + s.hub.Registrations()[0].HTTPAddress
	expect := func(method, path, body string, status int, want string) {
		t.Helper()
		code, got := request(t, method, at+path, body)
		if code != status || want != "" && !sameJSON(got, want) {
			t.Errorf("%s %s: %d %s, want %d %s", method, path, code, got, status, want)
		}
	}
	expect("POST", "/critic/set_step?step=40", "", 200, `{"status":"ok","step":40}`)
	expect("GET", "/critic/get_step", "", 200, `{"step":40}`)
	expect("GET", "/actor/get_step", "", 404, "")
	s.must(run(1))
	s.awaitLog(1, 0, "http://")
	life := strings.TrimPrefix(strings.TrimSpace(s.log(1, 0, "stdout")), at)
	expect("POST", life+"/heartbeat?step=41", "", 200, "")
	expect("POST", "/critic/heartbeat?step=43&rank=1", "", 200, "")
	expect("GET", "/critic/get_step", "", 200, `{"step":41}`)
	expect("POST", "/critic/heartbeat?step=99&life="+s.uid+"/critic/0/0/1", "", 409, "")
	expect("POST", "/critic/heartbeat?step=99&rank=7", "", 409, "")
	expect("POST", life+"/report_error", "out of memory", 200, "")
	if f := s.ears.awaitFailure(t, 1); f.Cause != role.Reported || f.Detail != "out of memory" || f.Life.Rank != 0 {
		t.Errorf("failure %+v", f)
	}
	expect("GET", "/critic/mark_unhealthy_for_testing", "", 200, "")
	if f := s.ears.awaitFailure(t, 2); f.Cause != role.Reported || f.Life.Rank != role.NoRank || f.Life.Incarnation != 1 {
		t.Errorf("failure %+v, want one of the whole service", f)
	}
	expect("POST", "/critic/set_step?step=5", "", 202, `{"status":"pending","step":5}`)
	expect("POST", "/critic/pause_watch?for=1m", "", 501, "")
	pid := s.ears.awaitState(t, 0, role.WorkerReady).PID
	expect("POST", "/critic/stop_service", "", 200, `{"status":"ok"}`)
	s.ears.await(t, "the operator's wish", func() bool { return slices.Equal(s.ears.asked, []string{rpc.AskedStop}) })
	gone(t, pid)
	expect("POST", life+"/heartbeat?step=44", "", 409, "")
}

func sameJSON(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && fmt.Sprint(x) == fmt.Sprint(y)
}
