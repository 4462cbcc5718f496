package controller

import (
	"log/slog"
	"os"
	"sync"

	"vigil/internal/proc"
)

// stateFolder keeps the state directory while a job runs: what somebody removes from it is made again, so that the next
// controller finds the job where this one has left it. The journal makes its own file again.
type stateFolder struct {
	lock *stateLock
	log  *slog.Logger

	mu       sync.Mutex
	below    []string // folders of the run
	trouble  string   // why the directory cannot be used now, as it was said last; empty: it can
	restored int      // how often something was made again
}

// regain makes again what has been removed: the directory, its locks, the folders of the run. A directory that is not
// ours, or that another controller has, is not used: that is said once, and tried again.
func (f *stateFolder) regain() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	made, err := f.lock.restore()
	for _, path := range f.below {
		if err != nil {
			break
		}
		made = made || proc.Gone(path)
		var folder *os.File
		if folder, err = proc.MakeFolder(path, 0o700); err == nil {
			_ = folder.Close()
		}
	}
	if made {
		f.restored++
		f.log.Warn("files were removed from the state directory while the job runs: making them again", "dir", f.lock.home)
	}
	switch {
	case err == nil && f.trouble != "":
		f.log.Info("the state directory can be used again", "dir", f.lock.home)
		f.trouble = ""
	case err != nil && err.Error() != f.trouble:
		f.log.Error("the state directory cannot be used: the next controller may not find this job", "dir", f.lock.home, "error", err)
		f.trouble = err.Error()
	}
	return err
}

// keep has folders of the run made again too.
func (f *stateFolder) keep(paths ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.below = append(f.below, paths...)
}

// look says whether the directory cannot be used now, and how often something in it was made again.
func (f *stateFolder) look() (trouble bool, restored int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trouble != "", f.restored
}
