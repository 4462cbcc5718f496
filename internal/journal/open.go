package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// lockPatience is how long Open waits for another process to let go of the file.
const lockPatience = 500 * time.Millisecond

// openDisk opens the file, or makes it, or sets it aside and makes another.
func openDisk(path string, o Options, s seams) (*disk, error) {
	for range 10 { // each round but the last loses a race against another process, or follows a set-aside
		found, err := acquire(path, o, s.shape)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := create(path, o, s); err != nil {
				return nil, fmt.Errorf("begin journal %s: %w", path, err)
			}
			continue
		case errors.Is(err, errMoved):
			continue
		case err != nil:
			return nil, err
		}
		return found.open(path, o, s)
	}
	return nil, fmt.Errorf("open journal %s: the file keeps changing", path)
}

var errMoved = errors.New("the file has moved")

// found is a file that is locked, and has been checked.
type found struct {
	file  *os.File
	stale bool // is of an older shape
	torn  bool // its newest commit is not whole
}

// acquire locks the file at path and checks it. The error is fs.ErrNotExist where there is none, and
// errMoved where the path means another file now.
func acquire(path string, o Options, s shape) (_ *found, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, refuse(path, o, &CorruptError{path, errors.New("it is not a regular file")})
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if o.Check != nil {
		if err := o.Check(f); err != nil {
			return nil, fmt.Errorf("open journal: %w", err)
		}
	}
	if err := lock(f); err != nil {
		return nil, err
	}
	held, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(now, held) {
		return nil, errMoved
	}
	c := check{shape: s, path: path, counts: map[Kind]int{}}
	if err := c.file(f, held.Size(), o.Job); err != nil {
		return nil, refuse(path, o, err)
	}
	if c.torn {
		o.Log.Warn("the newest commit of the journal is missing: going on from the one before", "journal", path)
	}
	return &found{f, c.stale, c.torn}, nil
}

// lock takes the lock that bbolt takes: it belongs to the open file, so bbolt finds it taken by itself.
func lock(f *os.File) error {
	late := time.NewTimer(lockPatience)
	defer late.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			return fmt.Errorf("lock journal %s: %w", f.Name(), err)
		}
		select {
		case <-again.C:
		case <-late.C:
			return &HeldError{f.Name()}
		}
	}
}

// refuse is what becomes of a file that cannot be gone on with: it is left, and the error says why; or
// it is set aside, and the error is that it has moved.
func refuse(path string, o Options, why error) error {
	if !o.Forget || !refusal(why) {
		return why
	}
	aside, err := setAside(path)
	if err != nil {
		return err
	}
	o.Log.Warn("a journal was set aside, and what it knew is forgotten", "journal", path, "now", aside, "why", why)
	return errMoved
}

// setAside renames a file to PATH.set-aside-N, and returns that.
func setAside(path string) (string, error) {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.set-aside-%d", path, n)
		if _, err := os.Lstat(aside); err == nil {
			continue
		}
		if err := cmp.Or(os.Rename(path, aside), syncDir(filepath.Dir(path))); err != nil {
			return "", fmt.Errorf("set journal aside: %w", err)
		}
		return aside, nil
	}
}

// create makes an empty journal and gives it its name when it is whole, unless another process was
// faster: an empty or half made file is always a damaged one.
func create(path string, o Options, s seams) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-")
	if err != nil {
		return err
	}
	making := f.Name()
	defer os.Remove(making)
	if err := f.Close(); err != nil {
		return err
	}
	db, err := bolt.Open(making, 0o600, boltOptions(s, nil))
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return (&head{Format: s.shape.format(), Job: o.Job, Made: o.Version, Written: o.Version, Counts: map[Kind]int{}}).write(tx)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := name(making, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// name gives a file that is whole its name, unless there is one of that name.
func name(making, path string) error {
	err := os.Link(making, path)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) { // a file system without links
		err = unix.Renameat2(unix.AT_FDCWD, making, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	}
	return err
}

func boltOptions(s seams, f *os.File) *bolt.Options {
	o := &bolt.Options{
		Timeout: lockPatience, PageSize: pageSize, MaxSize: LargestFile, NoStatistics: true,
		FreelistType: bolt.FreelistMapType, NoSync: s.noSync, NoGrowSync: s.noSync,
	}
	if f != nil {
		o.OpenFile = func(string, int, os.FileMode) (*os.File, error) { return f, nil }
	}
	return o
}

// open gives the file to bbolt, and brings it to the present shape.
func (f *found) open(path string, o Options, s seams) (*disk, error) {
	sweep(path)
	d := &disk{path: path, version: o.Version, job: o.Job, shape: s.shape, seams: s, file: f.file, rewound: f.torn}
	err := d.guarded(func() (err error) {
		d.db, err = bolt.Open(path, 0o600, boltOptions(s, f.file))
		return err
	})
	if err != nil {
		_ = f.file.Close() // closed already, unless bbolt panicked
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	d.hold()
	d.look()
	if !f.stale {
		return d, nil
	}
	err = d.guarded(func() error {
		return d.db.Update(func(tx *bolt.Tx) error { return s.shape.migrate(tx, o.Version) })
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bring journal %s up to date: %w", path, err), d.close())
	}
	d.look()
	o.Log.Info("the journal of an older version was brought up to date", "journal", path)
	return d, nil
}

// sweep removes what a create left that was killed. One that is under way loses its file and finds that
// the journal is there.
func sweep(path string) {
	left, _ := filepath.Glob(path + ".new-*")
	for _, name := range left {
		_ = os.Remove(name)
	}
}
