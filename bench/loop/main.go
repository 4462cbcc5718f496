// Loop measures vigil's repair loop with real processes: how soon a report or a death is decided
// about, how soon a new process runs, what whole restarts take, and what ten thousand ranks cost. It
// prints a table and writes bench/out/loop.json. An ideal supervisor, and torchrun where it is
// installed, restart the same worker in the same run.
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
	"time"

	"vigil/bench/result"
)

// workerCommand makes this program the worker.
const workerCommand = "worker"

// bench is one run of the benchmark.
type bench struct {
	n, peerEvery, restarts int
	watch                  time.Duration
	program                string // the controller
	self                   string // this program, which is the worker too
	folder                 string // of everything that is left behind by the run
	report                 result.Report
}

func main() {
	began := time.Now()
	switch {
	case len(os.Args) == 2 && os.Args[1] == workerCommand:
		fail(beWorker(began))
		return
	case len(os.Args) == 3 && os.Args[1] == watcherCommand:
		fail(beWatcher(os.Args[2]))
		return
	}
	b := &bench{}
	out := flag.String("out", filepath.Join("bench", "out"), "folder of loop.json")
	flag.IntVar(&b.n, "n", 200, "how often each thing is measured")
	flag.IntVar(&b.peerEvery, "torchrun-every", 10, "one restart under torchrun for so many of ours")
	flag.IntVar(&b.restarts, "restarts", 30, "how often the built-in job is restarted in place, and globally")
	flag.DurationVar(&b.watch, "watch", 15*time.Second, "how long ten thousand workers are watched")
	flag.StringVar(&b.program, "controller", filepath.Join("bin", "controller"), "program to measure; it is built if it is missing")
	flag.Parse()
	fail(b.run(*out))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "loop:", err)
		os.Exit(1)
	}
}

func (b *bench) run(out string) (err error) {
	if b.folder, err = os.MkdirTemp("", "vigil-bench-"); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.folder)) }()
	if b.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if err := b.findProgram(); err != nil {
		return err
	}
	b.report.Note("load of the machine at the start: %s", load())
	m, err := b.reaction()
	if m != nil {
		m.tell(&b.report)
	}
	if err = errors.Join(err, b.repairs(), b.scale(), b.crowd()); err != nil {
		return err
	}
	b.report.Note("load of the machine at the end: %s", load())
	if err := b.report.Print(os.Stdout); err != nil {
		return err
	}
	return b.report.Write(out, "loop")
}

// findProgram makes the controller's path absolute, or builds a release of it.
func (b *bench) findProgram() (err error) {
	if b.program, err = filepath.Abs(b.program); err != nil {
		return fmt.Errorf("find controller: %w", err)
	}
	if _, err := os.Stat(b.program); err == nil {
		return nil
	}
	b.program = filepath.Join(b.folder, "controller")
	cmd := exec.Command("go", "build", "-trimpath", "-o", b.program, "vigil/cmd/controller")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build controller: %w\n%s", err, text)
	}
	return nil
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
