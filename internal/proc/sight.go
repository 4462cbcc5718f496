package proc

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sight is one look at the machine, good for asking about several trees.
type sight struct {
	keeper *Keeper
	all    table
	ours   map[int]*Process // living processes that the keeper started or adopted; nil for commands of Run
	above  map[int]bool     // this program and its ancestors
	below  map[int][]int    // children by parent
	marks  map[int]reading
	buf    []byte // for environments
}

type reading struct {
	mark string
	says legibility
}

func (k *Keeper) look() *sight {
	s := &sight{keeper: k, ours: map[int]*Process{}, above: map[int]bool{}, below: map[int][]int{}, marks: map[int]reading{}, buf: make([]byte, 16<<10)}
	// The table first: what is forked after it is not in it, and what is in it is known or a stranger.
	s.all = readTable()
	k.mu.Lock()
	for pid, p := range k.children {
		s.ours[pid] = p
	}
	for pid, p := range k.adopted {
		s.ours[pid] = p
	}
	k.mu.Unlock()
	for pid := os.Getpid(); pid > 0 && !s.above[pid]; pid = s.all[pid].Parent {
		s.above[pid] = true
	}
	for pid, e := range s.all {
		s.below[e.Parent] = append(s.below[e.Parent], pid)
	}
	return s
}

// members returns what bears a sign of the tree, and everything below that.
func (s *sight) members(t Tree) []Holder {
	why := map[int]string{}
	add := func(pid int, reason string) {
		if _, known := why[pid]; !known && !s.above[pid] {
			why[pid] = reason
		}
	}
	s.byLeaf(t, add)
	for _, id := range t.Processes {
		if s.all[id.PID].Ident == id {
			add(id.PID, "known to be of it")
		}
	}
	for pid, e := range s.all {
		if p, ok := s.ours[pid]; ok {
			s.byStart(t, p, add)
			continue
		}
		if reason := s.sign(t, e); reason != "" {
			add(pid, reason)
		}
	}
	s.descend(why)
	var found []Holder
	for pid, reason := range why {
		e := s.all[pid]
		if e.alive() || e.Parent == s.keeper.self.PID {
			found = append(found, Holder{Ident: e.Ident, Session: e.Session, Name: e.Name, Mark: t.Mark, Why: reason})
		}
	}
	slices.SortFunc(found, func(a, b Holder) int { return cmp.Compare(a.PID, b.PID) })
	return found
}

// byLeaf adds who sits in the tree's leaves.
func (s *sight) byLeaf(t Tree, add func(int, string)) {
	for _, folder := range leavesBelow(s.keeper.cgroup, t.LeafPrefix) {
		pids, err := pidsIn(folder)
		if err != nil {
			continue
		}
		for _, pid := range pids {
			if _, known := s.all[pid]; !known { // younger than the table
				e, err := readEntry(pid)
				if err != nil {
					continue
				}
				s.all[pid] = e
			}
			add(pid, "in its cgroup")
		}
	}
}

// byStart judges a process of ours by what it was started with, never by what /proc says.
func (s *sight) byStart(t Tree, p *Process, add func(int, string)) {
	switch {
	case p == nil: // a command of Run is of no tree
	case slices.Contains(t.Sessions, p.id):
		add(p.id.PID, "leads its session")
	case markIs(p.mark, t.Mark):
		add(p.id.PID, "bears its mark")
	case t.LeafPrefix != "" && (p.leaf == t.LeafPrefix || strings.HasPrefix(p.leaf, filepath.Clean(t.LeafPrefix)+"/")):
		add(p.id.PID, "in its cgroup")
	}
}

// sign says which sign of the tree a process bears by itself; empty for none.
func (s *sight) sign(t Tree, e entry) string {
	for _, leader := range t.Sessions {
		if e.Session == leader.PID && s.inSession(t, leader, e) {
			return "in its session"
		}
	}
	orphan := e.Parent == s.keeper.self.PID && e.Session != s.keeper.self.Session
	if !orphan && (t.Mark == "" || e.StartTime < t.Since) {
		return ""
	}
	if !e.alive() {
		if orphan && s.soleTree(t, e) {
			return "its orphan"
		}
		return ""
	}
	r := s.mark(e)
	switch {
	case markIs(r.mark, t.Mark) && e.StartTime >= t.Since:
		return "bears its mark"
	case r.mark == "" && orphan && s.soleTree(t, e):
		return "its orphan"
	}
	return ""
}

// inSession says whether e, whose session has the leader's number, is in the leader's session. While a
// session has members its number goes to nobody else (pid_namespaces and sessions share struct pid in
// the kernel), so a living leader settles it. Without one a stranger may have made a new session of
// that number since: then e must not be older than ours, not another user's, and must not show a
// complete environment without our mark. A child of ours that we did not start is ours in any case.
func (s *sight) inSession(t Tree, leader Ident, e entry) bool {
	if now, ok := s.all[leader.PID]; ok {
		return now.Ident == leader
	}
	if e.Parent == s.keeper.self.PID {
		return true
	}
	uid, ok := owner(e.PID)
	if !ok || uid != s.keeper.uid || e.StartTime < leader.StartTime {
		return false
	}
	if t.Mark == "" {
		return true
	}
	r := s.mark(e)
	return markIs(r.mark, t.Mark) || r.mark == "" && r.says == illegible
}

// soleTree says whether an orphan that shows no mark can only be of this tree: it is younger than a
// session of the tree, and no other process of ours lives that could have made it.
func (s *sight) soleTree(t Tree, e entry) bool {
	if !slices.ContainsFunc(t.Sessions, func(id Ident) bool { return e.StartTime >= id.StartTime }) {
		return false
	}
	for pid, p := range s.ours {
		if p == nil || p.barren || slices.Contains(t.Sessions, p.id) || markIs(p.mark, t.Mark) {
			continue
		}
		if e.Session == pid || s.all[pid].alive() {
			return false
		}
	}
	return true
}

// mark reads VIGIL_LIFE of a process of our user, once per look.
func (s *sight) mark(e entry) reading {
	if r, ok := s.marks[e.PID]; ok {
		return r
	}
	var r reading
	if uid, ok := owner(e.PID); ok && (uid == s.keeper.uid || e.Parent == s.keeper.self.PID) {
		r.mark, r.says = readMark(e.PID, s.buf)
	}
	s.marks[e.PID] = r
	return r
}

// descend adds everything below the members, except what the keeper started itself: that is of
// another tree unless a sign says otherwise.
func (s *sight) descend(why map[int]string) {
	queue := make([]int, 0, len(why))
	for pid := range why {
		queue = append(queue, pid)
	}
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		for _, child := range s.below[pid] {
			_, known := why[child]
			_, own := s.ours[child]
			if !known && !own && !s.above[child] {
				why[child] = "its descendant"
				queue = append(queue, child)
			}
		}
	}
}
