package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAScriptOrModuleIsRunByTheRolesInterpreter(t *testing.T) {
	for _, c := range []struct {
		about, command string
		want           []string
	}{
		{"a script", "[train.py, --epochs, '3']", []string{".venv/bin/python", "-u", "train.py", "--epochs", "3"}},
		{"a module", "[-m, pkg.train]", []string{".venv/bin/python", "-u", "-m", "pkg.train"}},
	} {
		j := mustParse(t, "name: x\nroles:\n  main:\n    python: .venv/bin/python\n    command: "+c.command+"\n")
		if diff := cmp.Diff(c.want, j.Roles[0].Argv()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.about, diff)
		}
	}
	if got := mustParse(t, "name: x\nroles: {main: {command: [./train.py]}}\n").Roles[0].Argv(); len(got) != 1 {
		t.Errorf("without python a script runs by itself, got %q", got)
	}
}

// shows: A09
func TestAnInterpreterOrAScriptThatIsNotThereIsFoundBeforeAnythingStarts(t *testing.T) {
	python := write(t, "python", "#!/bin/sh\n", 0o755)
	dir := filepath.Dir(python)
	if err := os.WriteFile(filepath.Join(dir, "train.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ about, python, script, err string }{
		{"no interpreter is named", "", "./train.py", dir + "/train.py: not executable; name an interpreter with python, such as python: python3"},
		{"both are there", "./python", "train.py", ""},
		{"the interpreter is not", ".venv/bin/python", "train.py", `roles.main.python: role main: command ".venv/bin/python": ` + dir + "/.venv/bin/python: no such file or directory"},
		{"the script is not", "./python", "trane.py", `roles.main.command[0]: role main: script "trane.py": ` + dir + "/trane.py: no such file or directory"},
		{"looked up in PATH", "python9", "train.py", "not found in PATH /usr/bin"},
	} {
		text := fmt.Sprintf("name: x\nroles:\n  main:\n    command: [%s]\n", c.script)
		if c.python != "" {
			text += "    python: " + c.python + "\n"
		}
		j, err := Parse("job.yaml", []byte(text), dir)
		if err != nil {
			t.Fatal(err)
		}
		switch err := j.Check(Machine{Environ: []string{"PATH=/usr/bin"}}); {
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.about, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: got %v, want %s", c.about, err, c.err)
		}
	}
}
