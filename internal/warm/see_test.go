package warm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"vigil/internal/proc"
)

// The words under which an executed worker and a forked one differ, each with the reason.
var differences = map[string]string{
	"random":       "drawn anew by each",
	"hash":         "the secret of the fork server, unless PYTHONHASHSEED is set",
	"modules":      "what was preloaded, and what the fork server itself needs, is there already",
	"stack":        "one frame of the fork server is under the program's",
	"frozen":       "what was imported is kept out of garbage collection",
	"cgroup":       "each life has a leaf of its own",
	"environ":      "the mark of each life",
	"c_environ":    "the mark of each life",
	"proc_environ": "the mark of each life",
}

type sight map[string]any

func look(t *testing.T, r *run) sight {
	t.Helper()
	out, errs := r.end(t)
	s := sight{}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("the worker printed %q and %q, exit %v: %v", out, errs, r.Exit(), err)
	}
	return s
}

// compare looks at the same program executed and forked.
func compare(t *testing.T, b *bench, args ...string) (executed, forked sight) {
	t.Helper()
	first, second := b.spec(args...), b.spec(args...)
	second.Env = append(slices.Clone(first.Env[:len(first.Env)-1]), second.Env[len(second.Env)-1])
	executed, forked = look(t, b.exec(first)), look(t, b.fork(second))
	if len(executed) < 60 {
		t.Fatalf("the program saw only %d things", len(executed))
	}
	for word, value := range executed {
		if _, known := differences[word]; !known && !reflect.DeepEqual(value, forked[word]) {
			t.Errorf("%s:\nexecuted %v\nforked   %v", word, value, forked[word])
		}
	}
	mark := func(s sight, spec proc.Spec, key string) string {
		text, _ := json.Marshal(s[key])
		return strings.ReplaceAll(string(text), strings.TrimPrefix(spec.Env[len(spec.Env)-1], "VIGIL_LIFE="), "MARK")
	}
	for _, key := range []string{"environ", "c_environ", "proc_environ"} {
		if a, b := mark(executed, first, key), mark(forked, second, key); a != b {
			t.Errorf("%s:\nexecuted %v\nforked   %v", key, a, b)
		}
	}
	if second.Leaf != "" {
		for s, leaf := range map[string]string{executed["cgroup"].([]any)[0].(string): first.Leaf, forked["cgroup"].([]any)[0].(string): second.Leaf} {
			if !strings.HasSuffix(s, leaf) {
				t.Errorf("a worker is in cgroup %s instead of %s", s, leaf)
			}
		}
	}
	for _, name := range executed["modules"].([]any) {
		if !slices.Contains(forked["modules"].([]any), name) {
			t.Errorf("module %v is missing in the forked worker", name)
		}
	}
	if extra := len(forked["stack"].([]any)) - len(executed["stack"].([]any)); extra != 1 {
		t.Errorf("the forked worker has %d frames more: %v", extra, forked["stack"])
	}
	for i, drawn := range executed["random"].([]any) {
		if reflect.DeepEqual(drawn, forked["random"].([]any)[i]) {
			t.Errorf("random number %d is the same in both: %v", i, drawn)
		}
	}
	return executed, forked
}

func seeDir(t *testing.T, b *bench) {
	t.Helper()
	text, err := os.ReadFile("testdata/see.py")
	if err != nil {
		t.Fatal(err)
	}
	b.file("see.py", string(text))
	if err := os.Mkdir(filepath.Join(b.dir, "pkg"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.file("pkg/__init__.py", "")
	b.file("pkg/see.py", string(text))
	b.file("pkg/__main__.py", string(text))
}

// A worker that was forked cannot be told from one that was executed, but for what the guide lists.
func TestAForkedWorkerSeesWhatAnExecutedOneSees(t *testing.T) {
	for name, args := range map[string][]string{
		"script":            {"see.py", "--steps", "3", ""},
		"script elsewhere":  {"-u", "./pkg/../pkg/see.py"},
		"options":           {"-OBs", "-Xdev", "-W", "ignore", "see.py", "-u"},
		"module":            {"-m", "pkg.see", "-x"},
		"package":           {"-B", "-mpkg", "y"},
		"isolated":          {"-I", "see.py"},
		"text of a program": {"-c", "exec(open('see.py').read().replace('inspect.getsource(Pickled)', '0'))", "z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, Options{Preload: []string{"json", "logging"}})
			seeDir(t, b)
			compare(t, b, args...)
		})
	}
}

func TestAWorkerWithTorchPreloadedSeesWhatAnExecutedOneSees(t *testing.T) {
	slow(t)
	if !hasModule(t, "torch") {
		t.Skip("THIS PYTHON HAS NO TORCH: not shown here")
	}
	b := newBench(t, Options{Preload: []string{"torch", "logging"}})
	seeDir(t, b)
	text, err := os.ReadFile("testdata/see.py")
	if err != nil {
		t.Fatal(err)
	}
	b.file("train.py", "import torch\n"+string(text))
	_, forked := compare(t, b, "train.py")
	again := look(t, b.fork(b.spec("train.py")))
	for i, drawn := range forked["random"].([]any) {
		if reflect.DeepEqual(drawn, again["random"].([]any)[i]) {
			t.Errorf("random number %d is the same in two workers: %v", i, drawn)
		}
	}
}
