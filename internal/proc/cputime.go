package proc

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// effort is what a process and its threads have had of the CPUs.
type effort struct {
	all     time.Duration         // of the process, with threads that have ended
	threads map[int]time.Duration // of each living thread, by its id
}

// effortOf reads the effort of a process; false where that cannot be known, or it has ended.
func effortOf(id Ident) (effort, bool) {
	all, ok := ranFor(id.PID)
	if !ok {
		return effort{}, false
	}
	e := effort{all: all, threads: map[int]time.Duration{}}
	for _, tid := range threadsOf(id.PID) {
		if ran, ok := threadRan(id.PID, tid); ok {
			e.threads[tid] = ran
		}
	}
	now, err := readEntry(id.PID)
	return e, err == nil && now.Ident == id
}

// since says how much the process has worked since an earlier look: all of it, and the thread that has worked most.
func (e effort) since(before effort) (all, busiest time.Duration) {
	for tid, ran := range e.threads {
		busiest = max(busiest, ran-before.threads[tid])
	}
	return e.all - before.all, busiest
}

// ranFor is how much CPU time all threads of a process have had, those that have ended too: its CPU-time clock
// (clock_getcpuclockid(3)); false where it cannot be read.
func ranFor(pid int) (time.Duration, bool) {
	const cpuClockSched = 2 // of the whole process (include/linux/posix-timers.h)
	var ts unix.Timespec
	if err := unix.ClockGettime(^int32(pid)<<3|cpuClockSched, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}

// threadsOf are the ids of a process's threads.
func threadsOf(pid int) []int {
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	tids := make([]int, 0, len(names))
	for _, name := range names {
		if tid, err := strconv.Atoi(name); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids
}

// asleep says whether every thread of a process waits for something that a signal could interrupt: none runs, waits
// for a CPU, or for a disk.
func asleep(pid int) bool {
	tids := threadsOf(pid)
	for _, tid := range tids {
		src, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(tid) + "/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		if e, err := parseStat(tid, src); err != nil || e.State != 'S' {
			return false
		}
	}
	return len(tids) > 0
}
