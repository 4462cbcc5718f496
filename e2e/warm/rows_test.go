package warm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"vigil/e2e/rig"
)

// size is what a process holds.
type size struct {
	memory int // resident, KiB
	files  int // descriptors
}

func sizeOf(t *testing.T, pid int) (s size) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			if s.memory, err = strconv.Atoi(strings.Fields(rest)[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	s.files = len(files)
	return s
}

// look is what a job holds, when processes stand ready again.
func (j *job) look() (found map[string]size, processes int) {
	j.t.Helper()
	j.Pause(4 * time.Second)
	all := j.servers()
	found = map[string]size{"controller": sizeOf(j.t, j.PID()), "service": sizeOf(j.t, j.Service("main")), "fork server": sizeOf(j.t, all[len(all)-1])}
	return found, len(j.Processes())
}

// restart kills the worker of an incarnation and returns that of the next.
func (j *job) restart(worker, incarnation int) int {
	j.t.Helper()
	j.signal(worker, syscall.SIGKILL)
	return j.life(incarnation)[0]
}

func TestRestartsInARowLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	n := restarts(t) * 10
	j := begin(t, "[marker]", nil)
	worker, incarnation := j.life(1)[0], 1
	for range 20 {
		incarnation++
		worker = j.restart(worker, incarnation)
	}
	before, processes := j.look()
	began := time.Now()
	for range n {
		incarnation++
		worker = j.restart(worker, incarnation)
	}
	took := time.Since(began)
	after, now := j.look()
	j.mustBegin(incarnation, "warm")
	t.Logf("%d restarts in %s; %d processes before, %d after", n, took.Round(time.Millisecond), processes, now)
	for who, was := range before {
		is := after[who]
		t.Logf("%s: %d KiB and %d descriptors before, %d KiB and %d after", who, was.memory, was.files, is.memory, is.files)
		if is.files > was.files+2 {
			t.Errorf("%s has %d descriptors after %d restarts, it had %d", who, is.files, n, was.files)
		}
		if is.memory > was.memory+was.memory/2+16<<10 {
			t.Errorf("%s has %d KiB after %d restarts, it had %d", who, is.memory, n, was.memory)
		}
	}
	if want := 4; processes > want || now > processes { // service, fork server, worker and the next one
		t.Errorf("%d processes, after %d restarts %d; want %d", processes, n, now, want)
	}
	j.server(1)
	j.stop()
}

// train begins the DDP example of so many steps, with what is to be preloaded.
func train(t *testing.T, preload string, steps int) *job {
	t.Helper()
	j := &job{t: t, folder: rig.Folder(t)}
	script, err := filepath.Abs("../../examples/pytorch-ddp/train.py")
	if err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("name: ddp\ncontroller: {use_health_check: true, max_global_restart: 100000}\nroles:\n  main:\n    command: [%s, -u, %s]\n    workers: 2\n%s    restart: {backoff: {base: 0}}\n    stop: {grace: 5s}\n",
		rig.NeedTorch(t), script, preload)
	if err := os.WriteFile(filepath.Join(j.folder, "job.yaml"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	environ := plain("DDP_DIR="+j.folder, "DDP_STEPS="+strconv.Itoa(steps), "DDP_PACE=0.01")
	j.Job = rig.Begin(t, rig.Options{Workdir: j.folder, Environ: environ, Patience: patience, Args: []string{"--job", "job.yaml"}})
	return j
}

const equal = `import sys, torch
a, b = (torch.load(p, map_location="cpu") for p in sys.argv[1:])
def same(x, y):
    if isinstance(x, torch.Tensor): return x.dtype == y.dtype and torch.equal(x, y)
    if isinstance(x, dict): return x.keys() == y.keys() and all(same(x[k], y[k]) for k in x)
    if isinstance(x, (list, tuple)): return len(x) == len(y) and all(map(same, x, y))
    return x == y
sys.exit(None if same(a, b) else "they differ: steps %d and %d" % (a["step"], b["step"]))
`

func TestATrainingLearnsToTheLastBitWhatItWouldHaveWithoutRestarts(t *testing.T) {
	t.Parallel()
	n := restarts(t)
	steps := 50 * (n + 1)
	undisturbed := train(t, "", steps)
	j := train(t, "    preload: [torch, torch.distributed, torch.nn.parallel]\n", steps)
	for incarnation := 1; incarnation <= n; incarnation++ {
		j.Eventually(fmt.Sprintf("a checkpoint of incarnation %d", incarnation), func() error {
			text, _ := os.ReadFile(j.Output("main", incarnation, 0))
			if seen := rig.Losses(string(text)); len(seen) < 22 {
				return fmt.Errorf("%d steps so far", len(seen))
			}
			return nil
		})
		j.signal(j.life(incarnation)[incarnation%2], syscall.SIGKILL)
	}
	j.life(n + 1)
	j.End(0)
	undisturbed.End(0)
	j.server(1)
	if cold := strings.Count(j.Log(), "start cold"); cold > 0 {
		t.Errorf("workers started cold\n%s", j.serviceLog())
	}
	out, err := exec.Command(rig.Torch(), "-c", equal, filepath.Join(undisturbed.folder, "checkpoint.pt"), filepath.Join(j.folder, "checkpoint.pt")).CombinedOutput()
	if err != nil {
		t.Errorf("compare checkpoints after %d restarts: %v\n%s", n, err, out)
	}
}
