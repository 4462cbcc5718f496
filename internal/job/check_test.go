package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// write makes a file under a new folder and returns its path.
func write(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// shows: A09
func TestAProgramThatIsNotThereIsFoundBeforeAnythingStarts(t *testing.T) {
	dir := t.TempDir()
	text := "name: tiny\nroles:\n  actor:\n    command: [pyton3, train.py]\n  critic:\n    command: [./critic]\n    env: {PATH: /nowhere}\n  data: {command: [sh]}\n"
	j, err := Parse("job.yaml", []byte(text), dir)
	if err != nil {
		t.Fatal(err)
	}
	err = j.Check(Machine{Environ: []string{"PATH=/usr/bin:/bin"}})
	want := `job.yaml:4:15: roles.actor.command[0]: role actor: command "pyton3": not found in PATH /usr/bin:/bin
    4 |     command: [pyton3, train.py]
      |               ^
job.yaml:6:15: roles.critic.command[0]: role critic: command "./critic": ` + dir + `/critic: no such file or directory
    6 |     command: [./critic]
      |               ^`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
	var bad *Error
	if !errors.As(err, &bad) || len(bad.Problems) != 2 {
		t.Errorf("want an *Error with 2 problems, got %#v", err)
	}
}

func TestAJobWithoutAFileSaysTheRoleTheCommandAndThePath(t *testing.T) {
	j, err := OneRole("x", 1, []string{"pyton3"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	err = j.Check(Machine{Environ: []string{"PATH=/usr/bin"}})
	if want := `role main: command "pyton3": not found in PATH /usr/bin`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestAProgramIsLookedUpInThePathOfItsRole(t *testing.T) {
	tool := write(t, "tool", "#!/bin/sh\n", 0o755)
	plain := write(t, "plain", "", 0o644)
	dir := filepath.Dir(tool)
	envFile := write(t, "env", "PATH="+dir, 0o644)
	for _, c := range []struct{ about, yaml, err string }{
		{"env has the PATH", "command: [tool]\n    env: {PATH: " + dir + "}", ""},
		{"env_file has the PATH", "command: [tool]\n    env_file: " + envFile, ""},
		{"env beats env_file", "command: [tool]\n    env_file: " + envFile + "\n    env: {PATH: /none}", "not found in PATH /none"},
		{"neither has it", "command: [tool]", "not found in PATH /usr/bin"},
		{"relative to workdir", "command: [./tool]\n    workdir: " + dir, ""},
		{"absolute", "command: [" + tool + "]", ""},
		{"not executable", "command: [" + plain + "]", plain + ": not executable"},
		{"a directory", "command: [" + dir + "]", dir + ": is a directory"},
		{"relative folders of PATH do not count", "command: [tool]\n    workdir: " + dir + "\n    env: {PATH: .}", "not found in PATH ."},
		{"workdir is missing", "command: [sh]\n    workdir: /none/at/all", `workdir "/none/at/all": no such file or directory`},
		{"workdir is a file", "command: [sh]\n    workdir: " + plain, "not a directory"},
		{"env_file is missing", "command: [sh]\n    env_file: none.env", `none.env": no such file or directory`},
		{"the probe's program is missing", "command: [sh]\n    ready: {exec: [prob]}", `command "prob": not found`},
		{"the alive probe's program is missing", "command: [sh]\n    alive: {exec: [prob]}", `alive.exec[0]: role r: command "prob": not found`},
		{"a hook's program is missing", "command: [sh]\n    hooks: {worker_down: [sh], worker_ready: [./tell]}", "hooks.worker_ready[0]: role r: command \"./tell\""},
	} {
		t.Run(c.about, func(t *testing.T) {
			j, err := Parse("job.yaml", []byte("name: x\nroles:\n  r:\n    "+c.yaml), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			err = j.Check(Machine{Environ: []string{"PATH=/usr/bin"}})
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, want %q", err, c.err)
			}
		})
	}
}

func TestTheEnvironmentIsTheControllersThenTheFilesThenTheRoles(t *testing.T) {
	path := write(t, "env", "# secrets\n\nexport TOKEN = 'a b'\nFILE=1\nBOTH=file\nQ=\"x=#y\"\r\nEMPTY=\n", 0o600)
	r := Role{EnvFile: path, Env: map[string]string{"BOTH": "env", "Z": "z"}}
	got, err := r.Environ([]string{"HOME=/root", "FILE=0", "odd"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"HOME=/root", "FILE=1", "TOKEN=a b", "BOTH=env", "Q=x=#y", "EMPTY=", "Z=z"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnEnvironmentFileIsRefusedByItsLineWithoutItsValue(t *testing.T) {
	for text, want := range map[string]string{
		"A=1\nhunter2\n":             "line 2: want KEY=VALUE",
		"1A=hunter2":                 `line 1: variable "1A": want the name of an environment variable`,
		"A='hunter2":                 "line 1: a quote that does not end the value",
		"VIGIL_LIFE=hunter2":         "vigil sets this variable itself",
		strings.Repeat("#", 1<<20+1): "larger than 1 MiB",
	} {
		r := Role{EnvFile: write(t, "env", text, 0o600)}
		_, err := r.Environ(nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%.20q: got %v, want %q", text, err, want)
		}
	}
}

func TestAFlagThatTheControllerDoesNotHaveIsRefusedWhereItStands(t *testing.T) {
	j := mustParse(t, "name: x\ncontroller:\n  max_global_restart: 3\n  max_globl_restart: 4\nroles: {r: {command: [sh]}}")
	err := j.CheckFlags(func(flag, value string) error {
		if flag != "max-global-restart" {
			return fmt.Errorf("no flag --%s to set to %s", flag, value)
		}
		return nil
	})
	want := "job.yaml:4:22: controller.max-globl-restart: no flag --max-globl-restart to set to 4\n    4 |   max_globl_restart: 4\n      |                      ^"
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
	if err := j.CheckFlags(func(string, string) error { return nil }); err != nil {
		t.Error(err)
	}
}
