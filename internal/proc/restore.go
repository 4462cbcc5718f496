package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Restore checks the runtime directory as OpenDir does, and makes it again where it has been removed. The error says why
// it cannot be used: a *NotOursError where another user has made one in its place.
func (d Dir) Restore() error {
	_, err := OpenDir(d.path)
	return err
}

// Gone says whether there is nothing at the path any more.
func Gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Folder is where the leases lie.
func (p *Ports) Folder() string { return p.folder }

// Restore makes the folder of the leases again where it has been removed, and the leases that are held. One
// that another program has taken meanwhile is lost: the error names it.
func (p *Ports) Restore() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	folder, err := MakeFolder(p.folder, 0o700)
	if err != nil {
		return fmt.Errorf("open port leases: %w", err)
	}
	folder.Close()
	var errs []error
	for port, l := range p.held {
		if stillAt(l.lock.file, l.lock.path) {
			continue
		}
		again, err := Lock(l.lock.path)
		if err != nil {
			errs = append(errs, fmt.Errorf("lease port %d again: %w", port, err))
			continue
		}
		_ = l.lock.file.Close() // of a file that nobody finds
		p.held[port] = lease{again, l.name}
	}
	return errors.Join(errs...)
}
