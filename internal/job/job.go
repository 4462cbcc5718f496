// Package job holds the job file: what it may say, what it means where it is silent, and what is
// wrong with it. A Job is plain data; Load and Parse make one from YAML, Builtin is the one that
// runs without a file.
package job

import (
	"time"

	"vigil/internal/role"
)

// Job is one job file with every default filled in.
type Job struct {
	Name       string
	Lead       role.Name         // its step is the job's: a global restart resumes there
	Controller map[string]string // flags of the controller by their long names, without dashes
	Roles      []Role            // in the order of the file

	src *source // nil for a job that was not read from a file
}

// Role is one part of the job.
type Role struct {
	Name        role.Name
	Command     []string
	Preload     []string // modules that a fork server imports; empty: workers are executed
	Python      string   // interpreter of a command that begins with a script or -m; empty without one
	Workers     int      // ranks, at least 1
	Resources   Resources
	Placement   Placement
	Devices     Devices
	Distributed Distributed
	DependsOn   []role.Name // started after these are ready, stopped before them
	Completion  Completion
	State       StateKind
	Env         map[string]string
	EnvFile     string // absolute; empty without one
	Workdir     string // absolute; empty, in a job without a file, for that of the process that starts it
	Ports       []Port // sorted by name
	Ready       *Probe // nil: ready when all workers run
	Alive       *Alive // nil: a worker that is ready is not asked again
	Stop        StopPolicy
	Limits      Limits
	Progress    Progress
	Checkpoint  Checkpoint
	Logs        Logs
	Restart     Restart
	Hooks       Hooks

	NotifyAccess NotifyAccess `json:",omitzero"`
	User         string       `json:",omitempty"` // whom workers run as: NAME or UID, with :GROUP; empty: the controller's own
	WandB        WandB        `json:",omitzero"`
}

// Resources of each worker: one bundle. A reservation, not a limit.
type Resources struct {
	GPUs   int
	CPUs   float64
	Memory int64 // bytes
}

// Strategy says how bundles are spread over nodes (Ray's words and meanings).
type Strategy string

// The strategies.
const (
	Pack         Strategy = "PACK"          // on as few nodes as can be
	Spread       Strategy = "SPREAD"        // on as many nodes as can be
	StrictPack   Strategy = "STRICT_PACK"   // on one node or not at all
	StrictSpread Strategy = "STRICT_SPREAD" // each on a node of its own or not at all
)

// Placement says where the role's bundles may lie.
type Placement struct {
	Strategy Strategy
	Group    string // roles that name the same group share its bundles; empty: a group of its own
	PerNode  int    // at most so many workers on one node; 0: no limit
}

// Devices says which devices a worker sees.
type Devices string

// The ways of seeing devices.
const (
	DevicesAll Devices = "all" // all of its service, LOCAL_RANK indexes them
	DevicesOwn Devices = "own" // its own only, LOCAL_RANK is 0
)

// Distributed says which environment a worker finds.
type Distributed string

// The kinds of distributed environment.
const (
	Torch Distributed = "torch" // everything that torchrun sets
	None  Distributed = "none"  // none of it
)

// NotifyAccess says whose words on a worker's notify socket count.
type NotifyAccess string

// The kinds of access.
const (
	ProcessTree NotifyAccess = "tree" // of the worker and the processes that it has started
	AnyProcess  NotifyAccess = "any"  // of foreign processes too
)

// IsZero says that the access is the default one, which JSON leaves out: a role that was written down before there was
// another is the same role still.
func (a NotifyAccess) IsZero() bool { return a != AnyProcess }

// WandB says whether rank 0 is given the run of Weights & Biases that it goes on with after a restart.
type WandB string

// The kinds of W&B run.
const (
	WandBNone   WandB = "none"   // what the program does is its own matter
	WandBResume WandB = "resume" // one for each run of the job, by WANDB_RUN_ID and WANDB_RESUME=allow
)

// IsZero says that nothing was asked for, which JSON leaves out, as with [NotifyAccess.IsZero].
func (w WandB) IsZero() bool { return w != WandBResume }

// Completion says what the end of a role means.
type Completion string

// The kinds of completion.
const (
	Finish Completion = "finish" // it ends well by itself, and the job with it
	Daemon Completion = "daemon" // it is stopped when the others have finished; ending is failing
	Once   Completion = "once"   // like finish, and a global restart does not begin it again
)

// StateKind says where the role's work lives.
type StateKind string

// The kinds of state.
const (
	Checkpointed StateKind = "checkpoint" // its step after a restart is what its checkpoint says
	Stateless    StateKind = "none"
)

// Port is a TCP port that is leased for each worker and named in command and env as ${port.NAME}.
type Port struct {
	Name   string
	Number int // 0: any free one
}

// Probe asks a worker whether it is up. Exactly one of its kinds is set.
type Probe struct {
	HTTP    *HTTPProbe
	TCP     *TCPProbe
	Exec    []string
	Notify  bool          // READY=1 on the notify socket
	Period  time.Duration // between two askings
	Timeout time.Duration // of one asking
}

