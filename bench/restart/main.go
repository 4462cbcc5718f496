// Restart measures how long a training takes to come back: one PyTorch job of two ranks, under vigil with a fork server
// and without, under torchrun as it is and as it should be set, and under an ideal supervisor, which is the floor. They
// take turns in one run. It prints a table, says where the time went, and writes bench/out/restart.json; with -plot also
// a picture.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"vigil/bench/result"
)

// bench is one run of the benchmark.
type bench struct {
	repeats, burst, slow, many int
	only                       string // names of rivals, in part; empty: all
	program                    string // the controller
	self                       string // this program, which is the ideal supervisor too
	python, torch              string // the interpreter, and the version that it has
	preload                    string
	train                      string // path of the job's program
	folder                     string // of everything that is left behind by the run
	jobs                       int    // that were begun
	samples                    []sample
	report                     result.Report
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == idealCommand {
		fail(beIdeal(os.Args[2], os.Args[3]))
		return
	}
	b := &bench{}
	out := flag.String("out", filepath.Join("bench", "out"), "folder of restart.json")
	plot := flag.String("plot", "", "file of a picture of the medians, SVG")
	flag.IntVar(&b.repeats, "n", 20, "how often each fault is measured")
	flag.IntVar(&b.burst, "burst", 5, "how many faults of a kind a job suffers before the next supervisor's turn")
	flag.IntVar(&b.slow, "slow", 3, "how often a stopped rank, a blocked peer and a killed supervisor are measured")
	flag.IntVar(&b.many, "many", 100, "how many more restarts a job with a fork server goes through: kills, two at once, and one during a restart")
	flag.StringVar(&b.only, "only", "", "only supervisors with one of these in their names: cold,right")
	flag.StringVar(&b.python, "python", "", "interpreter that has PyTorch (default: that of make programs, else python3)")
	flag.StringVar(&b.program, "controller", filepath.Join("bin", "controller"), "program to measure")
	flag.Parse()
	fail(b.run(*out, *plot))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "restart:", err)
		os.Exit(1)
	}
}

func (b *bench) run(out, plot string) (err error) {
	if b.folder, err = os.MkdirTemp("", "vr-"); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	if err := b.prepare(); err != nil {
		return err
	}
	b.report.Note("PyTorch %s, %d ranks; load of the machine at the start: %s", b.torch, ranks, load())
	if err := b.measure(); err != nil {
		return err
	}
	b.tell()
	b.report.Note("load of the machine at the end: %s", load())
	if err := b.report.Print(os.Stdout); err != nil {
		return err
	}
	if err := b.printStages(os.Stdout); err != nil {
		return err
	}
	if plot != "" {
		if err := os.WriteFile(plot, b.picture(), 0o644); err != nil {
			return fmt.Errorf("write picture: %w", err)
		}
	}
	return b.report.Write(out, "restart")
}

// prepare finds the programs.
func (b *bench) prepare() (err error) {
	if b.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if b.program, err = filepath.Abs(b.program); err != nil {
		return fmt.Errorf("find controller: %w", err)
	}
	if _, err := os.Stat(b.program); err != nil {
		return fmt.Errorf("find controller: %w (make build makes it)", err)
	}
	if b.python, b.torch = findTorch(b.python); b.python == "" {
		return errors.New("find PyTorch: no interpreter here has it (make programs installs one; or say -python)")
	}
	b.preload = "torch, torch.distributed, torch.nn.parallel"
	if !strings.HasPrefix(b.torch, "1.") {
		b.preload += ", torch._dynamo" // the first optimizer imports it
	}
	b.train = filepath.Join(b.folder, "train.py")
	if err := os.WriteFile(b.train, trainPy, 0o600); err != nil {
		return fmt.Errorf("write the job's program: %w", err)
	}
	return nil
}

// findTorch returns an interpreter that has PyTorch, and its version.
func findTorch(wanted string) (path, version string) {
	names := []string{wanted}
	if wanted == "" {
		cache, _ := os.UserCacheDir() // none: the name is of no file
		names = []string{filepath.Join(cache, "vigil", "programs", "venv", "bin", "python"), "python3", "/usr/bin/python3"}
	}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if text, err := exec.Command(path, "-c", "import torch, torch.distributed.run; print(torch.__version__)").Output(); err == nil {
			return path, strings.TrimSpace(string(text))
		}
	}
	return "", ""
}

// load is the number of processes that want a CPU, on average over the last minute, and of CPUs.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "not known"
	}
	average, _, _ := strings.Cut(string(text), " ")
	return fmt.Sprintf("%s on %d CPUs", average, runtime.NumCPU())
}
