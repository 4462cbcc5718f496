package job

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"vigil/internal/role"
)

// What holds where the job file is silent.
const (
	defaultGrace          = 30 * time.Second
	defaultGraceOnFailure = 3 * time.Second
	defaultFloor          = 120 * time.Second
	defaultEscalateAt     = 3
	defaultLogFirst       = 16 << 20 // bytes
	defaultLogNewest      = 256 << 20
	defaultLogParts       = 8
	noMaxRewind           = -1
	readyPeriod           = time.Second
	readyTimeout          = 10 * time.Second
)

// Load reads the job file at path. An *Error tells what is wrong with the file; any other error is
// that it could not be read.
func Load(path string) (*Job, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read job file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read job file: %w", err)
	}
	return Parse(path, text, filepath.Dir(path))
}

// Parse reads a job from YAML. Name is the file that problems name, dir the folder that relative
// paths in the file start from. The error is an *Error with all that is wrong.
func Parse(name string, src []byte, dir string) (*Job, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("read job file %s: %w", name, err)
	}
	if len(src) > maxBytes {
		return nil, &Error{Problems: []Problem{{File: name, What: "the file is larger than 1 MiB", Fix: "a job file is written by hand"}}}
	}
	text := strings.TrimPrefix(strings.ReplaceAll(string(src), "\r\n", "\n"), "\uFEFF")
	from := &source{file: name, lines: strings.Split(text, "\n"), places: map[string]place{}}
	tree, problems := plant(from, text)
	if tree == nil {
		return nil, asError(problems)
	}
	j := &Job{src: from}
	r := &reader{src: from, problems: problems}
	r.mapping(tree, Keys(), target{job: j})
	j.settle(dir)
	r.problems = append(r.problems, j.relations()...)
	if err := asError(r.problems); err != nil {
		return nil, err
	}
	return j, nil
}

// newRole returns a role with the defaults that do not depend on other keys.
func newRole(name role.Name) Role {
	r := Role{
		Name:       name,
		Workers:    1,
		Placement:  Placement{Strategy: Pack},
		Devices:    DevicesAll,
		Completion: Finish, NotifyAccess: ProcessTree, WandB: WandBNone,
		Stop:     StopPolicy{Signal: "TERM", Grace: defaultGrace, GraceOnFailure: defaultGraceOnFailure},
		Limits:   Limits{Floor: defaultFloor},
		Logs:     Logs{First: defaultLogFirst, MaxSize: defaultLogNewest, Keep: defaultLogParts},
		Progress: Progress{Expect: OnceSeen, Source: FromWord},
		Restart: Restart{
			OnFailure:  role.InPlace,
			EscalateAt: defaultEscalateAt,
			MaxRewind:  noMaxRewind,
			BackOff:    BackOff{Base: time.Second, Max: time.Minute, ResetAfter: time.Minute},

			Unit:         UnitRole,
			MinAvailable: noMinAvailable,
		},
	}
	switch name {
	case "actor", "rollout", "actor_fwd":
		r.Restart.OnFailure = role.Global
	}
	return r
}

// settle fills in the defaults that depend on other keys, and makes paths absolute.
func (j *Job) settle(dir string) {
	if j.Lead == "" && len(j.Roles) > 0 {
		j.Lead = j.Roles[0].Name
		if _, ok := j.Role("actor"); ok {
			j.Lead = "actor"
		}
	}
	for i := range j.Roles {
		r := &j.Roles[i]
		if r.State == "" {
			r.State = Stateless
			if r.Name == j.Lead {
				r.State = Checkpointed
			}
		}
		r.settleUnit()
		r.settleCheckpoint()
		if dir == "" {
			continue
		}
		if !filepath.IsAbs(r.Workdir) {
			r.Workdir = filepath.Join(dir, r.Workdir)
		}
		if r.EnvFile != "" && !filepath.IsAbs(r.EnvFile) {
			r.EnvFile = filepath.Join(dir, r.EnvFile)
		}
		if r.Progress.File != "" && !filepath.IsAbs(r.Progress.File) {
			r.Progress.File = filepath.Join(r.Workdir, r.Progress.File)
		}
	}
}

// ExampleDir is the variable that tells workers of the built-in job where all of them keep their checkpoints. Builtin
// leaves it empty: the controller knows the run's folder.
const ExampleDir = "VIGIL_EXAMPLE_DIR"

// Builtin is the job that runs without a job file: a small training with the five roles actor,
// rollout, critic, actor_fwd and advantages. Self is the path of a program whose command
// "example-worker ROLE" is a worker of any of them.
func Builtin(self string) *Job {
	j := &Job{Name: "example"}
	for _, one := range []struct {
		name    role.Name
		workers int
	}{{"actor", 2}, {"rollout", 2}, {"critic", 1}, {"actor_fwd", 1}, {"advantages", 1}} {
		r := newRole(one.name)
		r.Command = []string{self, "example-worker", string(one.name)}
		r.Workers = one.workers
		r.Env = map[string]string{ExampleDir: ""} // the controller says where
		if one.name == "critic" {
			r.State = Checkpointed
		}
		j.Roles = append(j.Roles, r)
	}
	j.settle("")
	return j
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// OneRole is a job without a file: the role main, whose failure is answered globally, with so many
// workers that run command in workdir. Characters that a job's name cannot have become dashes.
// It is an error if there is no command or the number of workers is not from 1 to 100,000.
func OneRole(name string, workers int, command []string, workdir string) (*Job, error) {
	if len(command) == 0 || command[0] == "" {
		return nil, errors.New("make job: no command")
	}
	if workers < 1 || workers > 100_000 {
		return nil, fmt.Errorf("make job: %d workers: want 1 to 100000", workers)
	}
	dir, err := filepath.Abs(workdir)
	if err != nil {
		return nil, fmt.Errorf("make job: %w", err)
	}
	name = strings.TrimLeft(notInName.ReplaceAllString(name, "-"), "._-")
	name = strings.TrimRight(name[:min(len(name), 40)], "._-")
	if name == "" {
		name = "main"
	}
	r := newRole("main")
	r.Command, r.Workers, r.Restart.OnFailure, r.Progress.Source = command, workers, role.Global, FromHook
	j := &Job{Name: name, Roles: []Role{r}}
	j.settle(dir)
	return j, nil
}
