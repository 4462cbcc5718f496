package proc

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// CgroupUse says whether a Keeper may make cgroup leaves.
type CgroupUse int

// The ways of using cgroups.
const (
	CgroupsIfAble CgroupUse = iota // make leaves where the machine lets us
	NoCgroups                      // never
)

// Options are the choices of a Keeper. The zero value is what programs want.
type Options struct {
	Cgroups CgroupUse
	Log     *slog.Logger // nil: slog.Default()
}

// Keeper starts processes and owns what comes of them. A program has one; it may be used from many
// goroutines at once.
type Keeper struct {
	log  *slog.Logger
	self entry  // this program
	uid  uint32 // its effective user

	*registry

	cgroup   string   // folder of our own cgroup; empty: no leaves. Settled by NewKeeper.
	oomFiles []string // where the kernel counts what it kills for want of memory

	forks   chan func() // run on the one thread that forks
	closed  chan struct{}
	closing sync.Once
	running sync.WaitGroup
}

// registry knows the processes of this program. Children are a matter of the whole program, so all
// keepers share one: no reaper may collect what another keeper waits for.
type registry struct {
	mu       sync.Mutex       // held over every fork, so that a reaper never meets an unknown child of ours
	children map[int]*Process // by pid: forked by us and not yet waited for; nil for commands of Run
	adopted  map[int]*Process // by pid: watched, not our children
}

var program = registry{children: map[int]*Process{}, adopted: map[int]*Process{}}

// NewKeeper makes this program the one that orphans of its processes fall to, finds out whether cgroup
// leaves can be made, and begins to reap. Everything holds without cgroups and without sub-reaping
// rights too, by session and mark. The error is about /proc not being readable.
func NewKeeper(o Options) (*Keeper, error) {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	self, err := readEntry(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("keep processes: %w", err)
	}
	k := &Keeper{
		log:      o.Log,
		self:     self,
		uid:      uint32(os.Geteuid()),
		registry: &program,
		forks:    make(chan func()),
		closed:   make(chan struct{}),
		oomFiles: oomFiles("/"),
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		k.log.Warn("orphans of workers will not fall to us", "err", err)
	}
	k.running.Go(k.forkLoop)
	if o.Cgroups == CgroupsIfAble {
		k.cgroup = k.findCgroup()
	}
	k.running.Go(k.reapLoop)
	return k, nil
}

// Close ends the keeper's goroutines and starts no more. Processes that still run are left alone, and
// their Done is closed at their end as ever; those that die with their parent do when the program ends.
func (k *Keeper) Close() error {
	k.closing.Do(func() { close(k.closed) })
	k.running.Wait()
	return nil
}

// Cgroups says whether processes get cgroup leaves of their own.
func (k *Keeper) Cgroups() bool { return k.cgroup != "" }

// Run runs a short helper command to its end, as exec.Cmd.Run does. It must be used instead of that
// wherever the program keeps processes and nobody waits for the command at once: the reaper knows
// commands that go through here.
func (k *Keeper) Run(cmd *exec.Cmd) error {
	err := k.fork(func() error {
		if err := cmd.Start(); err != nil {
			return err
		}
		k.children[cmd.Process.Pid] = nil
		return nil
	})
	if err != nil {
		return fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	err = cmd.Wait()
	k.forget(cmd.Process.Pid)
	return err
}

var errClosed = errors.New("the keeper is closed")

// fork runs start on the forking thread with the registry locked. A parent-death signal comes when the
// thread that forked ends, so all forks share one thread that lives as long as the program.
func (k *Keeper) fork(start func() error) error {
	answer := make(chan error, 1)
	do := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		answer <- start()
	}
	select {
	case k.forks <- do:
		return <-answer
	case <-k.closed:
		return errClosed
	}
}

func (k *Keeper) forkLoop() {
	runtime.LockOSThread()
	// Unlocked at the end, so that the thread goes back to the runtime instead of ending, which
	// would kill every process that dies with its parent.
	defer runtime.UnlockOSThread()
	for {
		select {
		case do := <-k.forks:
			do()
		case <-k.closed:
			return
		}
	}
}

func (r *registry) forget(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.children, pid)
}
