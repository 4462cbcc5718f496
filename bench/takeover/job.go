package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vigil/bench/result"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// patience is how long anything may take before the benchmark gives up.
const patience = 60 * time.Second

// look is the time between two looks at what the controller says.
const look = 2 * time.Millisecond

// job is the job over all its controllers.
type job struct {
	program, folder, address string

	controller *exec.Cmd
	log        *os.File
}

// samples are what is measured of every change.
type samples struct{ answers, adopted result.Samples }

// begin starts the job and waits until every worker makes steps.
func begin(program, folder string) (*job, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, "job.yaml"), []byte(strings.ReplaceAll(jobFile, "WORKER", self)), 0o600); err != nil {
		return nil, fmt.Errorf("write job: %w", err)
	}
	j := &job{program: program, folder: folder}
	if j.address, err = free(); err != nil {
		return nil, err
	}
	if j.log, err = os.Create(filepath.Join(folder, "log")); err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	if err := j.start(); err != nil {
		return nil, err
	}
	if _, err := j.until(well); err != nil {
		return nil, errors.Join(err, j.stop())
	}
	return j, nil
}

// free returns a loopback address that nobody listens at.
func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (j *job) start() error {
	j.controller = exec.Command(j.program, "--job", filepath.Join(j.folder, "job.yaml"), "--use-health-check", "--http", j.address,
		"--state-dir", filepath.Join(j.folder, "s"), "--runtime-dir", filepath.Join(j.folder, "r"))
	j.controller.Stdout, j.controller.Stderr = j.log, j.log
	if err := j.controller.Start(); err != nil {
		return fmt.Errorf("start controller: %w", err)
	}
	return nil
}

// takeOvers kills the controller n times and measures until the next one has everybody.
func (j *job) takeOvers(n int) (samples, error) {
	var s samples
	before, err := j.roles()
	if err != nil {
		return s, err
	}
	for range n {
		if err := j.controller.Process.Kill(); err != nil {
			return s, fmt.Errorf("kill controller: %w", err)
		}
		_ = j.controller.Wait() // killed
		began := time.Now()
		if err := j.start(); err != nil {
			return s, err
		}
		first := time.Duration(0)
		after, err := j.until(func(all []httpapi.Role) error {
			if first == 0 {
				first = time.Since(began)
			}
			return same(before, all)
		})
		if err != nil {
			return s, err
		}
		s.answers, s.adopted = append(s.answers, first), append(s.adopted, time.Since(began))
		if before, err = j.goesOn(after); err != nil {
			return s, err
		}
	}
	return s, nil
}

// goesOn waits until every role has made a step more.
func (j *job) goesOn(from []httpapi.Role) ([]httpapi.Role, error) {
	return j.until(func(all []httpapi.Role) error {
		for i, r := range all {
			if r.CurrentStep <= from[i].CurrentStep {
				return fmt.Errorf("%s stays at step %d", r.Name, r.CurrentStep)
			}
		}
		return well(all)
	})
}

// until looks until nothing is wrong with the roles, and returns them.
func (j *job) until(wrong func([]httpapi.Role) error) ([]httpapi.Role, error) {
	over := time.NewTimer(patience)
	defer over.Stop()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		all, err := j.roles()
		if err == nil {
			err = wrong(all)
		}
		if broken := new(brokenError); err == nil || errors.As(err, &broken) {
			return all, err
		}
		select {
		case <-tick.C:
		case <-over.C:
			text, _ := os.ReadFile(j.log.Name())
			return nil, fmt.Errorf("not within %s: %w\n%s", patience, err, text)
		}
	}
}

func (j *job) roles() ([]httpapi.Role, error) {
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Get("http://" + j.address + "/api/v1/roles")
	if err != nil {
		return nil, fmt.Errorf("ask controller: %w", err)
	}
	defer answer.Body.Close()
	var list httpapi.RoleList
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("ask controller: %w", err)
	}
	return list.Roles, nil
}

// well says who does not run or has not made a step.
func well(all []httpapi.Role) error {
	for _, r := range all {
		for _, w := range r.Workers {
			if r.State != role.Running || w.PID == 0 || w.State != role.WorkerReady || w.Step == nil {
				return fmt.Errorf("%s rank %d is not well: %+v", r.Name, w.Rank, r)
			}
		}
	}
	return nil
}

// brokenError says that a takeover has cost something.
type brokenError struct{ what string }

func (e *brokenError) Error() string { return e.what }

// same says who of those before has not been taken over.
func same(before, all []httpapi.Role) error {
	if err := well(all); err != nil {
		return err
	}
	for i, r := range all {
		for k, w := range r.Workers {
			was := before[i].Workers[k]
			if w.PID != was.PID || w.Life != was.Life {
				return &brokenError{fmt.Sprintf("%s rank %d was restarted: %+v, %+v", r.Name, k, was, w)}
			}
			if *w.Step < *was.Step {
				return &brokenError{fmt.Sprintf("%s rank %d was at step %d, and is at %d", r.Name, k, *was.Step, *w.Step)}
			}
		}
	}
	return nil
}

// stop ends the job in order.
func (j *job) stop() error {
	if err := j.controller.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop controller: %w", err)
	}
	_ = j.controller.Wait() // its state says how it ended
	if code := j.controller.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
		return fmt.Errorf("stop controller: it ended with %s", j.controller.ProcessState)
	}
	return j.log.Close()
}
