package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	ranks = 2
	// startTime bounds the start of a job, with PyTorch imported on a busy machine.
	startTime = 3 * time.Minute
	// look is how often the job's log is read. No time is taken from it.
	look = 3 * time.Millisecond
)

// entry is a line that a rank has written, as train.py says it.
type entry struct {
	What string
	At   int64 // ns of the wall clock
	Rank int
	PID  int
	Step int64
}

// job is one run of train.py under some supervisor.
type job struct {
	dir     string // of log, checkpoint and output
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the supervisor has
	again   func() (*exec.Cmd, error)
	url     string // of the controller; empty: it is not vigil's
	entries []entry
	read    int64
	rest    []byte
}

func (j *job) log() string { return filepath.Join(j.dir, "log") }

// environ is what the job's ranks inherit.
func (j *job) environ(more ...string) []string {
	env := []string{"BENCH_LOG=" + j.log(), "BENCH_CHECKPOINT=" + filepath.Join(j.dir, "checkpoint"), "OMP_NUM_THREADS=1",
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "LANG=C.UTF-8"}
	return append(env, more...)
}

// begin starts the supervisor. What it prints is kept in the job's folder.
func (j *job) begin() error {
	cmd, err := j.again()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(filepath.Join(j.dir, "output"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start job: %w", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // an interrupted benchmark leaves nobody
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start job: %w", err)
	}
	ended := make(chan struct{})
	j.cmd, j.ended = cmd, ended
	go func() {
		_ = cmd.Wait() // its state says how it ended
		close(ended)
	}()
	return nil
}

// update reads what the ranks have written since the last time.
func (j *job) update() error {
	f, err := os.Open(j.log())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read the job's log: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(j.read, io.SeekStart); err != nil {
		return fmt.Errorf("read the job's log: %w", err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("read the job's log: %w", err)
	}
	j.read += int64(len(text))
	j.rest = append(j.rest, text...)
	for {
		line, rest, whole := bytes.Cut(j.rest, []byte("\n"))
		if !whole {
			return nil
		}
		j.rest = rest
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read the job's log: %w", err)
		}
		j.entries = append(j.entries, e)
	}
}

// errLate says that something has not come within its time.
var errLate = errors.New("not within its time")

// until reads the log until found says so, for so long at most.
func (j *job) until(limit time.Duration, found func() bool) error {
	over := time.NewTimer(limit)
	defer over.Stop()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if err := j.update(); err != nil {
			return err
		}
		if found() {
			return nil
		}
		select {
		case <-tick.C:
		case <-over.C:
			return errLate
		case <-j.ended:
			if err := j.update(); err != nil || found() {
				return err
			}
			return fmt.Errorf("the supervisor has ended: %s", j.cmd.ProcessState)
		}
	}
}

// pause lets the job train.
func (j *job) pause(d time.Duration) error {
	if err := j.until(d, func() bool { return false }); !errors.Is(err, errLate) {
		return err
	}
	return nil
}

// pids returns the process of each rank that was started last.
func (j *job) pids() map[int]int {
	found := map[int]int{}
	for _, e := range j.entries {
		if e.What == "start" {
			found[e.Rank] = e.PID
		}
	}
	return found
}

// first returns the first entry of a kind, by a process, after an instant.
func (j *job) first(what string, pid int, after int64) (entry, bool) {
	for _, e := range j.entries {
		if e.What == what && e.PID == pid && e.At > after {
			return e, true
		}
	}
	return entry{}, false
}

// trains says whether every rank of the newest processes has made so many steps.
func (j *job) trains(steps int) bool {
	now, made := j.pids(), map[int]int{}
	for _, e := range j.entries {
		if e.What == "step" && now[e.Rank] == e.PID {
			made[e.Rank]++
		}
	}
	for rank := range ranks {
		if made[rank] < steps {
			return false
		}
	}
	return true
}

// back returns, for processes of none of the old pids, when the last rank had finished its first step,
// and those processes.
func (j *job) back(old map[int]int, after int64) (int64, map[int]int, bool) {
	var last int64
	now := map[int]int{}
	for _, e := range j.entries {
		if _, had := now[e.Rank]; e.What != "step" || e.At <= after || e.PID == old[e.Rank] || had {
			continue
		}
		now[e.Rank] = e.PID
		last = max(last, e.At)
	}
	return last, now, len(now) == ranks
}

// end ends the supervisor and every rank that it has left.
func (j *job) end() error {
	_ = j.cmd.Process.Signal(syscall.SIGTERM)
	patience := time.NewTimer(15 * time.Second)
	defer patience.Stop()
	select {
	case <-j.ended:
	case <-patience.C:
		_ = j.cmd.Process.Kill()
		<-j.ended
	}
	return j.endOrphans()
}

// endOrphans kills the ranks of a supervisor that has gone.
func (j *job) endOrphans() error {
	if err := j.update(); err != nil {
		return err
	}
	for _, e := range j.entries {
		if e.What == "start" && j.isOurs(e.PID) {
			_ = syscall.Kill(e.PID, syscall.SIGKILL) // gone meanwhile
		}
	}
	return nil
}

// isOurs says whether a pid still is a rank of this job.
func (j *job) isOurs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(text, []byte("BENCH_LOG="+j.log()+"\x00"))
}

// said returns the last lines that the supervisor has printed.
func (j *job) said(lines int) []string {
	f, err := os.Open(filepath.Join(j.dir, "output"))
	if err != nil {
		return nil
	}
	defer f.Close()
	var all []string
	for s := bufio.NewScanner(f); s.Scan(); {
		all = append(all, s.Text())
	}
	return all[max(0, len(all)-lines):]
}
