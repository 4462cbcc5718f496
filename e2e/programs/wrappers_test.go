package programs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vigil/e2e/rig"
)

// wrapped is a job whose only worker is a launcher with ranks of its own.
type wrapped struct {
	*run
	up    string // folder in which the ranks say that they are there
	ranks int
}

// wrap starts a job of one worker with 8 devices that runs this command.
func wrap(t *testing.T, ranks int, command []string) wrapped {
	t.Helper()
	wrappers, err := filepath.Abs("testdata/wrappers")
	if err != nil {
		t.Fatal(err)
	}
	dir := rig.Folder(t)
	var words []string
	for _, word := range command {
		words = append(words, fmt.Sprintf("%q", word))
	}
	text := "name: wrapped\nroles:\n  main:\n    command: [" + strings.Join(words, ", ") + "]\n    workers: 1\n    resources: {gpus: 8}\n    distributed: none\n"
	job := filepath.Join(dir, "job.yaml")
	if err := os.WriteFile(job, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	environ := append(plain("UP="+dir), "PATH="+wrappers+":"+os.Getenv("PATH"))
	return wrapped{begin(t, dir, environ, "--job", job, "--use-health-check", "--fake-gpus", "8"), dir, ranks}
}

// inside waits until the ranks of an incarnation are there, and returns their pids.
func (w wrapped) inside(incarnation int) []int {
	w.t.Helper()
	pids := make([]int, w.ranks)
	w.Eventually(fmt.Sprintf("the ranks of incarnation %d are there", incarnation), func() error {
		for rank := range pids {
			var devices string
			text, err := os.ReadFile(filepath.Join(w.up, fmt.Sprintf("up.%d.%d", incarnation, rank)))
			if err != nil {
				return err
			}
			if _, err := fmt.Sscan(string(text), &pids[rank], &devices); err != nil {
				return fmt.Errorf("rank %d said %q: %w", rank, text, err)
			}
			if strings.Count(devices, ",") != 7 {
				return fmt.Errorf("rank %d sees the devices %q, want 8", rank, devices)
			}
		}
		return nil
	})
	return pids
}

// asked says whether every rank of an incarnation was asked to stop.
func (w wrapped) asked(incarnation int) {
	w.t.Helper()
	for rank := range w.ranks {
		if _, err := os.Stat(filepath.Join(w.up, fmt.Sprintf("asked.%d.%d", incarnation, rank))); err != nil {
			w.t.Errorf("no stop signal reached rank %d: %v", rank, err)
		}
	}
}

func TestARankInsideAWrapperIsWatchedStoppedAndEndedLikeAWorker(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		about   string
		ranks   int
		command func(t *testing.T) []string
	}{
		{"uv run", 1, is("uv", "run", "--", "train")},
		{"conda run", 1, is("conda", "run", "-n", "env", "train")},
		{"accelerate launch", 2, is("accelerate", "launch", "--num_processes", "2", "train")},
		{"deepspeed", 2, is("deepspeed", "--num_gpus", "2", "train")},
		{"uv run accelerate launch", 2, is("uv", "run", "--", "accelerate", "launch", "--num_processes", "2", "train")},
		{"torchrun", 2, func(t *testing.T) []string {
			return append(torchrun(t), "--nproc_per_node=2", "--no_python", "train")
		}},
	} {
		t.Run(c.about, func(t *testing.T) {
			t.Parallel()
			w := wrap(t, c.ranks, c.command(t))
			first := w.inside(1)
			kill(t, first[len(first)-1], syscall.SIGKILL)
			w.inside(2)
			there := w.Processes()
			for rank, pid := range first {
				if _, is := there[pid]; is {
					t.Errorf("rank %d of the first life, pid %d, is there still", rank, pid)
				}
			}
			kill(t, w.PID(), syscall.SIGINT)
			w.End(130)
			w.asked(2)
		})
	}
}

func is(command ...string) func(*testing.T) []string {
	return func(*testing.T) []string { return command }
}
