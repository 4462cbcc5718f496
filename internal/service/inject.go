package service

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"vigil/internal/job"
	"vigil/internal/proc"
)

// optimizerHook is a sitecustomize module: Python imports it at its start, from the first folder of its
// path that has one (https://docs.python.org/3/library/site.html).
//
//go:embed inject/sitecustomize.py
var optimizerHook []byte

// switchOff is the variable that keeps the hook out of a role's workers when it is 0.
const switchOff = "VIGIL_INJECT"

// injectedPath returns the PYTHONPATH of a worker: pythonPath, which may be empty, with the folder of
// the optimizer hook before it. Without a folder, or where env switches the hook off, it is pythonPath.
func injectedPath(folder string, env map[string]string) string {
	pythonPath := env["PYTHONPATH"]
	switch {
	case folder == "" || env[switchOff] == "0":
		return pythonPath
	case pythonPath == "":
		return folder
	}
	return folder + string(os.PathListSeparator) + pythonPath
}

// withoutHook returns a worker's PYTHONPATH without the folder of the optimizer hook.
func withoutHook(folder, pythonPath string) string {
	if folder == "" || pythonPath == folder {
		return strings.TrimPrefix(pythonPath, folder)
	}
	return strings.TrimPrefix(pythonPath, folder+string(os.PathListSeparator))
}

// injects says whether the workers of a role get the optimizer hook.
func injects(r *job.Role) bool { return r.Progress.Source == job.FromHook }

// openHook writes the hook where workers can read it: below the logs, or for another user in the runtime directory.
func (s *Service) openHook() (string, error) {
	if s.user == nil {
		return writeHook(&s.opts.Role, s.opts.LogDir)
	}
	if !injects(&s.opts.Role) {
		return "", nil
	}
	above := proc.OwnFolder(s.footing.socket)
	folder, err := writeHook(&s.opts.Role, above)
	if err != nil {
		return "", err
	}
	for _, path := range []string{above, folder} {
		err = errors.Join(err, os.Chmod(path, 0o711))
	}
	return folder, errors.Join(err, os.Chmod(filepath.Join(folder, "sitecustomize.py"), 0o644))
}

// writeHook puts the optimizer hook into a folder below the logs, where all services of the job find the
// same file, and returns the folder. Empty, without an error, for a role that does not have it. A path
// with a colon cannot stand in PYTHONPATH.
func writeHook(r *job.Role, logs string) (string, error) {
	if !injects(r) {
		return "", nil
	}
	folder, err := filepath.Abs(filepath.Join(logs, ".inject"))
	if err != nil {
		return "", fmt.Errorf("write optimizer hook: %w", err)
	}
	if strings.ContainsRune(folder, os.PathListSeparator) {
		return "", fmt.Errorf("write optimizer hook: %s has a %c and cannot stand in PYTHONPATH", folder, os.PathListSeparator)
	}
	path := filepath.Join(folder, "sitecustomize.py")
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, optimizerHook) {
		return folder, nil
	}
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return "", fmt.Errorf("write optimizer hook: %w", err)
	}
	if err := proc.Replace(path, optimizerHook, 0o640); err != nil {
		return "", fmt.Errorf("write optimizer hook: %w", err)
	}
	return folder, nil
}
