package service

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vigil/internal/job"
	"vigil/internal/wire/rpc"
)

func TestTheOptimizerHookStandsFirstInThePathOfPythonUnlessItIsSwitchedOff(t *testing.T) {
	for _, c := range []struct {
		name, folder string
		base         []string
		env          map[string]string
		want         string // PYTHONPATH; empty: not set
	}{
		{"alone", "/logs/.inject", nil, nil, "/logs/.inject"},
		{"before what the service inherited", "/logs/.inject", []string{"PYTHONPATH=/a:/b"}, nil, "/logs/.inject:/a:/b"},
		{"before what the job file says", "/logs/.inject", []string{"PYTHONPATH=/a"}, map[string]string{"PYTHONPATH": "/c"}, "/logs/.inject:/c"},
		{"switched off in the job file", "/logs/.inject", []string{"PYTHONPATH=/a"}, map[string]string{"VIGIL_INJECT": "0"}, "/a"},
		{"switched off where nothing was set", "/logs/.inject", []string{"VIGIL_INJECT=0"}, nil, ""},
		{"a role without the hook", "", []string{"PYTHONPATH=/a"}, nil, "/a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := critic()
			s.Base, s.Role.Env, s.HookFolder = c.base, c.env, c.folder
			_, environ, err := compose(s)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, "PYTHONPATH=") })
			switch {
			case at < 0 && c.want != "":
				t.Errorf("PYTHONPATH is not set, want %s", c.want)
			case at >= 0 && environ[at] != "PYTHONPATH="+c.want:
				t.Errorf("%s, want %q", environ[at], c.want)
			}
		})
	}
}

func TestTheHookIsWrittenOnceAndOnlyForARoleThatAsksForIt(t *testing.T) {
	logs := t.TempDir()
	r := job.Role{Progress: job.Progress{Source: job.FromWord}}
	if folder, err := writeHook(&r, logs); folder != "" || err != nil {
		t.Errorf("a role that speaks itself: %q, %v", folder, err)
	}
	r.Progress.Source = job.FromHook
	folder, err := writeHook(&r, logs)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "sitecustomize.py")
	first, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writeHook(&r, logs); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(path); err != nil || !os.SameFile(first, again) {
		t.Errorf("the same hook was written again (%v)", err)
	}
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := writeHook(&r, logs); err != nil {
		t.Fatal(err)
	}
	if is, err := os.ReadFile(path); err != nil || string(is) != string(optimizerHook) {
		t.Errorf("another hook was left there: %q, %v", is, err)
	}
	if left, _ := os.ReadDir(folder); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := writeHook(&r, filepath.Join(logs, "a:b")); err == nil || !strings.Contains(err.Error(), "PYTHONPATH") {
		t.Errorf("a folder with a colon: %v", err)
	}
}

func TestAStepOfTheHookIsAGuess(t *testing.T) {
	t.Parallel()
	s := enter(t, sayer("X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=100"))
	s.must(run(1))
	s.ears.await(t, "the guess", func() bool { return slices.Equal(s.ears.guesses, []beat{{s.life(1, 0), 100, true}}) })
	if got := s.must(getStep()).Step; got != 100 {
		t.Errorf("the role's step is %d, want 100", got)
	}
	s.ears.mu.Lock()
	defer s.ears.mu.Unlock()
	if len(s.ears.beats) > 0 {
		t.Errorf("taken for the program's own word: %v", s.ears.beats)
	}
}

func TestAProgramThatSaysItsStepsItselfIsBelievedInsteadOfTheHook(t *testing.T) {
	t.Parallel()
	s := enter(t, sayer("X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=100", "X_VIGIL_STEP=25", "X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=101", "STATUS=done"))
	s.must(run(1))
	life := s.life(1, 0)
	s.ears.await(t, "its step", func() bool { return slices.Contains(s.ears.beats, beat{life, 25, true}) })
	s.ears.await(t, "the status", func() bool {
		return slices.ContainsFunc(s.ears.states, func(w rpc.WorkerState) bool { return w.Life == life && w.Status == "done" })
	})
	if got := s.must(getStep()).Step; got != 25 {
		t.Errorf("the role's step is %d, want 25, which the program itself has said", got)
	}
	s.ears.mu.Lock()
	defer s.ears.mu.Unlock()
	if slices.Contains(s.ears.guesses, beat{life, 101, true}) {
		t.Errorf("the hook was heard after the program: %v", s.ears.guesses)
	}
}
