package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"

	"vigil/internal/identity"
	"vigil/internal/proc"
)

// lockFile is the lock's name in the state directory.
const lockFile = "controller.lock"

// stateLock keeps a state directory for one controller. It is three locks: of a file in the directory, which programs on
// other machines see too; of the directory itself, which stays when the file is removed; and of a file in the runtime
// directory that stands for the path, which stays when the directory is removed or moved.
type stateLock struct {
	home    string
	runtime proc.Dir

	folder *os.File
	file   *proc.FileLock
	path   *proc.FileLock
}

// lockState takes the lock of a state directory that is open. One that a living process has is refused at once, with a
// *proc.LockedError. Where the lock of the file is held already, it is given. It owns that and the folder, also after an error.
func lockState(home string, folder *os.File, runtime proc.Dir, file *proc.FileLock) (*stateLock, error) {
	l := &stateLock{home: home, runtime: runtime, folder: folder, file: file}
	var err error
	if l.file == nil {
		if l.file, err = identity.Patiently(func() (*proc.FileLock, error) { return lockOurs(filepath.Join(home, lockFile)) }); err != nil {
			return nil, errors.Join(err, l.unlock())
		}
	}
	if l.path, err = identity.Patiently(l.lockPath); err != nil {
		return nil, errors.Join(err, l.unlock())
	}
	if _, err := identity.Patiently(func() (*proc.FileLock, error) { return nil, proc.LockFolder(folder) }); err != nil {
		return nil, errors.Join(err, l.unlock())
	}
	return l, nil
}

// lockPath takes the lock that stands for the path, with every link in it followed.
func (l *stateLock) lockPath() (*proc.FileLock, error) {
	sum := sha256.Sum256([]byte(l.folder.Name()))
	return l.runtime.Lock("state-" + hex.EncodeToString(sum[:8]))
}

// restore makes again what has been removed, the directory with it, and says whether something was. It takes no lock
// that another controller has: the error is a *proc.LockedError.
func (l *stateLock) restore() (made bool, err error) {
	folder, err := proc.MakeFolder(l.home, 0o700)
	if err != nil {
		return false, err
	}
	if sameOpen(folder, l.folder) {
		_ = folder.Close()
	} else {
		if err := proc.LockFolder(folder); err != nil {
			return false, errors.Join(err, folder.Close())
		}
		_ = l.folder.Close()
		l.folder, made = folder, true
	}
	if !l.file.Stands() {
		again, err := lockOurs(filepath.Join(l.home, lockFile))
		if err != nil {
			return made, err
		}
		_ = l.file.Unlock() // of a file that nobody finds
		l.file, made = again, true
	}
	if !l.path.Stands() { // the runtime directory says it itself
		again, err := l.lockPath()
		if err != nil {
			return made, err
		}
		_ = l.path.Unlock()
		l.path = again
	}
	return made, nil
}

func sameOpen(a, b *os.File) bool {
	one, err := a.Stat()
	other, wrong := b.Stat()
	return err == nil && wrong == nil && os.SameFile(one, other)
}

// unlock gives back what was taken.
func (l *stateLock) unlock() error {
	var errs []error
	for _, lock := range []*proc.FileLock{l.path, l.file} {
		if lock != nil {
			errs = append(errs, lock.Unlock())
		}
	}
	return errors.Join(append(errs, l.folder.Close())...)
}

// lockOurs takes a lock whose file must be ours.
func lockOurs(path string) (*proc.FileLock, error) {
	lock, err := proc.Lock(path)
	if err != nil {
		return nil, err
	}
	if err := lock.Check(); err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	return lock, nil
}
