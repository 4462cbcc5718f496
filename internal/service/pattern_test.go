package service

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
)

// stepsOf is what a scanner finds in a stream that comes in pieces of so many bytes.
func stepsOf(pattern, stream string, piece int) []int64 {
	var steps []int64
	s := &scanner{pattern: regexp.MustCompile(pattern), found: func(n int64) { steps = append(steps, n) }}
	for data := []byte(stream); len(data) > 0; {
		n := min(piece, len(data))
		s.scan(data[:n])
		data = data[n:]
	}
	return steps
}

// The patterns that the documentation recommends, by the program as its table has it, with a log of such a
// program and the steps in it.
var documented = map[string]struct {
	log   string
	steps []int64
}{
	"Megatron-LM":          {"megatron.log", []int64{100, 200}},
	"DeepSpeed":            {"deepspeed.log", []int64{100, 200}},
	"Hugging Face Trainer": {"trainer.log", []int64{0, 60, 200}}, // the last has not ended
	"Lightning":            {"lightning.log", []int64{0, 199, 200}},
	"verl":                 {"verl.log", []int64{1, 2}},
}

func TestTheDocumentedPatternsFindTheStepsInWhatTheProgramsPrint(t *testing.T) {
	page := readFile(t, "../../docs/reference/progress.md")
	rows := regexp.MustCompile("(?m)^\\| ([A-Z][A-Za-z -]*|verl) \\| `(.*)` \\|").FindAllStringSubmatch(page, -1)
	if len(rows) != len(documented) {
		t.Errorf("the documentation has %d patterns, the test %d", len(rows), len(documented))
	}
	for _, row := range rows {
		name, pattern := row[1], row[2]
		t.Run(name, func(t *testing.T) {
			want := documented[name]
			for _, piece := range []int{1, 7} {
				if got := stepsOf(pattern, readFile(t, filepath.Join("testdata/progress", want.log)), piece); !slices.Equal(got, want.steps) {
					t.Errorf("in pieces of %d bytes: steps %v, want %v", piece, got, want.steps)
				}
			}
		})
	}
}

func TestAPatternIsLookedForInWholeLines(t *testing.T) {
	long := strings.Repeat("x", longestMatched)
	for _, one := range []struct {
		name, pattern, stream string
		steps                 []int64
	}{
		{"a line without end is not looked at: its number may go on", `it (\d+)`, "it 1\nit 23", []int64{1}},
		{"a number with commas", `it ([\d,]+)`, "it 1,234,567\n", []int64{1234567}},
		{"a group that is no number", `it (\w+)`, "it x\nit 99999999999999999999\nit 7\n", []int64{7}},
		{"a group that took no part", `it (\d+)|done`, "done\n", nil},
		{"a negative number", `it (-?\d+)`, "it -4\n", nil},
		{"what stands after 64 KiB of a line is not looked at", `it (\d+)`, long + "it 5\nit 6\n", []int64{6}},
		{"a number that is cut by that limit is still one", `it (\d+)`, long[:longestMatched-4] + "it 56\n", []int64{5}},
		{"NUL bytes and what is no UTF-8", `it (\d+)`, "\x00\xff it 8 \xfe\n", []int64{8}},
	} {
		t.Run(one.name, func(t *testing.T) {
			if got := stepsOf(one.pattern, one.stream, 1000); !slices.Equal(got, one.steps) {
				t.Errorf("steps %v, want %v", got, one.steps)
			}
		})
	}
}

// stepping is a role whose first rank runs this script; its steps come from p. GATE names a file.
func stepping(t *testing.T, script string, p job.Progress) (r job.Role, gate string) {
	gate = filepath.Join(t.TempDir(), "gate")
	r = workerOf(`[ $RANK = 0 ] || exec sleep 1000; await() { until [ -e "$GATE.$1" ]; do sleep 0.02; done; }; ` + script)
	r.Env["GATE"], r.Env[playAs] = gate, "say"
	r.Progress = p
	return r, gate
}

