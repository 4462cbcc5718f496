package identity

import (
	"errors"
	"time"

	"vigil/internal/proc"
)

const (
	// LockPatience bounds the wait for a lock whose holder is dead: a controller that is killed while it forks
	// leaves a child that has the lock until it executes its program.
	LockPatience = 5 * time.Second
	lockEvery    = 20 * time.Millisecond
	// choosePatience bounds the wait for others who choose a state directory.
	choosePatience = time.Minute
)

// Patiently takes a lock, and waits for one whose holder is dead. One that a living process has is refused at once, with
// a *proc.LockedError.
func Patiently(take func() (*proc.FileLock, error)) (*proc.FileLock, error) {
	return retry(LockPatience, take, func(held *proc.LockedError) bool { return !lives(held.PID) })
}

// lock takes the lock of a state directory, whose file must be ours.
func lock(path string) (*proc.FileLock, error) {
	return Patiently(func() (*proc.FileLock, error) {
		l, err := proc.Lock(path)
		if err != nil {
			return nil, err
		}
		if err := l.Check(); err != nil {
			return nil, errors.Join(err, l.Unlock())
		}
		return l, nil
	})
}

// waitFor takes a lock that others have for a moment only.
func waitFor(path string) (*proc.FileLock, error) {
	return retry(choosePatience, func() (*proc.FileLock, error) { return proc.Lock(path) }, func(*proc.LockedError) bool { return true })
}

// retry takes a lock, and tries again for so long while a holder is one to wait for.
func retry(patience time.Duration, take func() (*proc.FileLock, error), wait func(*proc.LockedError) bool) (*proc.FileLock, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	again := time.NewTicker(lockEvery)
	defer again.Stop()
	for {
		lock, err := take()
		held := new(proc.LockedError)
		if !errors.As(err, &held) || !wait(held) {
			return lock, err
		}
		select {
		case <-again.C:
		case <-late.C:
			return nil, err
		}
	}
}

func lives(pid int) bool {
	who, err := proc.Identify(pid)
	return err == nil && who.Alive()
}
