// Takeover measures how soon a job that has lost its controller is under one again: a controller of 5
// roles with 16 workers is killed and started again, over and over. It prints a table and writes
// bench/out/takeover.json. That anybody is restarted, or a step lost, fails the benchmark.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
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

// target is how soon after a controller's start everybody must have been taken over, in milliseconds.
const target = 2000

// jobFile is the job; WORKER is this program.
const jobFile = `name: bench-takeover
roles:
  actor: {command: [WORKER, worker], workers: 4, ports: {http: auto}}
  rollout: {command: [WORKER, worker], workers: 8, ports: {http: auto}, restart: {unit: worker}}
  actor_fwd: {command: [WORKER, worker], workers: 2}
  critic: {command: [WORKER, worker]}
  advantages: {command: [WORKER, worker]}
`

func main() {
	if len(os.Args) == 2 && os.Args[1] == workerCommand {
		fail(beWorker())
		return
	}
	out := flag.String("out", filepath.Join("bench", "out"), "folder of takeover.json")
	n := flag.Int("n", 30, "how often the controller is killed")
	program := flag.String("controller", filepath.Join("bin", "controller"), "program to measure; it is built if it is missing")
	flag.Parse()
	fail(run(*out, *n, *program))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "takeover:", err)
		os.Exit(1)
	}
}

// beWorker makes steps until it is ended (sd_notify(3)).
func beWorker() error {
	voice, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return fmt.Errorf("speak: %w", err)
	}
	step := 0
	for range time.Tick(100 * time.Millisecond) {
		step++
		if _, err := fmt.Fprintf(voice, "X_VIGIL_STEP=%d", step); err != nil {
			return fmt.Errorf("speak: %w", err)
		}
	}
	return nil
}

func run(out string, n int, program string) (err error) {
	folder, err := os.MkdirTemp("", "vigil-bench-")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if program, err = find(program, folder); err != nil {
		return err
	}
	report := result.Report{}
	report.Note("load of the machine at the start: %s", load())
	r, err := begin(program, folder)
	if err != nil {
		return err
	}
	measured, err := r.takeOvers(n)
	if err = errors.Join(err, r.stop()); err != nil {
		return err
	}
	report.Note("load of the machine at the end: %s", load())
	report.Measured("start of the next controller to its address answering", measured.answers, nil, nil)
	report.Measured("start of the next controller to 5 roles with 16 workers taken over", measured.adopted, result.AtMost(target), result.AtMost(target))
	if err := report.Print(os.Stdout); err != nil {
		return err
	}
	return report.Write(out, "takeover")
}

// find returns the absolute path of the program, or builds a release of it.
func find(program, folder string) (string, error) {
	program, err := filepath.Abs(program)
	if err != nil {
		return "", fmt.Errorf("find controller: %w", err)
	}
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	program = filepath.Join(folder, "controller")
	cmd := exec.Command("go", "build", "-trimpath", "-o", program, "vigil/cmd/controller")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build controller: %w\n%s", err, text)
	}
	return program, nil
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
