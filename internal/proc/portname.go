package proc

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// lease is a port that is held: by a file for programs that share the runtime directory, and by a name in the kernel's
// table of abstract sockets (unix(7)) for those of all users in the same network namespace, which is where ports are.
type lease struct {
	lock *FileLock
	name int // descriptor; -1 without one
}

func (l lease) end() {
	_ = l.lock.Unlock()
	if l.name >= 0 {
		_ = unix.Close(l.name)
	}
}

// namePort takes the name of a port, which ends with this program. free is false where another program has it. Where
// the kernel gives no names there is none, and the runtime directory's lease is all.
func namePort(port int) (name int, free bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, true
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@vigil/port/" + strconv.Itoa(port)})
	if err == nil {
		return fd, true
	}
	_ = unix.Close(fd)
	return -1, !errors.Is(err, unix.EADDRINUSE)
}
