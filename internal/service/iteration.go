package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/wire/rpc"
)

const (
	// iterationEvery is how often the file with the newest checkpoint's step is looked at.
	iterationEvery = time.Second
	// iterationBytes is more than such a file can hold, in bytes.
	iterationBytes = 4 << 10
)

// iterationShape is what such a file holds: a number, as Megatron and verl write it, or a number after a
// name, as DeepSpeed does ("global_step100").
var iterationShape = regexp.MustCompile(`^\s*(?:[A-Za-z][A-Za-z_.-]*[_.-]?)?([0-9]{1,18})\s*$`)

// iterationFile is the file in which a program notes its newest checkpoint.
type iterationFile struct {
	path string
	seen stamp
}

// stamp tells one writing of a file from another.
type stamp struct {
	ino, size uint64
	changed   int64 // nanoseconds
}

// look returns the step of a checkpoint that was noted since the last look. ok is false where nothing
// was; the error says that what was noted is no step, once.
func (f *iterationFile) look() (step int64, ok bool, err error) {
	now, err := stampOf(f.path)
	if err != nil || now == f.seen {
		return 0, false, err
	}
	f.seen = now
	if now == (stamp{}) {
		return 0, false, nil
	}
	if step, err = readIteration(f.path); err != nil {
		return 0, false, err
	}
	return step, true, nil
}

// stampOf looks at a file from outside. One that is not there has the stamp zero.
func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return stamp{}, nil
	case err != nil:
		return stamp{}, fmt.Errorf("look at %s: %w", path, err)
	}
	return stamp{ino: st.Ino, size: uint64(st.Size), changed: st.Mtim.Nano()}, nil
}

// readIteration reads a step. It never waits, and never reads much.
func readIteration(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("read step: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return 0, fmt.Errorf("read step: %w", err)
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("read step from %s: it is not a regular file", path)
	case info.Size() > iterationBytes:
		return 0, fmt.Errorf("read step from %s: it has %d bytes", path, info.Size())
	}
	text, err := io.ReadAll(io.LimitReader(f, iterationBytes))
	if err != nil {
		return 0, fmt.Errorf("read step: %w", err)
	}
	number := iterationShape.FindSubmatch(text)
	if number == nil {
		return 0, fmt.Errorf("read step from %s: %.40q is no step", path, text)
	}
	return strconv.ParseInt(string(number[1]), 10, 64)
}

// iterationFile returns the role's, as it is before a life; nil where steps do not come from one. What
// it holds already is not that life's work.
func (s *Service) iterationFile() *iterationFile {
	progress := s.opts.Role.Progress
	if progress.Source != job.FromFile {
		return nil
	}
	path := progress.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.opts.Role.Workdir, path)
	}
	file := &iterationFile{path: path}
	file.seen, _ = stampOf(path)
	return file
}

// followIteration looks at the file while the life runs. It is the role's: one worker speaks for it.
func (s *Service) followIteration(file *iterationFile, w *worker) {
	if file == nil {
		return
	}
	go s.lookAtIteration(w.probing, file, w)
}

// lookAtIteration ends with ctx or the worker; nobody waits for it, since a network file system may
// keep it.
func (s *Service) lookAtIteration(ctx context.Context, file *iterationFile, w *worker) {
	tick := time.NewTicker(iterationEvery)
	defer tick.Stop()
	said := false
	for {
		step, ok, err := file.look()
		switch {
		case ok:
			s.takeIteration(w, step)
		case err != nil && !said:
			said = true
			s.tellNotice(w, &api.Notice{Unreadable: true, Text: "the file with the newest checkpoint's step cannot be understood, said once in this life: " + err.Error()})
		}
		select {
		case <-tick.C:
		case <-w.ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// takeIteration takes a checkpoint that a worker has noted in a file: the step is guessed, the checkpoint is there.
func (s *Service) takeIteration(w *worker, step int64) {
	s.change(func(out *words) {
		if !s.listensTo(w) {
			return
		}
		s.guess(w, step, out)
		out.other = append(out.other, &api.FromService{Word: &api.FromService_Checkpoint{
			Checkpoint: &api.Checkpoint{Life: rpc.WireLife(w.life), Step: step}}})
	})
}
