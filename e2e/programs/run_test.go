package programs

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"vigil/e2e/rig"
	"vigil/internal/wire/httpapi"
)

// patience is how long anything may take on a busy machine: importing torch alone can take seconds.
const patience = 4 * time.Minute

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// run is one running job.
type run struct {
	*rig.Job
	t *testing.T
}

// begin starts the controller in workdir with these arguments and waits until it answers. What it
// inherits is environ.
func begin(t *testing.T, workdir string, environ []string, args ...string) *run {
	t.Helper()
	return &run{rig.Begin(t, rig.Options{Workdir: workdir, Environ: environ, Patience: patience, Args: args}), t}
}

// living waits until every worker of the role's incarnation has a pid, and returns them by rank.
func (r *run) living(name string, incarnation int) []int {
	r.t.Helper()
	var pids []int
	r.Eventually(fmt.Sprintf("incarnation %d of %s", incarnation, name), func() error {
		var got httpapi.Role
		if err := r.Get("/api/v1/roles/"+name, &got); err != nil {
			return err
		}
		pids = nil
		for _, w := range got.Workers {
			if w.PID > 1 {
				pids = append(pids, w.PID)
			}
		}
		if got.Incarnation != incarnation || len(got.Workers) == 0 || len(pids) != len(got.Workers) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	return pids
}

// plain is the environment of this test without what a shell or another launcher put there.
func plain(more ...string) []string {
	return slices.Concat([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "USE_LIBUV=0"}, more)
}
