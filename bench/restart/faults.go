package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// fault is something that happens to a job. do returns when it happened, in ns, and the processes that it was done to.
type fault struct {
	name  string
	limit time.Duration // how long the job may take to come back
	do    func(j *job) (at int64, old map[int]int, err error)
}

const (
	killName    = "kill"
	raiseName   = "exception"
	blockedName = "kill, peer blocked in C"
	stopName    = "SIGSTOP"
	bothName    = "two kills at once"
	duringName  = "kill during a restart"
	superName   = "supervisor killed"
)

// backTime is how long a job may take to come back from what somebody sees at once.
const backTime = 45 * time.Second

var faults = map[string]fault{
	killName:    {killName, backTime, func(j *job) (int64, map[int]int, error) { return j.kill(1) }},
	bothName:    {bothName, backTime, func(j *job) (int64, map[int]int, error) { return j.kill(0, 1) }},
	stopName:    {stopName, 30 * time.Second, (*job).freeze},
	raiseName:   {raiseName, backTime, (*job).raise},
	blockedName: {blockedName, backTime, (*job).block},
	duringName:  {duringName, backTime, (*job).killTwice},
}

func (j *job) signal(pid int, s syscall.Signal) error {
	if err := syscall.Kill(pid, s); err != nil {
		return fmt.Errorf("send %s to pid %d: %w", s, pid, err)
	}
	return nil
}

// kill kills ranks.
func (j *job) kill(which ...int) (int64, map[int]int, error) {
	old, at := j.pids(), time.Now().UnixNano()
	for _, rank := range which {
		if err := j.signal(old[rank], syscall.SIGKILL); err != nil {
			return 0, nil, err
		}
	}
	return at, old, nil
}

func (j *job) freeze() (int64, map[int]int, error) {
	old, at := j.pids(), time.Now().UnixNano()
	return at, old, j.signal(old[1], syscall.SIGSTOP)
}

// tell sends a signal to a rank and waits until it has said what it does about it.
func (j *job) tell(rank int, s syscall.Signal, what string) (entry, map[int]int, error) {
	old, before := j.pids(), time.Now().UnixNano()
	if err := j.signal(old[rank], s); err != nil {
		return entry{}, nil, err
	}
	var e entry
	err := j.until(backTime, func() (found bool) {
		e, found = j.first(what, old[rank], before)
		return found
	})
	return e, old, err
}

// raise has rank 1 raise an exception.
func (j *job) raise() (int64, map[int]int, error) {
	e, old, err := j.tell(1, syscall.SIGUSR1, "raise")
	return e.At, old, err
}

// block has rank 0 wait in C, where its handler of SIGTERM does not run, and kills rank 1.
func (j *job) block() (int64, map[int]int, error) {
	if _, _, err := j.tell(0, syscall.SIGUSR2, "blocked"); err != nil {
		return 0, nil, err
	}
	return j.kill(1)
}

// killTwice kills rank 1, and again as soon as it runs.
func (j *job) killTwice() (int64, map[int]int, error) {
	_, old, err := j.kill(1)
	if err != nil {
		return 0, nil, err
	}
	if err := j.until(backTime, func() bool { return j.pids()[1] != old[1] }); err != nil {
		return 0, nil, err
	}
	return j.kill(1)
}

// sample is one fault and what became of it.
type sample struct {
	Rival  string             `json:"rival"`
	Fault  string             `json:"fault"`
	Back   bool               `json:"back"`
	Took   time.Duration      `json:"took_ns"`
	Stages map[string]float64 `json:"stages_ms,omitempty"` // when the last rank was so far, ms since the fault
	Why    string             `json:"why,omitempty"`       // it did not come back
}

// stages that the job tells of, in order.
var jobStages = []string{"start", "imported", "group", "model", "checkpoint", "step"}

// suffer has a fault happen to a job that trains, and waits until it is back.
func (j *job) suffer(f fault) (sample, error) {
	s := sample{Fault: f.name}
	if err := j.pause(settle); err != nil {
		return s, err
	}
	seen := j.lastEvent()
	at, old, err := f.do(j)
	if err != nil {
		return s, err
	}
	var last int64
	var now map[int]int
	err = j.until(f.limit, func() (back bool) {
		last, now, back = j.back(old, at)
		return back
	})
	if err != nil {
		s.Why = err.Error()
		return s, nil //nolint:nilerr // that it did not come back is a figure like others
	}
	s.Back, s.Took, s.Stages = true, time.Duration(last-at), map[string]float64{}
	for _, what := range jobStages {
		for _, pid := range now {
			if e, ok := j.first(what, pid, at); ok {
				s.Stages[what] = max(s.Stages[what], milliseconds(e.At-at))
			}
		}
	}
	for what, when := range j.eventStages(seen, at) {
		s.Stages[what] = when
	}
	return s, nil
}

func milliseconds(ns int64) float64 { return float64(ns) / 1e6 }

// loseSupervisor kills the supervisor and starts it again. It returns when the job is looked after again and trains:
// under vigil the same processes do, and the next controller has taken them over. Others' ranks would go on beside
// those of the next supervisor, so somebody must end them first.
func (j *job) loseSupervisor(vigil bool) (sample, error) {
	s := sample{Fault: superName}
	if err := j.pause(settle); err != nil {
		return s, err
	}
	old, at := j.pids(), time.Now().UnixNano()
	if err := j.cmd.Process.Kill(); err != nil {
		return s, fmt.Errorf("kill supervisor: %w", err)
	}
	<-j.ended
	if !vigil {
		if err := j.endOrphans(); err != nil {
			return s, err
		}
	}
	if err := j.begin(); err != nil {
		return s, err
	}
	var last int64
	err := j.until(backTime, func() (back bool) {
		if vigil {
			last, back = time.Now().UnixNano(), j.takenOver()
			return back
		}
		last, _, back = j.back(old, at)
		return back
	})
	if err != nil {
		s.Why = err.Error()
		return s, nil //nolint:nilerr // that it did not come back is a figure like others
	}
	s.Took = time.Duration(last - at)
	s.Back = true
	if vigil {
		if err := j.pause(time.Second); err != nil {
			return s, err
		}
		for rank, pid := range j.pids() {
			if pid != old[rank] {
				return s, errors.New("the next controller has not taken the job over: it was restarted")
			}
		}
		s.Stages = map[string]float64{longestPause: j.pauseAfter(at)}
	}
	return s, nil
}

// longestPause is a stage of its own: see pauseAfter.
const longestPause = "longest pause"

// pauseAfter is the longest time between two steps of rank 0 that ended after an instant, ms.
func (j *job) pauseAfter(after int64) float64 {
	var before int64
	longest := 0.0
	for _, e := range j.entries {
		if e.What != "step" || e.Rank != 0 {
			continue
		}
		if e.At > after && before > 0 {
			longest = max(longest, milliseconds(e.At-before))
		}
		before = e.At
	}
	return longest
}
