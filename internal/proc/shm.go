package proc

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// shmDir is where POSIX shared memory lies: shm_open("/NAME") makes the file NAME in it, and a named
// semaphore is sem.NAME (shm_overview(7), sem_overview(7)).
const shmDir = "/dev/shm"

// looksInVain is how often a new file that none of ours has mapped is looked at before it counts as a
// stranger's. Whoever makes shared memory maps it within microseconds.
const looksInVain = 3

// Shm follows the shared-memory files that a service's workers make in /dev/shm, and removes those that
// they left behind: who is killed removes nothing, and the memory would stay taken until the next boot.
//
// A file is ours if it lies in /dev/shm itself, was not there when the life began, belongs to our user,
// and a process of the life was seen with a shared writable mapping of it. Reading or writing a file
// there as any other, as for a checkpoint or a data set, does not make it ours, and neither does a file
// in a folder below. It is removed only after the life's end, while it is still the same file, and when
// no living process whose files /proc shows us has it mapped or open.
//
// What cannot be known: a file that was made between two looks by a process that died before the
// second, and shared memory of System V (shmget(2)), which is no file.
type Shm struct {
	keeper *Keeper
	note   string

	mu      sync.Mutex
	before  map[uint64]bool // inodes that were there when the life began
	vain    map[uint64]int  // how often the others were looked at
	ours    []shmFile
	makers  map[shmFile]int // which of the processes, by pid, was seen first to have it mapped; 0: one before us
	settled time.Time       // modification time of the directory that needs no further look; zero: none
}

// shmFile is one file of shared memory. Its name may come again, its inode with it does not.
type shmFile struct {
	Name  string `json:"name"`
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
}

func (f shmFile) path() string { return filepath.Join(shmDir, f.Name) }

// same says whether that very file is there and is the user's.
func (f shmFile) same(uid uint32) bool {
	if f.Name == "" || f.Name == "." || f.Name == ".." || strings.Contains(f.Name, "/") {
		return false // such a note is not of our making
	}
	now, owner, ok := shmNamed(f.Name)
	return ok && now == f && owner == uid
}

// shmNamed returns the regular file of that name and its owner.
func shmNamed(name string) (f shmFile, owner uint32, ok bool) {
	var st unix.Stat_t
	err := unix.Lstat(filepath.Join(shmDir, name), &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return shmFile{}, 0, false
	}
	return shmFile{Name: name, Dev: st.Dev, Inode: st.Ino}, st.Uid, true
}

// FollowShm begins to follow. What is found is kept in the file note for ClearShm, should this program
// die; what a program before us has noted there is taken over. Without a note, that is missing only.
func (k *Keeper) FollowShm(note string) *Shm {
	s := &Shm{keeper: k, note: note, vain: map[uint64]int{}, ours: readShmNote(note), makers: map[shmFile]int{}}
	s.Begin()
	return s
}

// Begin says that a life begins: what is in /dev/shm now is none of its making. What is known as ours
// from earlier lives, because others use it still, stays so.
func (s *Shm) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = map[uint64]bool{}
	clear(s.vain)
	s.settled = time.Time{}
	for _, name := range shmNames() {
		if f, _, ok := shmNamed(name); ok {
			s.before[f.Inode] = true
		}
	}
}

// Glance is Look for every few seconds: it leaves alone what Glance has looked at in vain a few times,
// and costs one system call while nobody makes files.
func (s *Shm) Glance(procs []*Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unchanged() {
		return nil
	}
	return s.look(procs, looksInVain)
}

// Look notes which new files the processes and their trees have mapped now. It lists the directory, and
// reads the processes' mappings only if there are files that may be ours. The error is about the note,
// which is tried again when it changes.
func (s *Shm) Look(procs []*Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.look(procs, math.MaxInt)
}

func (s *Shm) look(procs []*Process, patience int) error {
	known := slices.Clone(s.ours)
	if unknown := s.unknown(patience); len(unknown) > 0 && len(procs) > 0 {
		s.find(procs, unknown)
	}
	if slices.Equal(s.ours, known) {
		return nil
	}
	return writeShmNote(s.note, s.ours)
}

