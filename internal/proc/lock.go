package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// FileLock is a lock that a program of ours holds, by flock(2) on a file that has the pid of the holder
// in it. It ends with Unlock or with the program, however that ends.
type FileLock struct {
	file *os.File
	path string
}

// LockedError says that another program, or this one already, holds a lock.
type LockedError struct {
	Path string
	PID  int // of the holder; 0 when it is not known
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("lock %s: held by another process", e.Path)
	}
	return fmt.Sprintf("lock %s: held by pid %d", e.Path, e.PID)
}

// Lock takes the lock at path at once or fails; the file is made where there is none, mode 0600. That
// somebody else holds it is a *LockedError.
func Lock(path string) (*FileLock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, bare(err))
		}
		if err := flock(f); err != nil {
			defer f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, &LockedError{Path: path, PID: holder(path)}
			}
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !stillAt(f, path) { // the last holder has removed the file between our two steps
			f.Close()
			continue
		}
		if err := write(f, strconv.Itoa(os.Getpid())+"\n"); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, bare(err))
		}
		return &FileLock{file: f, path: path}, nil
	}
}

// LockFolder takes the lock of an open folder, which lasts as long as it is open. That somebody else holds it is a
// *LockedError, without the pid. Where the file system has no locks for folders, as NFS, there is none.
func LockFolder(folder *os.File) error {
	err := flock(folder)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return &LockedError{Path: folder.Name()}
	case errors.Is(err, unix.EBADF), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return nil
	case err != nil:
		return fmt.Errorf("lock folder %s: %w", folder.Name(), err)
	}
	return nil
}

// Stands says whether the lock's file is still at its path: somebody may have removed it, and then others can
// take a lock of that name.
func (l *FileLock) Stands() bool { return stillAt(l.file, l.path) }

// Path is where the lock's file is.
func (l *FileLock) Path() string { return l.path }

// Check refuses, with a *NotOursError, a lock whose file another user has made or may write to.
func (l *FileLock) Check() error { return CheckFile(l.file) }

// Unlock removes the file and gives the lock back.
func (l *FileLock) Unlock() error {
	var err error
	if l.Stands() {
		err = os.Remove(l.path)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.file.Close())
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			return err
		}
	}
}

// holder reads who holds a lock. The holder writes it right after locking, so it may need a moment.
func holder(path string) int {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 10 {
		text, err := os.ReadFile(path)
		if err != nil {
			return 0
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && strings.HasSuffix(string(text), "\n") {
			return pid
		}
		<-tick.C
	}
	return 0
}

func stillAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}

func write(f *os.File, text string) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// bare takes the path off an error of package os whose text names it already.
func bare(err error) error {
	var e *os.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}