func openGate(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestStepsReadFromTheOutputAreGuessesUntilTheWorkerSaysOneItself(t *testing.T) {
	r, gate := stepping(t, `echo "iteration 41"; echo "iteration 42" >&2; await 1; (await 2; echo "iteration 99") & exec "$SELF" X_VIGIL_STEP=50`,
		job.Progress{Source: job.FromPattern, Pattern: `iteration (\d+)`})
	s := enter(t, r)
	s.must(run(1))
	s.ears.await(t, "a guess of 42", func() bool { return slices.ContainsFunc(s.ears.guesses, func(b beat) bool { return b.step == 42 }) })
	if step := s.must(getStep()).GetStep(); step != 42 {
		t.Errorf("the role's step is %d, want 42", step)
	}
	openGate(t, gate+".1")
	s.ears.await(t, "a word of 50", func() bool { return slices.ContainsFunc(s.ears.beats, func(b beat) bool { return b.step == 50 }) })
	openGate(t, gate+".2")
	s.awaitLog(1, 0, "iteration 99")
	if step := s.must(getStep()).GetStep(); step != 50 {
		t.Errorf("the role's step is %d, want 50: the worker says its steps itself", step)
	}
	s.must(stop(&api.Stop{}))
}

func TestAnIterationFileGivesACheckpointAndAGuessedStep(t *testing.T) {
	slow(t)
	r, gate := stepping(t, `await 1; echo 1500 >latest; exec sleep 1000`, job.Progress{Source: job.FromFile, File: "latest"})
	r.Workdir = t.TempDir()
	if err := os.WriteFile(filepath.Join(r.Workdir, "latest"), []byte("1000"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := enter(t, r)
	s.must(run(1))
	openGate(t, gate+".1")
	s.ears.await(t, "a checkpoint of 1500", func() bool { return slices.Contains(s.ears.checkpoints, 1500) })
	s.ears.await(t, "a guess of 1500", func() bool { return slices.Contains(s.ears.guesses, beat{s.life(1, 0), 1500, true}) })
	if slices.Contains(s.ears.checkpoints, 1000) {
		t.Error("the checkpoint of an earlier run was taken for this life's")
	}
	s.must(stop(&api.Stop{}))
}

// shows: A41
func TestThatAnIterationFileHoldsNoStepIsTold(t *testing.T) {
	slow(t)
	r, gate := stepping(t, `await 1; echo release >latest; exec sleep 1000`, job.Progress{Source: job.FromFile, File: "latest"})
	r.Workdir = t.TempDir()
	s := enter(t, r)
	s.must(run(1))
	openGate(t, gate+".1")
	s.ears.await(t, "that steps cannot be read", func() bool { return slices.Contains(s.ears.unreadable, s.life(1, 0)) })
	if !slices.ContainsFunc(s.ears.notices, func(text string) bool { return strings.Contains(text, `"release\n" is no step`) }) {
		t.Errorf("the notices are %q", s.ears.notices)
	}
	s.must(stop(&api.Stop{}))
}

func TestAnIterationFileIsReadOnceForEachTimeItIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "latest")
	f := &iterationFile{path: path}
	look := func(want int64, wantOK bool) {
		t.Helper()
		if step, ok, err := f.look(); step != want || ok != wantOK || err != nil {
			t.Errorf("step %d %t, %v; want %d %t", step, ok, err, want, wantOK)
		}
	}
	write := func(text string, at int64) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path+".new", time.Time{}, time.Unix(at, 0)); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	look(0, false)
	write("1000\n", 1)
	look(1000, true)
	look(0, false)
	write("1100\n", 2)
	look(1100, true)
	write("  global_step1200 ", 3)
	look(1200, true)
	os.Remove(path)
	look(0, false)
}

func TestAnIterationFileThatHoldsNoStepIsSaidOnceAndNeverWaitedFor(t *testing.T) {
	for _, one := range []struct {
		name, want string
		make       func(path string) error
	}{
		{"a FIFO", "not a regular file", func(p string) error { return unix.Mkfifo(p, 0o600) }},
		{"a folder", "not a regular file", func(p string) error { return os.Mkdir(p, 0o700) }},
		{"a gigabyte", "it has 1073741824 bytes", func(p string) error {
			return os.WriteFile(p, nil, 0o600)
		}},
		{"a word", `"release" is no step`, func(p string) error { return os.WriteFile(p, []byte("release"), 0o600) }},
		{"nothing", `"" is no step`, func(p string) error { return os.WriteFile(p, nil, 0o600) }},
		{"a number that no step can be", "is no step", func(p string) error { return os.WriteFile(p, []byte("99999999999999999999"), 0o600) }},
	} {
		t.Run(one.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "latest")
			if err := one.make(path); err != nil {
				t.Fatal(err)
			}
			if one.name == "a gigabyte" {
				if err := os.Truncate(path, 1<<30); err != nil {
					t.Fatal(err)
				}
			}
			f := &iterationFile{path: path}
			if _, ok, err := f.look(); ok || err == nil || !strings.Contains(err.Error(), one.want) {
				t.Errorf("%t, %v; want an error with %q", ok, err, one.want)
			}
			if _, ok, err := f.look(); ok || err != nil {
				t.Errorf("the second look: %t, %v; want nothing new", ok, err)
			}
		})
	}
}
