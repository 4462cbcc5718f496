package service

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/role"
	"vigil/internal/wire/notify"
)

// saying is a shell function that says its argument on the notify socket as an exec'ed program that ends at once.
const saying = `say() { VIGIL_TEST_AS=say "$SELF" "$@" exit:0; }; `

// shows: FAULT-A1
//
// It covers what each kind of sender may do: a child, one in a session and one without its environment, a daemon that
// the worker has left behind, and one that is gone when its word is read.
func TestWhatAProcessOfAWorkerSaysCountsAndWhatItRaisesIsEvidence(t *testing.T) {
	t.Parallel()
	r := workerOf(saying + `[ $RANK = 0 ] || exec sleep 1000
		say "$(printf 'X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=raised by a child')"
		setsid sh -c 'VIGIL_TEST_AS=say "$SELF" "$(printf "X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=raised in a session")" exit:0'
		(setsid sh -c 'until [ -e $0 ]; do sleep 0.02; done; VIGIL_TEST_AS=say exec "$SELF" "$(printf "X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=raised by a daemon\nX_VIGIL_STEP=1")" X_VIGIL_STEP=3 X_VIGIL_CHECKPOINT=3' $R/go &)
		say X_VIGIL_STEP=2 STATUS=waiting
		until [ -e $R/end ]; do sleep 0.02; done
		say X_VIGIL_ERROR=explicit
		exec sleep 1000`)
	r.Env["R"] = t.TempDir()
	s := enter(t, r)
	s.must(run(1))
	life := s.life(1, 0)
	s.ears.await(t, "the child's step", func() bool { return slices.Contains(s.ears.beats, beat{life, 2, true}) })
	// Only now may the daemon speak: of two steps that come together only the newer one is told.
	if err := os.WriteFile(filepath.Join(r.Env["R"], "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.ears.await(t, "the daemon's step and checkpoint", func() bool {
		return slices.Contains(s.ears.beats, beat{life, 3, true}) && slices.Equal(s.ears.checkpoints, []int64{3})
	})
	for _, want := range []string{"raised by a child", "raised in a session", "raised by a daemon"} {
		eventually(t, want, func() bool { return strings.Contains(s.said.String(), want) })
	}
	if failed := s.ears.failed(); len(failed) > 0 {
		t.Fatalf("failures %+v of what nobody has reported", failed)
	}
	if err := os.WriteFile(filepath.Join(r.Env["R"], "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := s.ears.awaitFailure(t, 1); f.Cause != role.Reported || f.Detail != "explicit" {
		t.Errorf("failure %+v, want what a child has reported", f)
	}
}

// shows: FAULT-A1
func TestWhatTheWorkerItselfRaisesIsReportedAndWhatItsChildRaisesSaysWhyItEnds(t *testing.T) {
	t.Parallel()
	const raises = "X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=ValueError: 3"
	own := enter(t, sayer(raises))
	own.must(run(1))
	if f := own.ears.awaitFailure(t, 1); f.Cause != role.Reported || f.Detail != "ValueError: 3" {
		t.Errorf("failure %+v, want the worker's own exception", f)
	}
	r := workerOf(saying + `[ $RANK = 0 ] || exec sleep 1000; say "$RAISES"; exit 3`)
	r.Env["RAISES"] = raises
	wrapped := enter(t, r)
	wrapped.must(run(1))
	if f := wrapped.ears.awaitFailure(t, 1); f.Cause != role.Exited || !strings.HasPrefix(f.Detail, "ValueError: 3; exit code 3") {
		t.Errorf("failure %+v, want the end with what the child has raised", f)
	}
}

// A shell hides how the program in a pipe has ended: "python train.py | tee log" ends with 0. The exception of who speaks
// for the worker is the failure then, not that of another program of the script, and not where the program was begun again.
// shows: FAULT-A1
func TestAScriptThatEndsWellAlthoughItsTrainingHasRaisedHasFailed(t *testing.T) {
	t.Parallel()
	const step, other = `VIGIL_TEST_AS=say "$SELF" X_VIGIL_STEP=4 until:heard`, `VIGIL_TEST_AS=say "$SELF" STATUS=up`
	for name, c := range map[string]struct {
		script string
		fails  bool
	}{
		"in a pipe":              {step + ` "$RAISES" exit:1 | cat`, true},
		"another program":        {step + ` exit:0; ` + other + ` "$RAISES" exit:1 | cat`, false},
		"another one afterwards": {step + ` "$RAISES" exit:1 | cat; ` + other + ` "${RAISES}3" exit:1 | cat`, true},
		"begun again":            {step + ` "$RAISES" exit:1 || ` + step + ` exit:0`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := workerOf(`[ $RANK = 0 ] || exec sleep 1000; ` + c.script)
			r.Env["RAISES"], r.Workdir = "X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=ValueError: 3", t.TempDir()
			s := enter(t, r)
			s.must(run(1))
			s.ears.await(t, "its step", func() bool { return len(s.ears.beats) > 0 })
			if err := os.WriteFile(filepath.Join(r.Workdir, "heard"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if !c.fails {
				s.ears.awaitState(t, 0, role.WorkerFinished)
				if failed := s.ears.failed(); len(failed) > 0 {
					t.Errorf("failures %+v", failed)
				}
				return
			}
			if f := s.ears.awaitFailure(t, 1); f.Cause != role.Exited || !strings.HasPrefix(f.Detail, "ValueError: 3; exit code 0") {
				t.Errorf("failure %+v, want what the program has raised", f)
			}
			s.ears.awaitState(t, 0, role.WorkerDown)
		})
	}
}

// shows: FAULT-A1
func TestAForeignProcessIsDroppedCountedAndSaidOnceUnlessTheRoleAdmitsIt(t *testing.T) {
	t.Parallel()
	for _, access := range []job.NotifyAccess{job.ProcessTree, job.AnyProcess} {
		t.Run(string(access), func(t *testing.T) {
			t.Parallel()
			r := workerOf(`[ $RANK = 0 ] || exec sleep 1000; echo $NOTIFY_SOCKET; exec sleep 1000`)
			r.NotifyAccess = access
			s := enter(t, r)
			s.must(run(1))
			eventually(t, "the socket's name", func() bool { return strings.HasSuffix(s.log(1, 0, "stdout"), "\n") })
			socket, life := strings.TrimSpace(s.log(1, 0, "stdout")), s.life(1, 0)
			for _, word := range []string{"X_VIGIL_STEP=41", "X_VIGIL_STEP=42", "READY=1\nX_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=not its own"} {
				if err := notify.Send(socket, word); err != nil {
					t.Fatal(err)
				}
			}
			if access == job.AnyProcess {
				s.ears.await(t, "the steps", func() bool { return slices.Contains(s.ears.beats, beat{life, 42, true}) })
			} else {
				s.ears.await(t, "the count", func() bool { return s.ears.foreign == 3 })
				s.ears.await(t, "the notice", func() bool { return len(s.ears.notices) > 0 })
				s.ears.mu.Lock()
				if n := s.ears.notices; len(n) != 1 || !strings.Contains(n[0], fmt.Sprintf("pid %d", os.Getpid())) || len(s.ears.beats) > 0 {
					t.Errorf("notices %q, beats %v: want one notice that names us, and no beat", n, s.ears.beats)
				}
				s.ears.mu.Unlock()
			}
			if failed := s.ears.failed(); len(failed) > 0 {
				t.Errorf("failures %+v", failed)
			}
		})
	}
}

// shows: FAULT-A1
//
// A sender that has ended before anybody looks is believed as a child is: one may have been its parent.
func TestTheWordOfASenderThatIsGoneCounts(t *testing.T) {
	t.Parallel()
	socat, err := exec.LookPath("socat")
	if err != nil {
		socat = ""
	}
	for name, command := range map[string]string{
		"a program that ends at once": saying + `say "X_VIGIL_ERROR=said in passing"`,
		"socat":                       `printf 'X_VIGIL_ERROR=said in passing' | ` + socat + ` - UNIX-SENDTO:$NOTIFY_SOCKET`,
		"a daemon that ends at once":  `(setsid sh -c 'VIGIL_TEST_AS=say "$SELF" "X_VIGIL_ERROR=said in passing" exit:0' &)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "socat" && socat == "" {
				t.Skip("SKIPPED: socat is not installed")
			}
			s := enter(t, workerOf(`[ $RANK = 0 ] || exec sleep 1000; `+command+`; exec sleep 1000`))
			s.must(run(1))
			if f := s.ears.awaitFailure(t, 1); f.Cause != role.Reported || f.Detail != "said in passing" {
				t.Errorf("failure %+v", f)
			}
		})
	}
}

// shows: FAULT-A1
//
// A program that has raised and does not end is no tolerated failure where a shell waits for it and runs nothing else;
// below a program that may bear it, or beside another one, it is. That the shell has borne another one just before changes
// nothing.
func TestAProgramThatHasRaisedAndDoesNotEndIsAFailureBelowAShellOnly(t *testing.T) {
	slow(t)
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: python3 is not installed")
	}
	r := workerOf(`[ $RANK != 2 ] || { VIGIL_TEST_AS=say "$SELF" "${RAISES}2" & sleep 1000; }
		[ $RANK = 0 ] || exec ` + python + ` -c 'import os, subprocess; subprocess.run([os.environ["SELF"], os.environ["RAISES"] + "1"], env=dict(os.environ, VIGIL_TEST_AS="say"))'
		VIGIL_TEST_AS=say "$SELF" "${RAISES}the first" until:raised exit:1
		VIGIL_TEST_AS=say "$SELF" "$RAISES$RANK"; :`)
	r.Workdir = t.TempDir()
	r.Env["RAISES"] = "X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=raised by "
	r.Workers = 3
	s := enter(t, r)
	order := run(1)
	order.GetRun().WorldSize = 3
	order.GetRun().Workers = append(order.GetRun().Workers, &api.Worker{Rank: 2, Attempt: 1})
	s.must(order)
	for _, who := range []string{"1", "2", "the first"} {
		eventually(t, who+" to raise", func() bool { return strings.Contains(s.said.String(), "raised by "+who) })
	}
	touch(t, filepath.Join(r.Workdir, "raised"))
	f := s.ears.awaitFailure(t, 1)
	if f.Life.Rank != 0 || f.Cause != role.Reported || f.Detail != "raised by 0" {
		t.Errorf("failure %+v, want rank 0's", f)
	}
}

// shows: FAULT-A1
func TestAnErrorFileThatATrainingHasBorneDoesNotSayWhyItEndsLater(t *testing.T) {
	t.Parallel()
	s := enter(t, workerOf(saying+`[ $RANK = 0 ] || exec sleep 1000
		echo '{"message": "RuntimeError: of a child"}' > "$TORCHELASTIC_ERROR_FILE"
		touch -d '1 minute ago' "$TORCHELASTIC_ERROR_FILE"
		say X_VIGIL_STEP=41; exit 5`))
	s.must(run(1))
	if f := s.ears.awaitFailure(t, 1); f.Cause != role.Exited || !strings.HasPrefix(f.Detail, "exit code 5") {
		t.Errorf("failure %+v, want the exit alone", f)
	}
}

// A start that fails, and a word that comes meanwhile, hold nobody up.
func TestAWorkerThatCannotBeStartedHearsNobodyAndIsDiscarded(t *testing.T) {
	t.Parallel()
	r := workerOf("")
	r.Command = []string{"/does/not/exist"}
	s := enter(t, r)
	if _, err := s.call(run(1)); err == nil {
		t.Fatal("a program that does not exist was started")
	}
	s.must(stop(&api.Stop{}))
}

// shows: FAULT-A1
//
// Ranks below shells, one of which raises and takes the other along: the failure says which one it was.
func TestARankThatEndsBecauseAPeersProcessHasRaisedSaysSo(t *testing.T) {
	t.Parallel()
	r := workerOf(saying + `if [ $RANK = 1 ]; then say "$RAISES"; touch raised; exec sleep 1000; fi
		until [ -e raised ]; do sleep 0.02; done; say "${RAISES}: closed by peer"; exit 3`)
	r.Workdir = t.TempDir()
	r.Env["RAISES"] = "X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=ValueError: 3"
	s := enter(t, r)
	s.must(run(1))
	if f := s.ears.awaitFailure(t, 1); f.Life.Rank != 0 || !strings.HasPrefix(f.Detail, "rank 1 failed first: ValueError: 3; exit code 3") {
		t.Errorf("failure %+v, want rank 0's end by what rank 1 has raised", f)
	}
}
