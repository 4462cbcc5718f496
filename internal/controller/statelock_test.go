package controller

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/identity"
	"vigil/internal/proc"
)

// shortFolder is a new folder with a path that leaves room for sockets.
func shortFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "vf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// A controller that is killed while it forks leaves its lock with the child for a moment.
func TestTheLockOfADeadControllerIsWaitedForAndThatOfALivingOneIsNot(t *testing.T) {
	home := t.TempDir()
	path := filepath.Join(home, lockFile)
	runtime, err := proc.OpenDir(shortFolder(t))
	if err != nil {
		t.Fatal(err)
	}
	take := func() (*stateLock, error) {
		folder, err := proc.OpenFolder(home)
		if err != nil {
			t.Fatal(err)
		}
		return lockState(home, folder, runtime, nil)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("4194303\n"); err != nil { // nobody has that pid
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { f.Close() })
	lock, err := take()
	if err != nil {
		t.Fatal(err)
	}
	refused := false // that it can be at once counts, in one of many times: the machine may be busy
	for began := time.Now(); !refused && time.Since(began) < patience; {
		asked := time.Now()
		if _, err := take(); !errors.As(err, new(*proc.LockedError)) {
			t.Fatalf("a lock of ours is taken twice: %v", err)
		}
		refused = time.Since(asked) < identity.LockPatience
	}
	if !refused {
		t.Error("a living holder was waited for")
	}
	if err := lock.unlock(); err != nil {
		t.Error(err)
	}
}

// Whatever somebody removes of the locks, the file, the directory or both, no second controller gets in, and the first
// takes again what was removed.
//
// shows: FAULT-J5
func TestAStateDirectoryThatSomebodyRemovesHasOneController(t *testing.T) {
	for how, remove := range map[string]func(home string) error{
		"the lock":      func(home string) error { return os.Remove(filepath.Join(home, lockFile)) },
		"the directory": os.RemoveAll,
		"another place": func(home string) error { return os.Rename(home, home+".old") },
		"replaced": func(home string) error {
			return errors.Join(os.Rename(home, home+".old"), os.Mkdir(home, 0o700), os.WriteFile(filepath.Join(home, lockFile), nil, 0o600))
		},
	} {
		t.Run(how, func(t *testing.T) {
			home := filepath.Join(t.TempDir(), "state")
			runtime, err := proc.OpenDir(shortFolder(t))
			if err != nil {
				t.Fatal(err)
			}
			take := func() (*stateLock, error) {
				folder, err := proc.MakeFolder(home, 0o700)
				if err != nil {
					t.Fatal(err)
				}
				return lockState(home, folder, runtime, nil)
			}
			first, err := take()
			if err != nil {
				t.Fatal(err)
			}
			if err := remove(home); err != nil {
				t.Fatal(err)
			}
			if _, err := take(); !errors.As(err, new(*proc.LockedError)) {
				t.Errorf("a second one got in: %v", err)
			}
			if _, err := first.restore(); err != nil {
				t.Errorf("the first one: %v", err)
			}
			if err := os.Remove(first.path.Path()); err != nil {
				t.Error(err)
			}
			if _, err := take(); !errors.As(err, new(*proc.LockedError)) {
				t.Errorf("a second one got in after that: %v", err)
			}
			if made, err := first.restore(); made || err != nil {
				t.Errorf("something was missing: %v, %v", made, err)
			}
			if err := first.unlock(); err != nil {
				t.Error(err)
			}
			if last, err := take(); err != nil {
				t.Errorf("the way is free: %v", err)
			} else if err := last.unlock(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A directory that another user has put in the place of ours is not used, and is taken again when it has gone.
//
// shows: FAULT-G6 FAULT-J5
func TestAStateDirectoryOfAnotherUserIsNotUsedWhileTheJobRuns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can make files of another user")
	}
	slow(t)
	p := begin(t, sleepers)
	p.ready(t)
	home := p.ground.home
	theirs := home + ".theirs"
	if err := errors.Join(os.Mkdir(theirs, 0o755), os.Chown(theirs, 65534, 65534), unix.Renameat2(unix.AT_FDCWD, theirs, unix.AT_FDCWD, home, unix.RENAME_EXCHANGE)); err != nil {
		t.Fatal(err)
	}
	p.until(t, "it is trouble", func() bool { trouble, _ := p.ground.folder.look(); return trouble })
	p.until(t, "it is the journal's trouble", func() bool {
		text, is := p.ground.journal.Trouble()
		return is && strings.Contains(text, "belongs to user 65534")
	})
	if left, err := os.ReadDir(home); len(left) > 0 || err != nil {
		t.Errorf("their directory has %v, %v", left, err)
	}
	if err := os.RemoveAll(home); err != nil {
		t.Fatal(err)
	}
	p.until(t, "it is over", func() bool {
		trouble, restored := p.ground.folder.look()
		_, is := p.ground.journal.Trouble()
		return !trouble && !is && restored > 0 && p.ground.journal.Restored() == 1
	})
	for _, text := range []string{"the state directory cannot be used", "WRN the journal is not what it was"} {
		if n := strings.Count(p.said.String(), text); n != 1 {
			t.Errorf("%q was said %d times", text, n)
		}
	}
}
