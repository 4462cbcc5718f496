package proc

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Inherited are descriptors that this program was executed with, beyond 0 to 2: what its caller had left open, such as
// the pipe of a wrapper, or has handed over.
type Inherited []int

// SealInherited keeps the descriptors that this program was executed with, but 0 to 2, from everything that it will
// execute, and returns them. It is to be called first of all: one that is not closed by an exec is taken for
// inherited, and whatever Go opens is.
func SealInherited() Inherited {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil // without /proc no processes can be kept
	}
	var found Inherited
	for _, name := range names {
		fd, err := strconv.Atoi(name.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		unix.CloseOnExec(fd)
		found = append(found, fd)
	}
	return found
}

// Close closes the descriptors, but for those that needed names and those through which a lock is held: a lock that was
// taken before this program was executed in its place is to be held as long as the program runs. It is to be called
// once.
func (i Inherited) Close(needed func(fd int) bool) {
	for _, fd := range i {
		if !needed(fd) && !holdsLock(fd) {
			unix.Close(fd)
		}
	}
}

// holdsLock says whether a lock of a file is held through a descriptor (proc(5), /proc/pid/fdinfo).
func holdsLock(fd int) bool {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	return err == nil && bytes.Contains(info, []byte("\nlock:"))
}
