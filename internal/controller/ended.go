package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"vigil/internal/journal"
	"vigil/internal/proc"
)

// EndedError says that a run has ended, and that the controller that had recorded that was killed before it could exit:
// whoever had started it has not been told.
type EndedError struct {
	UID  string
	Exit int
	Why  string
	path string
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("the run %s has ended with %d (%s), and its controller was killed before it could say so; the same command begins a new run next time, and --resume goes on with this one", e.UID, e.Exit, e.Why)
}

// Told notes that the exit is given now.
func (e *EndedError) Told() { _ = os.Remove(e.path) }

// untoldFile is there from before a run is closed until its controller exits.
const untoldFile = "untold.json"

// untold is a run whose exit nobody has been told, and who was to be: the process that has started its controller.
type untold struct {
	UID    string     `json:"uid"`
	Parent proc.Ident `json:"parent"`
}

// starter is who has started this process. The first process of a machine or container is always the same.
func starter() proc.Ident {
	who, err := proc.Identify(os.Getppid())
	if err != nil || who.PID <= 1 {
		return proc.Ident{PID: os.Getppid()}
	}
	return who
}

// willTell notes that the run's exit is to be told.
func willTell(home, uid string) error {
	text, err := json.Marshal(untold{uid, starter()})
	if err != nil {
		return err
	}
	return proc.Replace(filepath.Join(home, untoldFile), text, 0o600)
}

// notTold returns the end of the last run if its controller was killed before it could exit, and whoever had started
// that has started this one: a supervisor, that would take a new run for what it asked for. A person with another shell
// gets a new run.
func notTold(home string, last journal.Run, host, boot string) error {
	path := filepath.Join(home, untoldFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var was untold
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil || last.Closed == nil || was.UID != last.UID || was.Parent != starter() || last.Host != host || last.BootID != boot {
		return nil //nolint:nilerr // nobody can say who was to be told
	}
	return &EndedError{UID: last.UID, Exit: last.Closed.Exit, Why: last.Closed.Why, path: path}
}

// Told notes that whoever has started this controller is told now how the run has ended.
func (c *Controller) Told() { _ = os.Remove(filepath.Join(c.ground.home, untoldFile)) }
