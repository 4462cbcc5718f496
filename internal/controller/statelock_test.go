package controller

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// A controller that is killed while it forks leaves its lock with the child for a moment.
func TestTheLockOfADeadControllerIsWaitedForAndThatOfALivingOneIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "controller.lock")
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
	lock, err := lockState(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := false // that it can be at once counts, in one of many times: the machine may be busy
	for began := time.Now(); !refused && time.Since(began) < patience; {
		asked := time.Now()
		if _, err := lockState(path); !errors.As(err, new(*proc.LockedError)) {
			t.Fatalf("a lock of ours is taken twice: %v", err)
		}
		refused = time.Since(asked) < lockPatience
	}
	if !refused {
		t.Error("a living holder was waited for")
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
}
