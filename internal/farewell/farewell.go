// Package farewell is the note that a service leaves when it ends its workers in order without being told to by its
// controller: because it has been without one for longer than its grace, or by a signal. The next controller reads it,
// so that an orderly end is not taken for the loss of a service.
//
// A note is one small JSON file in the folder of the run, replaced atomically. It is written twice: before the workers
// are asked to end, and when nothing of them is left. Only the second says that the end was orderly.
package farewell

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vigil/internal/role"
)

// Note is what a service leaves.
type Note struct {
	Role        role.Name `json:"role"`
	Index       int       `json:"index"`            // of the service within its role
	Services    int       `json:"services"`         // that the role has
	Incarnation int       `json:"incarnation"`      // of the workers that were ended
	PID         int       `json:"pid"`              // of the service
	Start       uint64    `json:"start"`            // of it, in clock ticks since boot
	Why         string    `json:"why"`              // they were ended, as words that follow "because"
	Step        int64     `json:"step"`             // the role's on this service
	Unsaid      bool      `json:"unsaid,omitempty"` // no worker has said a step, nor was one set: Step is the one given
	At          time.Time `json:"at"`
	Ended       bool      `json:"ended"` // nothing of the workers is left; false: they are being ended
	Workers     []Worker  `json:"workers"`
}

// Worker is how a worker life was found when the end began.
type Worker struct {
	Life     role.Life     `json:"life"`
	Finished bool          `json:"finished,omitempty"` // it had ended well by itself
	Saved    *int64        `json:"saved,omitempty"`    // the newest step that it has said to have saved
	Failure  *role.Failure `json:"failure,omitempty"`  // it had failed, and perhaps nobody was there to hear of it
}

// folder is where the notes of a run lie: beside the folder of its logs.
func folder(logDir string) string {
	return filepath.Join(filepath.Dir(filepath.Clean(logDir)), "farewell")
}

// Path is the file of one service's note.
func Path(logDir string, name role.Name, index int) string {
	return filepath.Join(folder(logDir), fmt.Sprintf("%s.%d.json", name, index))
}

// Write replaces the note of the service that it names.
func Write(logDir string, n Note) error {
	src, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("leave a farewell: %w", err)
	}
	path := Path(logDir, n.Role, n.Index)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("leave a farewell: %w", err)
	}
	_ = os.Remove(path + ".new")
	if err := writeSynced(path+".new", src); err != nil {
		return fmt.Errorf("leave a farewell: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("leave a farewell: %w", err)
	}
	return nil
}

// writeSynced is os.WriteFile, and what is written outlives the machine's next crash.
func writeSynced(path string, src []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(src)
	return errors.Join(err, f.Sync(), f.Close())
}

// Read returns the notes of a run. One that cannot be read is left out; the error says which.
func Read(logDir string) ([]Note, error) {
	files, err := os.ReadDir(folder(logDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var notes []Note
	errs := []error{err}
	for _, f := range files {
		if !f.Type().IsRegular() || !strings.HasSuffix(f.Name(), ".json") {
			continue
		}
		path := filepath.Join(folder(logDir), f.Name())
		src, err := os.ReadFile(path)
		var n Note
		if err == nil {
			err = json.Unmarshal(src, &n)
		}
		if err == nil && path != Path(logDir, n.Role, n.Index) {
			err = fmt.Errorf("it is of %s/%d", n.Role, n.Index)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read farewell %s: %w", path, err))
			continue
		}
		notes = append(notes, n)
	}
	return notes, errors.Join(errs...)
}

// Remove removes the note of a service, if there is one.
func Remove(logDir string, name role.Name, index int) error {
	err := os.Remove(Path(logDir, name, index))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove farewell: %w", err)
	}
	return nil
}
