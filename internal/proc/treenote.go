package proc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// treeNoteSuffix ends the name of a tree note in the runtime directory.
const treeNoteSuffix = ".tree"

// mostNoted is how many processes a tree note can have.
const mostNoted = 4096

// TreeNote is the file in which a service writes down which processes are its workers' and of their trees, for whoever
// clears after it. Service and controller may be killed together; without cgroups a process that has written over its
// environment, as setproctitle(3) does, then shows no sign of ours any more.
type TreeNote struct {
	keeper *Keeper
	path   string

	mu    sync.Mutex
	noted []notedProcess
}

// notedProcess is one process that was seen.
type notedProcess struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"` // in clock ticks since boot
	Session int    `json:"session"`
}

func (n notedProcess) ident() Ident { return Ident{PID: n.PID, StartTime: n.Start} }

// noteFile is the file's content. Pids mean something in their boot and pid namespace only.
type noteFile struct {
	Boot      string         `json:"boot"`
	Namespace string         `json:"namespace"`
	Processes []notedProcess `json:"processes"`
}

// TreeNote is the path of the tree note of a service; seat is its SeatOf.
func (d Dir) TreeNote(seat string) string { return filepath.Join(d.path, seat+treeNoteSuffix) }

// TreeNotes returns the paths of the tree notes of a job's services that there are.
func (d Dir) TreeNotes(job string) []string {
	files, err := os.ReadDir(d.path)
	if err != nil {
		return nil
	}
	var paths []string
	for _, f := range files {
		if strings.HasPrefix(f.Name(), job+"-") && strings.HasSuffix(f.Name(), treeNoteSuffix) {
			paths = append(paths, filepath.Join(d.path, f.Name()))
		}
	}
	return paths
}

// NoteTree begins a tree note at the path. What a service before has noted there, and lives, stays in it.
func (k *Keeper) NoteTree(path string) *TreeNote {
	return &TreeNote{keeper: k, path: path, noted: readNote(path)}
}

// Look writes down which of the processes live, and everything of their trees, as it is now: what is below them, in
// their sessions, or noted already. Nothing alive: the note is removed. It reads all of /proc. The error says that
// the note could not be written.
func (n *TreeNote) Look(procs []*Process) error {
	s := n.keeper.look()
	n.mu.Lock()
	defer n.mu.Unlock()
	now := s.kin(procs, n.noted)
	if slices.Equal(now, n.noted) && Gone(n.path) == (len(now) == 0) {
		return nil
	}
	n.noted = now
	return n.write()
}

// Empty says that nothing is noted.
func (n *TreeNote) Empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.noted) == 0
}

// Add writes down a process that has just been started.
func (n *TreeNote) Add(p *Process) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noted = append(n.noted, notedProcess{PID: p.id.PID, Start: p.id.StartTime, Session: p.id.PID})
	slices.SortFunc(n.noted, byPID)
	return n.write()
}

func byPID(a, b notedProcess) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Start, b.Start))
}

// write replaces the file, or removes it when there is nothing to tell. The caller has the lock.
func (n *TreeNote) write() error {
	if len(n.noted) == 0 {
		return RemoveTreeNote(n.path)
	}
	src, err := json.Marshal(noteFile{Boot: bootID(), Namespace: pidNamespace(), Processes: n.noted})
	if err != nil {
		return fmt.Errorf("note processes: %w", err)
	}
	if err := ReplaceBy(n.path, n.path+".new", src, 0o600); err != nil {
		return fmt.Errorf("note processes: %w", err)
	}
	return nil
}

// kin returns the living processes among procs and noted, with everything below them, in the sessions that they lead,
// and orphans that have fallen to us: leaders of sessions first where there are too many.
func (s *sight) kin(procs []*Process, noted []notedProcess) []notedProcess {
	why := map[int]string{}
	add := func(id Ident) {
		if e, ok := s.all[id.PID]; ok && e.Ident == id && e.alive() && !s.above[id.PID] {
			why[id.PID] = "noted"
		}
	}
	for _, p := range procs {
		add(p.id)
	}
	for _, n := range noted {
		add(n.ident())
	}
	for pid, e := range s.all {
		_, known := s.ours[pid]
		orphan := e.Parent == s.keeper.self.PID && e.Session != s.keeper.self.Session && !known
		if _, ledByOurs := why[e.Session]; (ledByOurs || orphan) && !s.above[pid] && !known {
			why[pid] = "of its session"
		}
	}
	s.descend(why)
	var all []notedProcess
	for pid := range why {
		if e := s.all[pid]; e.alive() {
			all = append(all, notedProcess{PID: pid, Start: e.StartTime, Session: e.Session})
		}
	}
	if len(all) > mostNoted {
		slices.SortFunc(all, func(a, b notedProcess) int {
			return cmp.Or(cmp.Compare(min(1, abs(a.PID-a.Session)), min(1, abs(b.PID-b.Session))), byPID(a, b))
		})
		all = all[:mostNoted]
	}
	slices.SortFunc(all, byPID)
	return all
}

func abs(n int) int { return max(n, -n) }

// ReadTreeNote returns the tree that a note names: its processes, and the sessions that they lead. It is empty if there
// is no note of this boot and pid namespace that is ours.
func ReadTreeNote(path string) Tree {
	var t Tree
	for _, n := range readNote(path) {
		t.Processes = append(t.Processes, n.ident())
		if n.PID == n.Session {
			t.Sessions = append(t.Sessions, n.ident())
		}
	}
	return t
}

// RemoveTreeNote removes a note of which nothing lives any more.
func RemoveTreeNote(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove note of processes: %w", bare(err))
	}
	return nil
}

// readNote believes only a regular file of our own user.
func readNote(path string) []notedProcess {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uint32(os.Geteuid()) || st.Mode&0o022 != 0 {
		return nil
	}
	var n noteFile
	src, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil || json.Unmarshal(src, &n) != nil || n.Boot == "" || n.Boot != bootID() || n.Namespace != pidNamespace() {
		return nil
	}
	return n.Processes
}

// pidNamespace names the namespace that our pids are of (pid_namespaces(7)).
func pidNamespace() string {
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return name
}

// sweepTreeNote removes a note of which nothing lives. A service that lives writes it again when there is something.
func sweepTreeNote(path string) error {
	for _, n := range readNote(path) {
		if n.ident().Alive() {
			return nil
		}
	}
	return RemoveTreeNote(path)
}
