package service

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"vigil/internal/job"
	"vigil/internal/proc"
)

// own is the folder of what a worker life makes itself in the runtime directory: its inbox, and where
// that is another user's its error file. It belongs to the worker's user.
func (w *worker) own() string { return filepath.Dir(w.inbox) }

// openRuntime opens the runtime directory, for the workers' user too.
func (s *Service) openRuntime() (err error) {
	if s.runtime, err = proc.OpenDir(s.opts.RuntimeDir); err != nil {
		return err
	}
	s.dir = s.runtime.Path()
	return s.openUser()
}

// openUser finds out whom the role's workers run as.
func (s *Service) openUser() error {
	if s.opts.Role.User == "" {
		return nil
	}
	u, err := job.LookupUser(s.opts.Role.User)
	if err != nil {
		return err
	}
	s.user = &u
	return s.runtime.LetThrough()
}

// credential is what a worker is started with; nil: as we are.
func (s *Service) credential() *syscall.Credential {
	if s.user == nil {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(s.user.UID), Gid: uint32(s.user.GID)}
	for _, g := range s.user.Groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// workerUID is the user of workers when they start.
func (s *Service) workerUID() int {
	if s.user == nil {
		return os.Geteuid()
	}
	return s.user.UID
}

// openOwn makes the folder of a life.
func (s *Service) openOwn(w *worker) error {
	if err := os.Mkdir(w.own(), 0o700); err != nil {
		return fmt.Errorf("make folder of the life: %w", err)
	}
	return s.giveTo(s.userOf(w), w)
}

// restoreOwn makes the folder of a life again where it has been removed.
func (s *Service) restoreOwn(w *worker) error {
	if !proc.Gone(w.own()) {
		return nil
	}
	return s.openOwn(w)
}

// giveTo gives the files of a life to the user that its worker runs as, and to nobody else: folder, notify socket, and
// the pipes of its output, which a program may open by /dev/stdout.
func (s *Service) giveTo(uid int, w *worker) error {
	if uid == os.Geteuid() {
		return nil
	}
	errs := []error{os.Lchown(w.own(), uid, -1), w.notify.GiveTo(uid), os.Lchown(s.peersFile, uid, -1)}
	if w.output != nil {
		for _, f := range w.output.childEnds {
			errs = append(errs, f.Chown(uid, -1))
		}
	}
	s.writingPeers.Lock()
	s.footing.reader = uid
	s.writingPeers.Unlock()
	return errors.Join(errs...)
}

// mostError is how much of an error file is kept, in bytes.
const mostError = 1 << 20

// errorFile is where a worker writes its error file: that of another user, who cannot reach the logs, in its own folder.
func (s *Service) errorFile(w *worker) string {
	if s.user == nil {
		return w.files.torchError
	}
	return filepath.Join(w.own(), "error.json")
}

// keepError takes an error file that the worker has written to its logs.
func (s *Service) keepError(w *worker) {
	from := s.errorFile(w)
	if from == w.files.torchError {
		return
	}
	f, err := proc.OpenRegular(from)
	if err != nil {
		return // there is none
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return
	}
	if kept, err := os.Lstat(w.files.torchError); err == nil && kept.ModTime().Equal(info.ModTime()) {
		return
	}
	text, err := io.ReadAll(io.LimitReader(f, mostError))
	if err == nil {
		err = proc.Replace(w.files.torchError, text, 0o640)
	}
	if err == nil { // when it was written says who was first
		err = os.Chtimes(w.files.torchError, info.ModTime(), info.ModTime())
	}
	if err != nil {
		s.log.Warn("the worker's error file is not kept", "rank", w.life.Rank, "err", err)
	}
}
