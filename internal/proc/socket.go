package proc

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// unborn begins the names of sockets that do not listen yet; the pid of who makes them follows. Sweep leaves
// them alone while it lives.
const unborn = ".new-"

// ListenUnix listens on a new Unix stream socket, mode 0600. A file that exists and a folder that does
// not are refused, and so is a path beyond the platform's limit. The socket appears at its path when
// it listens already, so whoever finds it can connect. Close removes it.
func ListenUnix(path string) (net.Listener, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	var word [4]byte
	_, _ = rand.Read(word[:]) // never fails (crypto/rand)
	early := filepath.Join(filepath.Dir(path), fmt.Sprintf("%s%d-%x", unborn, os.Getpid(), word))
	if err := CheckSocketPath(early); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: early, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(early, 0o600)
	if err == nil {
		err = os.Link(early, path) // unlike renaming, this refuses a file that exists
	}
	err = errors.Join(err, os.Remove(early))
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	return &unixListener{UnixListener: l, path: path}, nil
}

type unixListener struct {
	*net.UnixListener
	path string
	once sync.Once
}

// Addr is the address at which others find the socket.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close ends listening and removes the socket.
func (l *unixListener) Close() error {
	l.once.Do(func() { _ = os.Remove(l.path) })
	return l.UnixListener.Close()
}
