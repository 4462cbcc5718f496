package proc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// shmNote is the file that tells whoever clears after a program which shared memory it knew as ours.
type shmNote struct {
	Boot  string    `json:"boot"` // of the machine: none of its shared memory outlives that
	Files []shmFile `json:"files"`
}

// ShmNote is where a service notes what shared memory is its workers', and where whoever clears after
// it finds that: beside the folder of the logs, in shm/ROLE.INDEX.json.
func ShmNote(logDir, role string, index int) string {
	return filepath.Join(filepath.Dir(filepath.Clean(logDir)), "shm", fmt.Sprintf("%s.%d.json", role, index))
}

// readShmNote returns what the note says of this boot; nothing if there is none or it cannot be read.
func readShmNote(path string) []shmFile {
	if path == "" {
		return nil
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var n shmNote
	if json.Unmarshal(src, &n) != nil || n.Boot != bootID() {
		return nil
	}
	return n.Files
}

// writeShmNote replaces the note at once, or removes it when there is nothing to tell.
func writeShmNote(path string, files []shmFile) error {
	if path == "" {
		return nil
	}
	if len(files) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("note shared memory: %w", err)
		}
		return nil
	}
	src, err := json.Marshal(shmNote{Boot: bootID(), Files: files})
	if err != nil {
		return fmt.Errorf("note shared memory: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("note shared memory: %w", err)
	}
	if err := ReplaceBy(path, path+".new", src, 0o600); err != nil {
		return fmt.Errorf("note shared memory: %w", err)
	}
	return nil
}

func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(id))
}
