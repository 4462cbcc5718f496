package devices

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// inheritedEvery is how often a service looks after the locks that it has inherited: a machine may have many services,
// each with all locks of its job.
const inheritedEvery = 5 * time.Second

// Tend looks after the locks that this process has inherited from a controller, until done is closed: it answers who
// asks while there is no controller, and has the kernel name this process where the one that is named has ended.
func Tend(done <-chan struct{}) {
	fds := inheritedLocks()
	if len(fds) == 0 {
		return
	}
	type id struct {
		pid   int
		start int64
	}
	of := func(fd int) id {
		who, _ := named(fd)
		start, _ := startOf(who.PID)
		return id{who.PID, start}
	}
	first := map[int]id{}
	for _, fd := range fds {
		first[fd] = of(fd)
	}
	tick := time.NewTicker(inheritedEvery)
	defer tick.Stop()
	for {
		for _, fd := range fds {
			now := of(fd)
			if now.pid != first[fd].pid { // another has had himself named
				first[fd] = now
			}
			if first[fd].pid > 0 && (now.start == 0 || now.start != first[fd].start) {
				_ = unix.Listen(fd, backlog)
				first[fd] = of(fd)
			}
			drain(fd)
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// inheritedLocks returns the descriptors that are locks of devices.
func inheritedLocks() []int {
	list, _ := os.ReadDir("/proc/self/fd")
	var out []int
	for _, item := range list {
		fd, err := strconv.Atoi(item.Name())
		if err != nil || fd < 3 {
			continue
		}
		at, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		if a, ok := at.(*unix.SockaddrUnix); ok && (strings.HasPrefix(a.Name, "@"+lockName) || strings.HasPrefix(a.Name, "@"+holdName)) {
			out = append(out, fd)
		}
	}
	return out
}
