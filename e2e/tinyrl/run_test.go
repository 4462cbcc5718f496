package tinyrl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"vigil/e2e/rig"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

type incident = httpapi.Incident

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// run is one running job.
type run struct {
	*rig.Job
	t      *testing.T
	trial  trial
	folder string // of what it learns
}

// begin starts the job and waits until its controller answers.
func begin(t *testing.T, tr trial) *run {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("SKIPPED: there is no python3 on this machine, so the example job was not run")
	}
	r := &run{t: t, trial: tr, folder: rig.Folder(t)}
	environ := append(os.Environ(), "TINY_RL_DIR="+r.folder, "TINY_RL_STEPS="+strconv.Itoa(tr.steps), "PYTHONDONTWRITEBYTECODE=1")
	r.Job = rig.Begin(t, rig.Options{Environ: environ, Patience: tr.limit, Look: 50 * time.Millisecond,
		Args: []string{"--job", "../../examples/tiny-rl/job.yaml", "--use-health-check", "--max-global-restart", "20", "--heartbeat-timeout", "5s"}})
	return r
}

// end waits for the end of the job: well, and with nothing left.
func (r *run) end() {
	r.t.Helper()
	r.End(0)
	if left, _ := filepath.Glob(filepath.Join(r.folder, "*", ".new-*")); len(left) > 0 {
		r.t.Errorf("left behind: %v", left)
	}
}

func (r *run) worker(name role.Name, rank int) httpapi.Worker {
	r.t.Helper()
	var got httpapi.Role
	if err := r.Get("/api/v1/roles/"+string(name), &got); err != nil {
		r.t.Fatal(err)
	}
	if w := got.Workers[rank]; w.PID > 1 {
		return w
	}
	r.t.Fatalf("%s rank %d does not run: %+v", name, rank, got)
	return httpapi.Worker{}
}

// standing is who does a role's work.
type standing struct {
	incarnation, restarts, service int
	workers                        []int
}

func (r *run) standings() map[role.Name]standing {
	r.t.Helper()
	roles, err := r.Roles()
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[role.Name]standing{}
	for _, one := range roles {
		s := standing{incarnation: one.Incarnation, restarts: one.RestartCount, service: r.Service(one.Name)}
		for _, w := range one.Workers {
			s.workers = append(s.workers, w.PID)
		}
		out[one.Name] = s
	}
	return out
}

// wellAt waits until the actor is at the step and every worker of every role has made one in its life.
func (r *run) wellAt(step int64) map[role.Name]standing {
	r.t.Helper()
	r.Eventually(fmt.Sprintf("step %d with everybody well", step), func() error {
		roles, err := r.Roles()
		if err != nil {
			return err
		}
		for _, one := range roles {
			silent := slices.ContainsFunc(one.Workers, func(w httpapi.Worker) bool { return w.Step == nil })
			if !one.Healthy || one.State != role.Running || silent || one.Name == "actor" && one.CurrentStep < step {
				return fmt.Errorf("%+v", one)
			}
		}
		return nil
	})
	return r.standings()
}
