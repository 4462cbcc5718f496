package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"vigil/internal/identity"
	"vigil/internal/proc"
)

// openDirs makes the state and runtime directories. A state directory has one controller.
func (g *ground) openDirs(o *Options, log *slog.Logger, end *endings) error {
	home := o.StateDir
	if home == "" {
		all, err := StateHome()
		if err != nil {
			return err
		}
		home = filepath.Join(all, o.Job.Name)
	}
	home, err := filepath.Abs(home)
	if err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	folder, err := proc.MakeFolder(home, 0o700)
	if err != nil {
		return fmt.Errorf("make the state directory %s: %w; --state-dir names another", home, err)
	}
	g.home = home
	if g.runtime, err = proc.OpenDir(o.RuntimeDir); err != nil {
		return &unusableError{errors.Join(err, folder.Close())}
	}
	lock, err := lockState(home, folder, g.runtime, o.StateLock)
	if held := new(proc.LockedError); errors.As(err, &held) && held.PID > 0 {
		return fmt.Errorf("the state directory %s has a controller already (pid %d, since %s)", home, held.PID, identity.Since(held.Path))
	} else if errors.As(err, &held) {
		return fmt.Errorf("the state directory %s has a controller already (%s)", home, held)
	} else if err != nil {
		return fmt.Errorf("use the state directory %s: %w; --state-dir names another", home, err)
	}
	g.folder = &stateFolder{lock: lock, log: log}
	end.add("state lock", func(context.Context) error { return lock.unlock() })
	if err := g.findSurvivors(home, o.Job.Name); err != nil {
		return err
	}
	if err := g.openJournal(o, home, log); err != nil {
		if g.journal != nil {
			err = errors.Join(err, g.journal.Close())
		}
		return err
	}
	end.add("journal", func(context.Context) error { return g.close() })
	g.state = filepath.Join(home, g.uid)
	g.logs = filepath.Join(g.state, "logs")
	placeExample(o.Job, g.state)
	g.incidents = filepath.Join(g.state, "incidents")
	for _, dir := range []string{g.logs, g.incidents} {
		f, err := proc.MakeFolder(dir, 0o700)
		if err != nil {
			return fmt.Errorf("make the run's directory: %w; --state-dir names another place", err)
		}
		f.Close()
	}
	g.folder.keep(g.logs, g.incidents)
	_, err = g.runtime.Sweep()
	return err
}

// ifOpen marks a disk that fails, where the state directory has a run that may be open.
func (g *ground) ifOpen(err error) error {
	if errors.As(err, new(*unusableError)) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	if _, unknown := os.Stat(filepath.Join(g.home, journalFile)); !DiskFails(err) || g.home == "" || unknown != nil {
		return err
	}
	if g.resumed {
		return g.notNow(err)
	}
	return &StaysOpenError{UID: "of this job, if it is open,", Err: err, Again: g.again}
}

// DiskFails says whether an error is one of the disk, and not of what was given.
func DiskFails(err error) bool {
	return slices.ContainsFunc([]error{unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.EIO, unix.ESTALE}, func(e error) bool { return errors.Is(err, e) })
}

// unusableError says that the runtime directory cannot be used. Only room on its disk can come by waiting.
type unusableError struct{ error }

// Unwrap returns what is wrong with it.
func (e *unusableError) Unwrap() error { return e.error }
