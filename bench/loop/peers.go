package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// ideal is the floor: it waits for its one worker and starts it again at once. It proves nothing and
// writes nothing down.
type ideal struct {
	attr    *os.ProcAttr
	program string
	stopped chan struct{}
	done    chan error
}

func startIdeal(program string, env []string) *ideal {
	i := &ideal{
		program: program, stopped: make(chan struct{}), done: make(chan error, 1),
		attr: &os.ProcAttr{Env: append(os.Environ(), env...), Files: []*os.File{nil, nil, os.Stderr}},
	}
	go func() { i.done <- i.loop() }()
	return i
}

func (i *ideal) loop() error {
	for {
		p, err := os.StartProcess(i.program, []string{i.program, workerCommand}, i.attr)
		if err != nil {
			return fmt.Errorf("start worker: %w", err)
		}
		dead := make(chan error, 1)
		go func() {
			_, err := p.Wait()
			dead <- err
		}()
		select {
		case err = <-dead:
		case <-i.stopped:
			return errors.Join(p.Kill(), <-dead)
		}
		if err != nil {
			return fmt.Errorf("wait for worker: %w", err)
		}
	}
}

func (i *ideal) stop() error {
	close(i.stopped)
	return <-i.done
}

// torchrun is the peer, set as it does best: it looks every 0.1 s whether a worker has died.
type torchrun struct {
	cmd  *exec.Cmd
	said bytes.Buffer
	done chan struct{} // closed when it has ended
}

// findTorchrun returns the program named by TORCHRUN, or else the one in PATH; empty if there is none.
func findTorchrun() string {
	name := os.Getenv("TORCHRUN")
	if name == "" {
		name = "torchrun"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

func startTorchrun(path, program string, env []string) (*torchrun, error) {
	t := &torchrun{done: make(chan struct{})}
	t.cmd = exec.Command(path, "--standalone", "--nnodes=1", "--nproc_per_node=1", "--max_restarts=1000000", "--monitor_interval=0.1",
		"--no_python", program, workerCommand)
	t.cmd.Env = append(os.Environ(), append(env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")...)
	t.cmd.Stdout, t.cmd.Stderr = &t.said, &t.said
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start torchrun: %w", err)
	}
	go func() {
		_ = t.cmd.Wait() // it ends by a signal, or by what it makes of one
		close(t.done)
	}()
	return t, nil
}

func (t *torchrun) stop() error {
	if err := t.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop torchrun: %w", err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
		err := syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL)
		<-t.done
		return err
	}
	return nil
}

// lastLine is the end of an error: of a Python traceback the line that says what was wrong.
func lastLine(err error) string {
	lines := strings.Split(strings.TrimSpace(err.Error()), "\n")
	if len(lines) == 1 {
		return lines[0]
	}
	return lines[0] + ": " + lines[len(lines)-1]
}
