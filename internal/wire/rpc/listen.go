package rpc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ListenUnix listens on a new Unix socket of mode 0600. It refuses a path that exists, whose folder is
// missing, or that is longer than the system takes. Closing the listener removes the file.
func ListenUnix(path string) (net.Listener, error) {
	if err := checkSocketPath(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The mode set before bind is the one that the file is born with (unix_bind of Linux), so that
	// nobody can connect in between.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	l, err := config.Listen(context.Background(), "unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: %w", path, fs.ErrExist)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}

func checkSocketPath(path string) error {
	if err := checkTarget("unix://"+path, false); err != nil {
		return err
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("its folder: %w", errors.Unwrap(err))
	}
	if !dir.IsDir() {
		return fmt.Errorf("%s is not a folder", filepath.Dir(path))
	}
	return nil
}

// ListenRandom listens on a Unix socket with an unused random name in dir: PREFIX-16hex.sock. Slashes in
// prefix become dots.
func ListenRandom(dir, prefix string) (net.Listener, error) {
	prefix = strings.ReplaceAll(prefix, "/", ".")
	for {
		var b [8]byte
		rand.Read(b[:]) // never fails, since Go 1.24
		l, err := ListenUnix(filepath.Join(dir, prefix+"-"+hex.EncodeToString(b[:])+".sock"))
		if !errors.Is(err, fs.ErrExist) {
			return l, err
		}
	}
}

// Target returns the gRPC target of a listener: unix:///PATH, or HOST:PORT.
func Target(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix://" + l.Addr().String()
	}
	return l.Addr().String()
}
