package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	_ "embed"
)

//go:embed train.py
var trainPy []byte

// rival is a way to run the job.
type rival struct {
	name  string
	begin func(b *bench, dir string) (*job, error)
	vigil bool
	ideal bool
}

const (
	coldName    = "vigil, cold"
	warmName    = "vigil, warm"
	idealName   = "ideal supervisor"
	defaultName = "torchrun, defaults"
	rightName   = "torchrun, set right"
)

func rivals() []rival {
	return []rival{
		{name: warmName, vigil: true, begin: func(b *bench, dir string) (*job, error) { return b.beginVigil(dir, b.preload) }},
		{name: coldName, vigil: true, begin: func(b *bench, dir string) (*job, error) { return b.beginVigil(dir, "") }},
		{name: idealName, ideal: true, begin: (*bench).beginIdeal},
		{name: defaultName, begin: func(b *bench, dir string) (*job, error) { return b.beginTorchrun(dir) }},
		// Rank 0 opens the store, on a new port each time, and not the agent, whose store outlives a
		// generation and has the addresses of the dead one.
		{name: rightName, begin: func(b *bench, dir string) (*job, error) {
			return b.beginTorchrun(dir, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")
		}},
	}
}

// jobFile is vigil's. Five seconds is the shortest limit of silence that there is.
const jobFile = `name: bench-restart
controller: {use_health_check: true, max_global_restart: 1000000, http: "127.0.0.1:0"}
roles:
  main:
    command: [%q, -u, %q]
    workers: %d
%s    limits: {heartbeat: 5s}
    restart: {backoff: {base: 0}}
`

// beginVigil runs the job under vigil, with these modules preloaded.
func (b *bench) beginVigil(dir, preload string) (*job, error) {
	if preload != "" {
		preload = "    preload: [" + preload + "]\n"
	}
	j := &job{dir: dir}
	file := filepath.Join(dir, "job.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, jobFile, b.python, b.train, ranks, preload), 0o600); err != nil {
		return nil, fmt.Errorf("start vigil: %w", err)
	}
	j.again = func() (*exec.Cmd, error) {
		cmd := exec.Command(b.program, "--job", file, "--state-dir", filepath.Join(dir, "s"), "--runtime-dir", filepath.Join(dir, "r"))
		cmd.Env = j.environ()
		return cmd, nil
	}
	if err := j.begin(); err != nil {
		return nil, err
	}
	if err := j.until(startTime, j.findURL); err != nil {
		return nil, errors.Join(fmt.Errorf("start vigil: %w\n%s", err, strings.Join(j.said(20), "\n")), j.end())
	}
	return j, nil
}

var address = regexp.MustCompile(`http=(http://\S+)`)

// findURL looks whether the controller has said where it listens.
func (j *job) findURL() bool {
	for _, line := range j.said(1000) {
		if m := address.FindStringSubmatch(line); m != nil {
			j.url = m[1]
		}
	}
	return j.url != ""
}

// startTorchrun is torch.distributed.run. Debian's PyTorch 1.13 looks up the redirect "0" in a way that Python 3.11
// does not know any more, and starts no worker without the first lines.
const startTorchrun = `from torch.distributed.elastic.multiprocessing import api
was = api.Std.from_str.__func__
api.Std.from_str = classmethod(lambda cls, v: cls.NONE if v == "0" else was(cls, v))
from torch.distributed.run import main
main()`

// beginTorchrun runs the job under torchrun. It looks for dead workers every 0.1 s, as PyTorch 2.6 does by default.
func (b *bench) beginTorchrun(dir string, env ...string) (*job, error) {
	j := &job{dir: dir}
	j.again = func() (*exec.Cmd, error) {
		cmd := exec.Command(b.python, "-c", startTorchrun, "--standalone", "--nproc_per_node", strconv.Itoa(ranks),
			"--max_restarts", "1000000", "--monitor_interval", "0.1", b.train)
		cmd.Env = j.environ(env...)
		return cmd, nil
	}
	return j, j.begin()
}

// idealCommand makes this program the ideal supervisor: it waits for its ranks, and when one ends it kills the
// others and starts all again at once. It proves nothing and writes nothing down.
const idealCommand = "ideal"

func (b *bench) beginIdeal(dir string) (*job, error) {
	j := &job{dir: dir}
	j.again = func() (*exec.Cmd, error) {
		cmd := exec.Command(b.self, idealCommand, b.python, b.train)
		cmd.Env = j.environ()
		return cmd, nil
	}
	return j, j.begin()
}

func beIdeal(python, train string) error {
	for {
		port, err := freePort()
		if err != nil {
			return err
		}
		ended := make(chan error, ranks)
		var all []*exec.Cmd
		for rank := range ranks {
			cmd := exec.Command(python, "-u", train)
			cmd.Env = append(os.Environ(), "RANK="+strconv.Itoa(rank), "LOCAL_RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(ranks),
				"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port))
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				return fmt.Errorf("start rank: %w", err)
			}
			all = append(all, cmd)
			go func() { ended <- cmd.Wait() }()
		}
		<-ended //nolint:errcheck // however it ended
		for _, cmd := range all {
			_ = cmd.Process.Kill() // one of them has ended
		}
		for range ranks - 1 {
			<-ended //nolint:errcheck // the same
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// settle is how long a job trains between two faults: processes that stand ready have been forked again by then.
const settle = 3500 * time.Millisecond
