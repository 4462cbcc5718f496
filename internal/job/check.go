package job

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Machine is where a job is to run, as far as Check asks.
type Machine struct {
	Environ []string // KEY=VALUE, what workers inherit
}

// Check finds what would keep workers from starting on this machine: a working directory, an
// environment file or a program that is not there. The error is an *Error.
func (j *Job) Check(m Machine) error {
	var found []Problem
	for i := range j.Roles {
		r := &j.Roles[i]
		key := "roles." + string(r.Name)
		wrong := func(sub string, err error) {
			found = append(found, j.problem(key+"."+sub, fmt.Sprintf("role %s: %v", r.Name, err), ""))
		}
		if err := checkFolder(r.Workdir); err != nil {
			wrong("workdir", err)
			continue
		}
		if r.User != "" {
			if _, err := LookupUser(r.User); err != nil {
				wrong("user", err)
				continue
			}
		}
		environ, err := r.Environ(m.Environ)
		if err != nil {
			wrong("env_file", err)
			continue
		}
		found = append(found, j.checkCommand(r, key, environ)...)
		for _, p := range r.programs() {
			if p.key == "command" {
				continue // found with its interpreter above
			}
			if _, err := r.Program(p.words[0], environ); err != nil {
				wrong(p.key+"[0]", err)
			}
		}
	}
	return asError(found)
}

// CheckFlags hands every flag of "controller" to check, by its name with dashes, and gathers what
// check says. The error is an *Error.
func (j *Job) CheckFlags(check func(flag, value string) error) error {
	var found []Problem
	for _, flag := range slices.Sorted(maps.Keys(j.Controller)) {
		if err := check(flag, j.Controller[flag]); err != nil {
			found = append(found, j.problem("controller."+flag, err.Error(), ""))
		}
	}
	return asError(found)
}

func checkFolder(path string) error {
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("workdir %q: %w", path, cause(err))
	}
	if !info.IsDir() {
		return fmt.Errorf("workdir %q: not a directory", path)
	}
	return nil
}

// cause leaves out of an error what the caller says anyway: the system call and the path.
func cause(err error) error {
	var of *os.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// Environ returns base with the role's environment file and, over it, its env. Of a variable that is
// set several times only the last setting remains.
func (r *Role) Environ(base []string) ([]string, error) {
	values := map[string]string{}
	var order []string
	set := func(name, value string) {
		if _, ok := values[name]; !ok {
			order = append(order, name)
		}
		values[name] = value
	}
	for _, pair := range base {
		if name, value, ok := strings.Cut(pair, "="); ok && name != "" {
			set(name, value)
		}
	}
	if r.EnvFile != "" {
		pairs, err := readEnvFile(r.EnvFile)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			set(p[0], p[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		set(name, r.Env[name])
	}
	all := make([]string, len(order))
	for i, name := range order {
		all[i] = name + "=" + values[name]
	}
	return all, nil
}

// readEnvFile reads KEY=VALUE lines. Its errors name lines, never values: they may be secrets.
func readEnvFile(path string) ([][2]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // that of a FIFO would wait for a writer
	if err != nil {
		return nil, fmt.Errorf("env_file %q: %w", path, cause(err))
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("env_file %q: it is no regular file, and is read at every start of a worker", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("env_file %q: %w", path, cause(err))
	}
	if len(text) > maxBytes {
		return nil, fmt.Errorf("env_file %q: larger than 1 MiB", path)
	}
	var pairs [][2]string
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(strings.TrimPrefix(name, "export "))
		if !ok || strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("env_file %q line %d: want KEY=VALUE", path, i+1)
		}
		if _, fix := envKey.check(name); fix != "" {
			return nil, fmt.Errorf("env_file %q line %d: variable %q: %s", path, i+1, shorten(name), fix)
		}
		value, err := unquote(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("env_file %q line %d: %w", path, i+1, err)
		}
		pairs = append(pairs, [2]string{name, value})
	}
	return pairs, nil
}

// unquote takes off one pair of quotes; what stands between them is taken as it is.
func unquote(value string) (string, error) {
	if value == "" || value[0] != '"' && value[0] != '\'' {
		return value, nil
	}
	if len(value) < 2 || value[len(value)-1] != value[0] {
		return "", errors.New("a quote that does not end the value")
	}
	return value[1 : len(value)-1], nil
}

// defaultPath is looked in where the environment has no PATH.
const defaultPath = "/usr/local/bin:/usr/bin:/bin"

// Program returns the absolute path of a program that the role's workers run. A name with a slash is
// relative to the role's workdir, one without is looked up in the PATH of environ, where only
// absolute folders count. The error names the program and the PATH looked in.
func (r *Role) Program(name string, environ []string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(r.Workdir, path)
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return "", fmt.Errorf("command %q: %w", name, err)
		}
		if err := executable(path); err != nil {
			return "", fmt.Errorf("command %q: %s: %w", name, path, err)
		}
		return path, nil
	}
	folders := defaultPath
	for _, pair := range environ {
		if value, ok := strings.CutPrefix(pair, "PATH="); ok {
			folders = value
		}
	}
	for _, folder := range filepath.SplitList(folders) {
		path := filepath.Join(folder, name)
		if name != "" && filepath.IsAbs(folder) && executable(path) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("command %q: not found in PATH %s", name, folders)
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return cause(err)
	}
	if info.IsDir() {
		return errors.New("is a directory")
	}
	if unix.Access(path, unix.X_OK) != nil {
		return errors.New("not executable")
	}
	return nil
}