// find moves those of the unknown files to ours that the processes have mapped.
func (s *Shm) find(procs []*Process, unknown map[inode]shmFile) {
	sight := s.keeper.look()
	buf := make([]byte, 64<<10)
	for _, p := range procs {
		for _, h := range sight.members(p.Tree()) {
			buf = eachMapping(h.PID, buf, func(m mapping) {
				if f, ok := unknown[m.id]; ok && m.sharedWritable() {
					s.ours = append(s.ours, f)
					s.makers[f] = p.PID()
					delete(unknown, m.id)
				}
			})
		}
	}
	for _, f := range unknown {
		s.vain[f.Inode]++
	}
}

// unchanged says whether nothing was made since a look that left no question. Modification times are
// as coarse as a tick of the kernel, so one that is young settles nothing.
func (s *Shm) unchanged() bool {
	var st unix.Stat_t
	if err := unix.Stat(shmDir, &st); err != nil {
		return true
	}
	changed := time.Unix(st.Mtim.Unix())
	if changed.Equal(s.settled) {
		return true
	}
	s.settled = time.Time{}
	if time.Since(changed) > 100*time.Millisecond {
		s.settled = changed // unless unknown finds what must be looked at again
	}
	return false
}

// unknown returns the files that may be ours, are not known to be and have been looked at less often
// than that in vain. It forgets what has gone.
func (s *Shm) unknown(patience int) map[inode]shmFile {
	found := map[inode]shmFile{}
	there := map[uint64]bool{}
	for _, name := range shmNames() {
		f, owner, ok := shmNamed(name)
		if !ok {
			continue
		}
		there[f.Inode] = true
		if owner != s.keeper.uid || s.before[f.Inode] || slices.Contains(s.ours, f) {
			continue
		}
		if s.vain[f.Inode] < patience {
			found[inode{f.Dev, f.Inode}] = f
		}
	}
	if len(found) > 0 {
		s.settled = time.Time{}
	}
	s.ours = slices.DeleteFunc(s.ours, func(f shmFile) bool { return !there[f.Inode] })
	maps.DeleteFunc(s.makers, func(f shmFile, _ int) bool { return !there[f.Inode] })
	maps.DeleteFunc(s.before, func(ino uint64, _ bool) bool { return !there[ino] })
	maps.DeleteFunc(s.vain, func(ino uint64, _ int) bool { return !there[ino] })
	return found
}

// Clear removes what the processes and their trees have left in /dev/shm; call it when their end is
// proved. It returns the paths that it removed. What living processes use stays, and so does what was
// made by others that Look was given and Clear was not: they may open it again.
func (s *Shm) Clear(ended []*Process) (removed []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ended {
		for f, maker := range s.makers {
			if maker == p.PID() {
				s.makers[f] = 0
			}
		}
	}
	mine, others := []shmFile(nil), []shmFile(nil)
	for _, f := range s.ours {
		if s.makers[f] == 0 {
			mine = append(mine, f)
		} else {
			others = append(others, f)
		}
	}
	if len(mine) == 0 {
		return nil, nil
	}
	known := len(s.ours)
	rest, removed, err := removeUnused(mine, s.keeper.uid)
	s.ours = slices.Concat(others, rest)
	if len(s.ours) != known {
		err = errors.Join(err, writeShmNote(s.note, s.ours))
	}
	return removed, err
}

// ClearShm does what Shm.Clear does for a program that has died, from its note. Call it when the end of
// everything that the program had started is proved. No note is no error.
func ClearShm(note string) (removed []string, err error) {
	files := readShmNote(note)
	if len(files) == 0 {
		return nil, nil
	}
	rest, removed, err := removeUnused(files, uint32(os.Geteuid()))
	if len(rest) != len(files) {
		err = errors.Join(err, writeShmNote(note, rest))
	}
	return removed, err
}

// removeUnused removes those files that are there and that nobody uses. It returns those that stay.
func removeUnused(files []shmFile, uid uint32) (rest []shmFile, removed []string, err error) {
	files = slices.DeleteFunc(slices.Clone(files), func(f shmFile) bool { return !f.same(uid) })
	if len(files) == 0 {
		return nil, nil, nil
	}
	used := inUse(files)
	var errs []error
	for _, f := range files {
		if used[f] || !f.same(uid) {
			rest = append(rest, f)
			continue
		}
		if err := os.Remove(f.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove shared memory: %w", err))
			rest = append(rest, f)
			continue
		}
		removed = append(removed, f.path())
	}
	return rest, removed, errors.Join(errs...)
}

// shmNames lists /dev/shm, sorted; where there is none, nothing.
func shmNames() []string {
	dir, err := os.Open(shmDir)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	slices.SortFunc(names, cmp.Compare[string])
	return names
}
