package programs

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"vigil/e2e/rig"
)

const (
	steps = 300 // of the DDP job
	every = 20  // steps between two of its checkpoints
)

// withPython puts an interpreter that has PyTorch first in PATH, under the name python3.
func withPython(t *testing.T, environ []string) []string {
	t.Helper()
	bin := filepath.Join(rig.Folder(t), "bin")
	stand(t, bin, "python3", "exec '"+rig.NeedTorch(t)+"' \"$@\"")
	return append(slices.Clone(environ), "PATH="+bin+":"+os.Getenv("PATH"))
}

// undisturbed trains under torchrun, without pauses, and returns the loss of every step.
func undisturbed(t *testing.T, command []string, dir string) (map[int]float64, error) {
	command = append(command, "--nproc_per_node=2", "../../examples/pytorch-ddp/train.py")
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = plain("DDP_DIR="+dir, "DDP_PACE=0", "DDP_STEPS="+strconv.Itoa(steps))
	var errs strings.Builder
	cmd.Stderr = &errs
	said, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("train under torchrun: %w\n%s", err, errs.String())
	}
	all := map[int]float64{}
	for _, l := range rig.Losses(string(said)) {
		all[l.Step] = l.Loss
	}
	if len(all) != steps {
		return nil, fmt.Errorf("torchrun's run printed %d of %d steps", len(all), steps)
	}
	return all, nil
}

// ddp is the example job under vigil.
type ddp struct {
	*run
}

// rank0 returns what rank 0 of an incarnation has printed so far.
func (d ddp) rank0(incarnation int) []rig.Loss {
	text, _ := os.ReadFile(d.Output("main", incarnation, 0))
	return rig.Losses(string(text))
}

// wellIn waits until the incarnation has saved a checkpoint of its own, and returns its workers by rank.
func (d ddp) wellIn(incarnation int) []int {
	d.t.Helper()
	d.Eventually(fmt.Sprintf("a checkpoint of incarnation %d", incarnation), func() error {
		if seen := d.rank0(incarnation); len(seen) < every+2 {
			return fmt.Errorf("%d steps so far", len(seen))
		}
		return nil
	})
	return d.living("main", incarnation)
}

func TestADDPJobThatIsBrokenInEveryWayLearnsAsIfItWasNot(t *testing.T) {
	t.Parallel()
	environ := withPython(t, plain("DDP_DIR="+rig.Folder(t), "DDP_STEPS="+strconv.Itoa(steps), "DDP_PACE=0.03", "DDP_RAISE_AT=50"))
	var want map[int]float64
	var alone errgroup.Group
	command, dir := torchrun(t), rig.Folder(t)
	alone.Go(func() (err error) { want, err = undisturbed(t, command, dir); return err })
	defer func() { _ = alone.Wait() }() // before its folder goes
	d := ddp{begin(t, ".", environ, "--job", "../../examples/pytorch-ddp/job.yaml", "--max-global-restart", "3", "--tee", "all")}

	// The first life raises an exception at step 50: whoever reads the terminal sees it.
	before := d.wellIn(2)
	// PyTorch since 2.4 puts the rank before each line of it.
	if shown := regexp.MustCompile(`(?m)^\[main 1\] (\[rank1\]: ?)?RuntimeError: loss is NaN at step 50, as you asked$`); !shown.MatchString(d.Log()) {
		t.Error("the traceback was not shown")
	}
	kill(t, before[1], syscall.SIGKILL)
	after := d.wellIn(3)
	for rank := range after {
		if after[rank] == before[rank] {
			t.Errorf("rank %d was not started anew", rank)
		}
	}
	kill(t, after[0], syscall.SIGSTOP)
	d.wellIn(4)
	d.End(0)
	if said := d.Log(); !strings.Contains(said, "silent") {
		t.Error("the stopped rank was not called silent")
	}
	if err := alone.Wait(); err != nil {
		t.Fatal(err)
	}
	d.compare(4, want)
}

// compare says whether every life began at a checkpoint and not at 0, and learned as the other run did.
func (d ddp) compare(lives int, want map[int]float64) {
	d.t.Helper()
	last := 0
	for incarnation := 1; incarnation <= lives; incarnation++ {
		seen := d.rank0(incarnation)
		if len(seen) == 0 {
			d.t.Fatalf("life %d said nothing", incarnation)
		}
		from := seen[0].Step - 1
		if from%every != 0 || from > last || from < last-2*every || incarnation > 1 && from == 0 {
			d.t.Errorf("life %d went on from step %d, after step %d", incarnation, from, last)
		}
		for _, l := range seen {
			if math.Abs(l.Loss-want[l.Step]) > 1e-3 {
				d.t.Fatalf("life %d step %d: loss %f, undisturbed %f", incarnation, l.Step, l.Loss, want[l.Step])
			}
		}
		last = seen[len(seen)-1].Step
	}
	if last != steps {
		d.t.Errorf("the last life ended at step %d of %d", last, steps)
	}
}

func kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}

// stand makes a program of a few lines of shell.
func stand(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
