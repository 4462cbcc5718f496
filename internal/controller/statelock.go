package controller

import (
	"errors"
	"time"

	"vigil/internal/proc"
)

const (
	// lockPatience bounds the wait for a lock whose holder is dead: a controller that is killed while it forks
	// leaves a child that has the lock until it executes its program.
	lockPatience = 5 * time.Second
	lockEvery    = 20 * time.Millisecond
)

// lockState takes the lock of a state directory. One that a living process has is refused at once, with a
// *proc.LockedError.
func lockState(path string) (*proc.FileLock, error) {
	late := time.NewTimer(lockPatience)
	defer late.Stop()
	again := time.NewTicker(lockEvery)
	defer again.Stop()
	for {
		lock, err := lockOurs(path)
		held := new(proc.LockedError)
		if !errors.As(err, &held) || lives(held.PID) {
			return lock, err
		}
		select {
		case <-again.C:
		case <-late.C:
			return nil, err
		}
	}
}

// lockFile is the lock's name in the state directory.
const lockFile = "controller.lock"

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

func lives(pid int) bool {
	who, err := proc.Identify(pid)
	return err == nil && who.Alive()
}
