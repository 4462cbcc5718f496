package caller

import (
	"net"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// dialAs connects to a Unix socket as that user, in a thread that ends with it. Folder and file are not
// asked: the connection is what counts here.
func dialAs(path string, uid int) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		c, err := connectAs(path, uid)
		done <- result{c, err}
	}()
	r := <-done
	return r.c, r.err
}

func connectAs(path string, uid int) (net.Conn, error) {
	folder, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) // opened while it may be
	if err != nil {
		return nil, err
	}
	defer unix.Close(folder)
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
		return nil, errno
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(folder)}); err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "connection")
	defer f.Close()
	return net.FileConn(f)
}
