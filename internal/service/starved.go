package service

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"vigil/api"
	"vigil/internal/wire/rpc"
)

const (
	// starvedEvery is how often a silent worker's threads are looked at, and how long its silence is then.
	starvedEvery = time.Second
	// lookEvery is how often it is told of a silent worker that it does not wait for a CPU.
	lookEvery = 2 * time.Second
	// starvedShare is the least share of the time between two looks that is told.
	starvedShare = 20
	// maxThreads and maxProcesses bound a look at one worker.
	maxThreads, maxProcesses = 64, 16
)

// thread names a thread of a worker.
type thread struct{ pid, tid int }

// cpuTime is what a thread has had of its CPU and how long it has waited for one, in nanoseconds
// (/proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst).
type cpuTime struct{ ran, waited uint64 }

// look is what was seen of a worker's threads.
type look struct {
	at      time.Time
	threads map[thread]cpuTime
}

// followStarved looks at workers that are silent and tells for how long they wanted to run and were not
// let: that is not their silence. It ends when closed is closed.
func (s *Service) followStarved(closed <-chan struct{}) {
	s.running.Go(func() {
		tick := time.NewTicker(starvedEvery)
		defer tick.Stop()
		seen := map[*worker]look{}
		for {
			select {
			case <-closed:
				return
			case <-tick.C:
				seen = s.lookAtSilent(seen)
			}
		}
	})
}

// lookAtSilent looks at every silent worker and tells what has changed since the last look. It returns
// what it has seen.
func (s *Service) lookAtSilent(before map[*worker]look) map[*worker]look {
	pids := map[*worker]int{}
	s.mu.Lock()
	for _, w := range s.lives {
		if s.listensTo(w) && w.running() && time.Since(w.memory.heard) >= starvedEvery {
			pids[w] = w.proc.PID()
		}
	}
	s.mu.Unlock()
	now := map[*worker]look{}
	for w, pid := range pids {
		l := look{at: time.Now(), threads: threadsBelow(pid)}
		now[w] = l
		last, ok := before[w]
		passed := l.at.Sub(last.at)
		if !ok {
			continue
		}
		if waited := waitedSince(last, l); waited > passed/starvedShare {
			s.tellLook(w, waited)
		} else if l.at.Sub(w.looked) >= lookEvery {
			s.tellLook(w, 0)
		}
	}
	return now
}

// tellLook tells for how long a silent worker has waited for a CPU since the last look. That it has not is
// told too: no silence is judged of which nobody says what it is.
func (s *Service) tellLook(w *worker, waited time.Duration) {
	s.change(func(out *words) {
		if s.listensTo(w) {
			w.looked = time.Now()
			if waited > 0 {
				w.starved = w.looked
			}
			out.other = append(out.other, &api.FromService{Word: &api.FromService_Starved{
				Starved: &api.Starved{Life: rpc.WireLife(w.life), WaitedMs: waited.Milliseconds()}}})
		}
	})
}

// wasStarved reports whether the worker was seen to be starved since the time given.
func (s *Service) wasStarved(w *worker, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return w.starved.After(since)
}

// waitedSince returns how long the thread that waited longest for a CPU has waited between two looks. One
// whose times do not move although it wants to run has waited all the time.
func waitedSince(last, now look) time.Duration {
	passed := now.at.Sub(last.at)
	longest := time.Duration(0)
	for id, t := range now.threads {
		was, ok := last.threads[id]
		switch {
		case !ok || t.waited < was.waited:
		case t == was && wantsToRun(id):
			return passed
		default:
			longest = max(longest, time.Duration(t.waited-was.waited))
		}
	}
	return min(longest, passed)
}

// threadsBelow returns the CPU times of the threads of a process and of its descendants.
func threadsBelow(pid int) map[thread]cpuTime {
	threads := map[thread]cpuTime{}
	pids := []int{pid}
	for i := 0; i < len(pids) && i < maxProcesses; i++ {
		dir := filepath.Join("/proc", strconv.Itoa(pids[i]), "task")
		tasks, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended
		}
		for n, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil || n == maxThreads {
				break
			}
			if t, ok := readSchedstat(filepath.Join(dir, task.Name(), "schedstat")); ok {
				threads[thread{pids[i], tid}] = t
			}
			children, _ := os.ReadFile(filepath.Join(dir, task.Name(), "children")) // not every kernel has it
			for child := range bytes.FieldsSeq(children) {
				if pid, err := strconv.Atoi(string(child)); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return threads
}

func readSchedstat(path string) (cpuTime, bool) {
	src, err := os.ReadFile(path)
	fields := bytes.Fields(src)
	if err != nil || len(fields) < 2 {
		return cpuTime{}, false
	}
	ran, err1 := strconv.ParseUint(string(fields[0]), 10, 64)
	waited, err2 := strconv.ParseUint(string(fields[1]), 10, 64)
	return cpuTime{ran, waited}, err1 == nil && err2 == nil
}

// wantsToRun reports whether a thread is runnable (state R of /proc/PID/task/TID/stat, proc(5)).
func wantsToRun(id thread) bool {
	src, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(id.pid), "task", strconv.Itoa(id.tid), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(src[bytes.LastIndexByte(src, ')')+1:], []byte(" "))
	return len(rest) > 0 && rest[0] == 'R'
}
