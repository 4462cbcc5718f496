package proc

import (
	"maps"
	"slices"
	"sync"
)

// Kin says what a process is to one that the keeper started.
type Kin int

// The kinds of kin.
const (
	Unrelated Kin = iota + 1
	Itself
	Below  // a descendant
	OfTree // bears another sign of its tree: its session, cgroup leaf or mark, or is an orphan that has fallen to us
	Beside // another process that the keeper started, or below one
	Unseen // it has ended, or may not be seen
)

// Family knows who is kin to one process. It may be used from many goroutines at once.
type Family struct {
	keeper *Keeper
	p      *Process

	mu   sync.Mutex
	seen map[int]relative
	buf  []byte
}

// relative is what was found out about a process. It holds for as long as its parent is the same.
type relative struct {
	id     Ident
	parent int
	is     Kin
}

// maxRelatives bounds how many processes a family remembers. Beyond it, it looks again.
const maxRelatives = 1024

// FamilyOf returns the family of a process that the keeper started or adopted.
func (k *Keeper) FamilyOf(p *Process) *Family {
	return &Family{keeper: k, p: p, seen: map[int]relative{}, buf: make([]byte, 1024)}
}

// Kin says what the process that has pid now is to the family's own. One that was asked for before costs one read of
// /proc, another one some for each of its ancestors.
func (f *Family) Kin(pid int) (Kin, Ident) {
	if pid == f.p.id.PID {
		return Itself, f.p.id
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e, err := readEntryInto(pid, f.buf)
	if err != nil {
		return Unseen, Ident{PID: pid}
	}
	if r, ok := f.seen[pid]; ok && r.id == e.Ident && r.parent == e.Parent {
		return r.is, r.id
	}
	if len(f.seen) >= maxRelatives {
		clear(f.seen)
	}
	is, sure := f.keeper.kin(f.p, e)
	if sure {
		f.seen[pid] = relative{id: e.Ident, parent: e.Parent, is: is}
	}
	return is, e.Ident
}

// Between returns the pids of a descendant's ancestors, from its parent up to the family's own process. Empty for a
// process that is no descendant.
func (f *Family) Between(pid int) []int {
	var pids []int
	for at, err := readEntry(pid); err == nil && at.Parent > 1; at, err = readEntry(at.Parent) {
		pids = append(pids, at.Parent)
		if at.Parent == f.p.id.PID {
			return pids
		}
		if len(pids) > maxRelatives {
			break
		}
	}
	return nil
}

// kin follows a process's ancestors up to one that says what it is. It is not sure of an orphan whose environment cannot be
// read, as for a moment while it executes a program.
func (k *Keeper) kin(p *Process, e entry) (is Kin, sure bool) {
	line := []entry{e}
	s := k.glance(p, e)
	for at := e; at.Parent > 1 && !s.above[at.Parent]; {
		if at.Parent == p.id.PID {
			return Below, true
		}
		if _, started := s.ours[at.PID]; started {
			return Beside, true
		}
		parent, err := readEntry(at.Parent)
		if err != nil || slices.ContainsFunc(line, func(l entry) bool { return l.PID == parent.PID }) {
			break // it has ended meanwhile
		}
		line, at = append(line, parent), parent
		s.all[at.PID] = at
	}
	last := line[len(line)-1]
	if _, started := s.ours[last.PID]; started {
		return Beside, true
	}
	if last.Parent == k.self.PID {
		is = s.kinOfOrphan(p.Tree(), last)
		return is, is == Beside || s.mark(last).says == legible
	}
	return s.kinBySign(p.Tree(), line), true
}

// kinOfOrphan judges a process that has fallen to us: of the tree, unless it shows that it is of another one of ours.
func (s *sight) kinOfOrphan(t Tree, e entry) Kin {
	_, beside := s.ours[e.Session]
	if r := s.mark(e); beside || r.mark != "" && !markIs(r.mark, t.Mark) {
		return Beside
	}
	return OfTree
}

// kinBySign judges a line of ancestors that leads to none of our processes.
func (s *sight) kinBySign(t Tree, line []entry) Kin {
	var inLeaf []int
	for _, folder := range leavesBelow(s.keeper.cgroup, t.LeafPrefix) {
		pids, _ := pidsIn(folder)
		inLeaf = append(inLeaf, pids...)
	}
	for _, e := range line {
		if slices.Contains(inLeaf, e.PID) || s.sign(t, e) != "" {
			return OfTree
		}
	}
	return Unrelated
}

// glance looks at what is needed to judge one process: us, those above us, those we started.
func (k *Keeper) glance(p *Process, e entry) *sight {
	s := &sight{keeper: k, all: table{e.PID: e}, ours: map[int]*Process{}, above: map[int]bool{}, marks: map[int]reading{}, buf: make([]byte, 16<<10)}
	k.mu.Lock()
	maps.Copy(s.ours, k.children)
	maps.Copy(s.ours, k.adopted)
	k.mu.Unlock()
	delete(s.ours, p.id.PID)
	for at := k.self; at.PID > 0 && !s.above[at.PID]; {
		s.above[at.PID], s.all[at.PID] = true, at
		parent, err := readEntry(at.Parent)
		if err != nil {
			break
		}
		at = parent
	}
	if leader, err := readEntry(p.id.PID); err == nil {
		s.all[leader.PID] = leader
	}
	return s
}
