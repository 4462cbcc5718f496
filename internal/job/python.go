package job

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Argv is what a worker is started with: the role's command, behind its interpreter where it has one.
// The interpreter's output is unbuffered, as torchrun has it.
func (r *Role) Argv() []string {
	if r.Python == "" {
		return r.Command
	}
	return append([]string{r.Python, "-u"}, r.Command...)
}

// forPython says whether the command is one that an interpreter is to run: a script or -m MODULE.
func (r *Role) forPython() bool {
	return len(r.Command) > 0 && (strings.HasSuffix(r.Command[0], ".py") || r.Command[0] == "-m" && len(r.Command) > 1)
}

// interpreted finds an interpreter that would run nothing, and a module without one.
func (r *Role) interpreted(key string, wrong tell) {
	switch {
	case r.Python != "" && !r.forPython():
		wrong(key+".python", "the command begins with neither a .py file nor -m and a module, so this would run nothing", "begin the command with the script, or leave python out")
	case r.Python == "" && len(r.Command) > 0 && r.Command[0] == "-m":
		wrong(key+".command[0]", "-m is no program", "name the interpreter with python, such as python: python3")
	}
}

// checkCommand finds a program, interpreter or script that is not there.
func (j *Job) checkCommand(r *Role, key string, environ []string) []Problem {
	var found []Problem
	wrong := func(sub string, err error, fix string) {
		found = append(found, j.problem(key+"."+sub, fmt.Sprintf("role %s: %v", r.Name, err), fix))
	}
	_, err := r.Program(r.Argv()[0], environ)
	switch {
	case err == nil:
	case r.Python != "":
		wrong("python", err, "")
	case r.forPython():
		wrong("command[0]", err, "name an interpreter with python, such as python: python3")
	default:
		wrong("command[0]", err, "")
	}
	if err := r.script(); err != nil {
		wrong("command[0]", err, "")
	}
	return found
}

// script returns an error if the script that the role's interpreter is to run is not there.
func (r *Role) script() error {
	if r.Python == "" || r.Command[0] == "-m" {
		return nil
	}
	path := r.Command[0]
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.Workdir, path)
	}
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		err = errors.New("is a directory")
	}
	if err != nil {
		return fmt.Errorf("script %q: %s: %w", r.Command[0], path, cause(err))
	}
	return nil
}
