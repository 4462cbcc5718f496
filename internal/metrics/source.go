package metrics

import (
	"time"

	"vigil/internal/role"
)

// Source is asked at every scrape for how things stand. Snapshot is called from many goroutines and
// must not wait.
type Source interface {
	Snapshot() Snapshot
}

// Snapshot is how things stand. The caller may keep it.
type Snapshot struct {
	Roles             []Role
	GlobalRestarts    int // spent over the whole run, so that a controller's restart does not lose them
	MaxGlobalRestarts int
	Bundles           []Bundles
	CheckerLateness   time.Duration // how late the newest sweep came
	LongestAct        time.Duration // that the repair loop has been busy with one thing
	Obligations       int           // what could not be cleaned up yet
	JournalTrouble    bool          // what is decided cannot be recorded
	JournalRefused    int           // writes that the journal has refused since the controller began
	Folders           []Folder
}

// Folder is how a directory of the controller's stands.
type Folder struct {
	Name     string // runtime or state
	Trouble  bool   // it is not ours to use, or cannot be made again
	Restored int    // how often what somebody had removed from it was made again
}

// Role is how one role stands.
type Role struct {
	Name         role.Name
	Healthy      bool
	Step         int64
	HeartbeatAge time.Duration // since it last spoke; before its first word, since it began
	Incarnation  int
	Workers      []Worker
}

// Worker is how one rank stands.
type Worker struct {
	Rank         int
	State        role.WorkerState
	Step         *int64         // nil before it has told one in this life
	HeartbeatAge *time.Duration // nil before it has spoken in this life
}

// Bundles counts a role's bundles that are in one state.
type Bundles struct {
	Role  role.Name
	State string // such as RESERVED; becomes a label as it is, in lower case
	Count int
}
