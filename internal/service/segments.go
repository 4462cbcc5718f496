package service

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"vigil/internal/job"
	"vigil/internal/proc"
)

// longestOver is how much longer than its size a part of a log may grow to end with a whole line, in bytes.
const longestOver = 64 << 10

// segmented is a log of which the beginning and the newest are kept, in files as proc.Segments says. A file is put aside
// at the end of a line, where there is one; its content is never moved or cut. The newest lies at the log's own path.
// What was left out between the beginning and the oldest of the others is said by the last line of the beginning.
type segmented struct {
	path        string
	first, part int64 // bytes of the beginning, and of each of the others
	keep        int   // how many of the others are kept, beside the newest
	max         int64 // that the role asks for, for the line

	file    *os.File
	size    int64 // of file
	begun   bool  // the beginning has been put aside
	numbers []int // of the others that were put aside, ascending
	last    int   // the highest number
	gap     int64 // bytes left out
	whole   bool  // the last line has ended
}

func newSegmented(path string, logs job.Logs) *segmented {
	keep := max(logs.Keep, 1)
	s := &segmented{path: path, first: logs.First, part: max(logs.MaxSize/int64(keep), 1), keep: keep, max: logs.MaxSize, whole: true}
	if s.first == 0 {
		s.begun = true
	}
	return s
}

// Write writes p, in parts where a file is full. What it has not written it can be given again.
func (s *segmented) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if err := s.open(); err != nil {
			return n, err
		}
		if s.mustTurn(p[n:]) {
			if err := s.turn(); err != nil {
				return n, err
			}
			continue
		}
		part := p[n : n+s.cut(p[n:])]
		wrote, err := s.file.Write(part)
		n, s.size = n+wrote, s.size+int64(wrote)
		if wrote > 0 {
			s.whole = part[wrote-1] == '\n'
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// open opens the newest file where it is not open.
func (s *segmented) open() error {
	if s.file != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(s.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	if s.size = st.Size(); !s.begun {
		_, err := os.Lstat(proc.FirstSegment(s.path))
		s.begun = err == nil
	}
	if s.numbers == nil {
		s.numbers = proc.Numbered(s.path)
		for _, n := range s.numbers {
			s.last = max(s.last, n)
		}
	}
	s.file = f
	return nil
}

// limit is how large the newest file may be.
func (s *segmented) limit() int64 {
	if !s.begun {
		return s.first
	}
	return s.part
}

// turn puts the newest file aside and forgets the oldest that is too many.
func (s *segmented) turn() error {
	to := proc.FirstSegment(s.path)
	if s.begun {
		to = proc.NumberedSegment(s.path, s.last+1)
	}
	if err := os.Rename(s.path, to); err != nil && !errors.Is(err, fs.ErrNotExist) { // somebody may have removed it
		return err
	}
	s.file.Close()
	s.file, s.size = nil, 0
	if !s.begun {
		s.begun = true
		return nil
	}
	s.last++
	s.numbers = append(s.numbers, s.last)
	for len(s.numbers) > s.keep {
		oldest := proc.NumberedSegment(s.path, s.numbers[0])
		if st, err := os.Lstat(oldest); err == nil {
			s.gap += st.Size()
		}
		if err := os.Remove(oldest); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil //nolint:nilerr // it is tried again at the next turn
		}
		s.numbers = s.numbers[1:]
		s.sayGap()
	}
	return nil
}

// sayGap writes at the end of the beginning how much was left out after it, over what it said before. A log without a
// beginning says it nowhere.
func (s *segmented) sayGap() {
	f, err := os.OpenFile(proc.FirstSegment(s.path), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return
	}
	line := gapLine(s.gap, s.max)
	if old := st.Size() - int64(len(line)); s.gapSaid(f, old, len(line)) {
		_, _ = f.WriteAt(line, old)
		return
	}
	_, _ = f.WriteAt(append([]byte("\n"), line...), st.Size())
}

// gapLine says how much was left out. Its length is always the same, so that it can be written over.
func gapLine(gap, most int64) []byte {
	return fmt.Appendf(nil, "%-120s\n", fmt.Sprintf("[vigil: %d bytes of output are left out here; logs.max_size keeps the newest %d]", gap, most))
}

func (s *segmented) gapSaid(f *os.File, at int64, length int) bool {
	if at < 0 {
		return false
	}
	was := make([]byte, length)
	if _, err := f.ReadAt(was, at); err != nil {
		return false
	}
	return bytes.HasPrefix(was, []byte("[vigil: ")) && bytes.Contains(was, []byte(" bytes of output are left out here; "))
}

// mustTurn says whether what comes next belongs into a new file.
func (s *segmented) mustTurn(next []byte) bool {
	if s.size == 0 {
		return false
	}
	if !s.whole {
		return s.size >= s.limit()+longestOver
	}
	line := bytes.IndexByte(next, '\n') + 1
	if line == 0 {
		line = len(next)
	}
	return s.size+int64(line) > s.limit()
}

// cut returns how much of next goes into the current file: whole lines, as long as they are not too long.
func (s *segmented) cut(next []byte) int {
	room := max(0, s.limit()-s.size)
	if int64(len(next)) <= room {
		return len(next)
	}
	if i := bytes.LastIndexByte(next[:room], '\n'); i >= 0 {
		return i + 1
	}
	over := next[:min(int64(len(next)), max(s.limit()+longestOver-s.size, 1))]
	if i := bytes.IndexByte(over, '\n'); i >= 0 {
		return i + 1
	}
	return len(over)
}

func (s *segmented) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
