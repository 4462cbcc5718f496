package service

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"vigil/api"
	"vigil/internal/health"
	"vigil/internal/wire/rpc"
)

const (
	// starvedEvery is how often the main thread of a silent worker is looked at, and how long its silence is then.
	starvedEvery = time.Second
	// allEvery is how often all threads of a silent worker are looked at, and costEvery how often those of any worker, to
	// know what a word of it costs. A look at a hundred threads takes some milliseconds.
	allEvery, costEvery = 10 * time.Second, time.Minute
	// lookEvery is how often it is told of a silent worker that it does not wait for a CPU.
	lookEvery = 2 * time.Second
	// maxThreads and maxProcesses bound a look at one worker.
	maxThreads, maxProcesses = 64, 16
)

// seen is what is known of the CPU time of a worker. Only the goroutine that looks has it.
type seen struct {
	cpu   health.CPU
	words int       // of the worker, as it knows
	all   time.Time // of the newest look at all threads
}

// followStarved looks at workers and tells of the silent ones for how long they lacked CPU: that is not
// their silence. It ends when closed is closed.
func (s *Service) followStarved(closed <-chan struct{}) {
	s.running.Go(func() {
		tick := time.NewTicker(starvedEvery)
		defer tick.Stop()
		known := map[int]*seen{} // by rank
		lives := map[int]*worker{}
		for {
			select {
			case <-closed:
				return
			case <-tick.C:
				s.lookAtWorkers(known, lives)
			}
		}
	})
}

// lookAtWorkers looks at the workers that run and tells what is to be told of the silent ones. known is what earlier looks
// have shown of each rank, lives the life in which they did.
func (s *Service) lookAtWorkers(known map[int]*seen, lives map[int]*worker) {
	type subject struct {
		worker *worker
		pid    int
		heard  time.Time
		words  int
	}
	var all []subject
	s.mu.Lock()
	for _, w := range s.lives {
		if s.listensTo(w) && w.running() {
			all = append(all, subject{w, w.proc.PID(), w.memory.word, w.memory.words})
		}
	}
	s.mu.Unlock()
	for _, w := range all {
		rank := w.worker.life.Rank
		k := known[rank]
		if k == nil || lives[rank] != w.worker {
			next := &seen{}
			if k != nil {
				next.cpu.Inherit(&k.cpu)
			}
			known[rank], lives[rank], k = next, w.worker, next
		}
		if n := w.words - k.words; n > 0 {
			k.cpu.Words(n, w.heard)
			k.words = w.words
		}
		if waited, looked := k.look(w.pid, w.heard); looked {
			s.tellLook(w.worker, waited)
		}
	}
}

// look looks at a worker that has said its last word at the time given, as far as it is time for that. It returns how
// much of its silence since the last look was lack of CPU; looked is false for one that is not silent.
func (k *seen) look(pid int, heard time.Time) (waited time.Duration, looked bool) {
	now := time.Now()
	silent := now.Sub(heard) >= starvedEvery
	if silent {
		main := health.Thread{PID: pid, TID: pid}
		if t, ok := readSchedstat(schedstatOf(main)); ok {
			waited = k.cpu.Main(now, t, func() bool { return wantsToRun(main) })
		}
	}
	since := now.Sub(k.all)
	if since >= costEvery || silent && since >= allEvery && now.Sub(heard) >= allEvery {
		k.all = now
		waited += k.cpu.All(health.CPULook{At: now, Threads: threadsBelow(pid), Stuck: wantsToRun})
	}
	return waited, silent
}

// tellLook tells for how long a silent worker has lacked CPU since the last look. That it has not is
// told too, less often: no silence is judged of which nobody says what it is.
func (s *Service) tellLook(w *worker, waited time.Duration) {
	if waited == 0 && time.Since(w.looked) < lookEvery {
		return
	}
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

// threadsBelow returns the CPU times of the threads of a process and of its descendants.
func threadsBelow(pid int) map[health.Thread]health.CPUTime {
	threads := map[health.Thread]health.CPUTime{}
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
				threads[health.Thread{PID: pids[i], TID: tid}] = t
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

func schedstatOf(t health.Thread) string {
	return filepath.Join("/proc", strconv.Itoa(t.PID), "task", strconv.Itoa(t.TID), "schedstat")
}

// readSchedstat reads what a thread has had of a CPU and how long it has waited for one, in nanoseconds
// (/proc/PID/task/TID/schedstat, Documentation/scheduler/sched-stats.rst).
func readSchedstat(path string) (health.CPUTime, bool) {
	src, err := os.ReadFile(path)
	fields := bytes.Fields(src)
	if err != nil || len(fields) < 2 {
		return health.CPUTime{}, false
	}
	ran, err1 := strconv.ParseInt(string(fields[0]), 10, 64)
	waited, err2 := strconv.ParseInt(string(fields[1]), 10, 64)
	return health.CPUTime{Ran: time.Duration(ran), Waited: time.Duration(waited)}, err1 == nil && err2 == nil
}

// wantsToRun reports whether a thread is runnable (state R of /proc/PID/task/TID/stat, proc(5)).
func wantsToRun(id health.Thread) bool {
	src, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(id.PID), "task", strconv.Itoa(id.TID), "stat"))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(src[bytes.LastIndexByte(src, ')')+1:], []byte(" "))
	return len(rest) > 0 && rest[0] == 'R'
}