// HTTPProbe is well on any status from 200 to 399.
type HTTPProbe struct {
	Port string // a name from ports
	Path string
}

// TCPProbe is well when a connection is accepted.
type TCPProbe struct {
	Port string
}

// StopPolicy says how workers are stopped.
type StopPolicy struct {
	Signal         string        // without SIG, such as "TERM"
	Grace          time.Duration // before SIGKILL, for a wanted end
	GraceOnFailure time.Duration // the same where a rank of the role has failed
	GraceWritten   bool          // GraceOnFailure is what the user wrote, and is not made shorter
	SignalTo       SignalTo      // who is sent the signal
}

// SignalTo says who is sent the stop signal, as long as the worker's own process lives.
type SignalTo string

// The ways to send the stop signal. Empty: the worker, and at half of the grace who runs below one that does not react.
const (
	SignalWorker SignalTo = "worker" // its process alone
	SignalTree   SignalTo = "tree"   // everything of it at once
)

// Limits are the times after which silence is a failure.
type Limits struct {
	Start     time.Duration // from the start of a life to its first word; 0: the controller's --start-timeout
	Heartbeat time.Duration // between two words; 0: the controller's, explicit or learned
	Learned   bool          // Heartbeat is 0 and the limit learned, whatever the controller says
	Floor     time.Duration // a learned limit is never shorter

	Phases map[string]time.Duration // how long a phase may be open, by its name; others are learned
	WarmUp WarmUp
}

// Expect says whether a role's silence counts.
type Expect string

// The ways to expect progress.
const (
	Always   Expect = "always"
	OnceSeen Expect = "once_seen" // once it has spoken in any life of the job
	Never    Expect = "never"
)

// Source says where a role's steps come from.
type Source string

// The sources of steps.
const (
	FromWord Source = "word" // from what the program says itself
	FromHook Source = "auto" // from an injected optimizer hook, until the program says them itself

	FromPattern Source = "pattern" // from what the program prints
	FromFile    Source = "file"    // from the file in which it notes its newest checkpoint
)

// Progress says what is known of the role's words.
type Progress struct {
	Expect  Expect
	Source  Source
	Pattern string // RE2; its first group is the step; empty without one
	File    string // absolute, or as Workdir is; its content is the step of the newest checkpoint; empty without one
}

// Logs says how much is kept of each stream of a worker's life.
type Logs struct {
	First   int64 // bytes of its beginning
	MaxSize int64 // bytes of the newest, at least; 0: everything is kept
	Keep    int   // into how many files the newest are divided, beside the one that is written
}

// Restart is the role's part of the policy.
type Restart struct {
	OnFailure  role.Action // in_place, global or stop
	EscalateAt int         // this restart of the role is global instead, and with UnitWorker this one of the same worker the role's; 0: never
	Also       []role.Name // restarted with it
	MaxRewind  int64       // steps a checkpoint may lie back before in place is refused; negative: any
	BackOff    BackOff

	Rules        []RoleRule    // the first that fits a failure settles it, before the fields above
	Window       time.Duration // only restarts within it count; of the lead role, the job's global ones too; 0: all do
	ForgiveAfter time.Duration // of new progress, for which one restart is given back; 0: none ever is

	Unit         Unit
	MinAvailable int    // with UnitWorker: so many others must be ready for a worker to be restarted alone; else -1
	Rejoin       Rejoin // with UnitWorker; else empty
}

// BackOff is the wait between two restarts of one role: none before the first, then Base, doubling
// up to Max, forgotten after the role has been well for ResetAfter.
type BackOff struct {
	Base, Max, ResetAfter time.Duration
}

// Role returns the role of that name.
func (j *Job) Role(name role.Name) (*Role, bool) {
	for i := range j.Roles {
		if j.Roles[i].Name == name {
			return &j.Roles[i], true
		}
	}
	return nil, false
}

// Names returns the names of all roles, in the order of the file.
func (j *Job) Names() []role.Name {
	names := make([]role.Name, len(j.Roles))
	for i := range j.Roles {
		names[i] = j.Roles[i].Name
	}
	return names
}

// Levels returns the roles in the order in which they are started: each level depends only on
// earlier ones. The order within a level is that of the file. The job has no cycle.
func (j *Job) Levels() [][]role.Name {
	level := map[role.Name]int{}
	roles := map[role.Name]*Role{}
	for i := range j.Roles {
		roles[j.Roles[i].Name] = &j.Roles[i]
	}
	var depth func(name role.Name) int
	depth = func(name role.Name) int {
		if d, ok := level[name]; ok {
			return d
		}
		d := 0
		if r, ok := roles[name]; ok {
			for _, dep := range r.DependsOn {
				d = max(d, depth(dep)+1)
			}
		}
		level[name] = d
		return d
	}
	var levels [][]role.Name
	for _, name := range j.Names() {
		d := depth(name)
		for len(levels) <= d {
			levels = append(levels, nil)
		}
		levels[d] = append(levels[d], name)
	}
	return levels
}
