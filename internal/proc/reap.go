package proc

import (
	"os"
	ossignal "os/signal"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// strangerAge is how long a dead child of our own session stays when we do not know it: code that
// waits for it by itself has long done so.
const strangerAge = 2 * time.Second

// reapLoop collects orphans that fell to us. Children that somebody waits for are left alone: a plain
// wait for any child would steal their exit statuses.
func (k *Keeper) reapLoop() {
	died := make(chan os.Signal, 1)
	ossignal.Notify(died, unix.SIGCHLD)
	defer ossignal.Stop(died)
	seen := map[Ident]time.Time{} // unknown dead children of our own session
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-died:
		case <-timer.C:
		case <-k.closed:
			return
		}
		timer.Reset(k.reap(seen, time.Now()))
	}
}

// reap collects what can be collected now and says when to look again.
func (k *Keeper) reap(seen map[Ident]time.Time, now time.Time) time.Duration {
	for {
		pid := firstDead()
		if pid == 0 {
			clear(seen)
			return time.Second // signals may be lost
		}
		switch k.collect(pid, seen, now) {
		case collected:
		case somebodyWaits:
			return 2 * time.Millisecond
		case tooYoung:
			// It hides the others, which the kernel would list after it.
			for pid, e := range readTable() {
				if e.Parent == k.self.PID && !e.alive() {
					k.collect(pid, seen, now)
				}
			}
			return 50 * time.Millisecond
		}
	}
}

type collecting int

const (
	collected collecting = iota
	somebodyWaits
	tooYoung
)

func (k *Keeper) collect(pid int, seen map[Ident]time.Time, now time.Time) collecting {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.children[pid]; known {
		return somebodyWaits
	}
	e, err := readEntry(pid)
	if err != nil {
		return collected
	}
	if e.Session == k.self.Session {
		// A child of other code of this program, most likely.
		first, ok := seen[e.Ident]
		if !ok {
			seen[e.Ident] = now
		}
		if !ok || now.Sub(first) < strangerAge {
			return tooYoung
		}
		delete(seen, e.Ident)
	}
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOHANG, nil)
		if err != unix.EINTR {
			return collected
		}
	}
}

// childInfo is the part of siginfo_t that waitid fills in.
type childInfo struct {
	_   [3]int32
	_   [0]uintptr // aligned as the kernel's union is
	pid int32
	_   [112]byte
}

// firstDead returns the pid of a dead child that nobody has waited for, without collecting it; 0 when
// there is none. unix.Waitid does not show the pid in its Siginfo.
func firstDead() int {
	for {
		var info childInfo
		_, _, errno := syscall.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		switch errno {
		case 0:
			return int(info.pid)
		case unix.EINTR:
		default:
			return 0
		}
	}
}
