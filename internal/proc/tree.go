package proc

import "strings"

// Ident names one process for good: pids come again, a pid with its start time does not.
type Ident struct {
	PID       int
	StartTime uint64 // clock ticks since boot
}

// Alive says whether that very process runs. A zombie does not.
func (id Ident) Alive() bool {
	e, err := readEntry(id.PID)
	return err == nil && e.StartTime == id.StartTime && e.alive()
}

// Identify returns the identity of the process that has pid now. The error wraps os.ErrNotExist when
// there is none.
func Identify(pid int) (Ident, error) {
	e, err := readEntry(pid)
	return e.Ident, err
}

// Tree describes processes that belong together by the signs they bear. Each sign may be absent; a
// process with any of them is of the tree, and so is everything below it. Without cgroups a daemon that
// has left its session, has lost its parent and shows no mark is known to be ours, but not whose: it
// counts for the last tree that lives.
type Tree struct {
	// Sessions are the leaders of sessions that we made. A session whose leader has ended counts
	// still; one whose number has gone to another leader does not.
	Sessions []Ident
	// LeafPrefix is a cgroup folder relative to our own: every leaf in it, at any depth.
	LeafPrefix string
	// Mark is the value of VIGIL_LIFE, or with a slash at its end the beginning of it. Processes of
	// another user never count by it.
	Mark string
	// Since bounds what counts by Mark: nothing that began earlier, in clock ticks since boot.
	Since uint64
	// Processes are single processes that are known to belong to it.
	Processes []Ident
}

// Holder is a process that holds on where there should be none.
type Holder struct {
	Ident
	Session int    // pid of its session's leader
	Name    string // of the command, as the kernel has it: at most 15 bytes
	Mark    string // of the tree that it was found in; a worker life, where that is one
	Why     string // why it counts, or what it did
	Early   bool   // it was ended before its grace was over, because it did not react
}

// Remains returns what of the tree lives now, by ascending pid. This program itself and those above
// it never count. Of the processes that the keeper started or adopted those count that the tree names
// by their session, leaf or mark as they were given at the start. A dead child of ours that nobody has
// collected yet counts too.
func (k *Keeper) Remains(t Tree) []Holder { return k.look().members(t) }

// markIs says whether value is the life that mark names or begins.
func markIs(value, mark string) bool {
	if mark == "" || value == "" {
		return false
	}
	return value == mark || strings.HasSuffix(mark, "/") && strings.HasPrefix(value, mark)
}
