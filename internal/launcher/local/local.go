// Package local starts services as processes on this machine and ends them for the controller.
//
// A service outlives its controller: it has a session of its own, writes to a file, and is not tied to
// us by a parent-death signal. What it starts does not outlive it: its direct workers die with it by the
// kernel's hand, and the rest is ended here, by Stop or, after it died by itself, by Clear. Both say
// what they could not end; that is an obligation, which is kept and tried again every second.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
	"vigil/internal/role"
)

// optionPrefix begins the environment variables that are flags of our programs. A service gets only
// those that are meant for it.
const optionPrefix = "VIGIL_OPT_"

// Keeper is what the launcher needs of proc.Keeper.
type Keeper interface {
	Start(proc.Spec) (*proc.Process, error)
	Adopt(id proc.Ident, leaf, mark string) (*proc.Process, error)
	Clear(context.Context, proc.Tree) ([]proc.Holder, error)
	Remains(proc.Tree) []proc.Holder
}

// Options are what a launcher needs. All but Log, Retry and Record must be given.
type Options struct {
	Keeper     Keeper
	Executable []string // the service program with its first arguments, such as [self, "service"]
	JobUID     string
	RuntimeDir proc.Dir // swept after a service has gone
	LogDir     string   // logs are LogDir/ROLE/service.INDEX.log
	Log        *slog.Logger
	Retry      time.Duration // of obligations; 0: 1 s
	// Record, if it is given, is told what an obligation is now whenever it changes; with nothing left it is
	// met. It is called in order and must not call the launcher.
	Record func(Obligation)
}

// Launcher starts and ends the services of one job. It may be used from many goroutines; what concerns
// one service happens one after the other, different services go side by side.
type Launcher struct {
	o Options

	mu      sync.Mutex
	slots   map[slotID]*slot
	started []proc.Ident // every service of this run
	owed    []Obligation

	stopRetry context.CancelFunc
	retrying  sync.WaitGroup
}

type slotID struct {
	role  role.Name
	index int
}

func (id slotID) String() string { return fmt.Sprintf("%s/%d", id.role, id.index) }

// slot is the place of one service.
type slot struct {
	busy    sync.Mutex // held by whoever starts, stops or clears it
	service *Service   // the last one; guarded by Launcher.mu
	notes   []proc.Ident
	living  int  // of the notes, when that was last found out
	looks   bool // somebody is finding it out
}

// Spec says which service to start.
type Spec struct {
	Role        role.Name
	Index       int // among the role's services, from 0
	Incarnation int // of the role
	// Env is added to our own environment, less what are flags of our own. VIGIL_OPT_* are the
	// service's flags.
	Env map[string]string
	// Files are inherited, and stay open as long as the service lives: locks that are to outlive us.
	Files []*os.File
}

// Service is a service process.
type Service struct {
	ID          string // ROLE/INDEX
	Incarnation int    // of the role when it was started
	process     *proc.Process
	log         string
	from        int64 // where in the log its own words begin; -1: not known
}

// PID is the process id.
func (s *Service) PID() int { return s.process.PID() }

// StartTime is in clock ticks since boot; with the pid it is the identity for the journal.
func (s *Service) StartTime() uint64 { return s.process.StartTime() }

// Log is the absolute path of the file that its output goes to.
func (s *Service) Log() string { return s.log }

// Done is closed when the service has ended.
func (s *Service) Done() <-chan struct{} { return s.process.Done() }

// Continue lets a service that somebody has stopped run on, so that it can obey. One that runs or has
// ended is left as it is.
func (s *Service) Continue() {
	_ = s.process.Signal(unix.SIGCONT) // it may have ended
}

// Exit is how it ended, with the last 20 lines of its log. It waits for Done.
func (s *Service) Exit() role.Exit {
	e := s.process.Exit()
	e.Tail = proc.Tail(s.log, 20)
	return e
}

// mostSaid is how much of the beginning of what a service has written is looked at, in bytes.
const mostSaid = 8 << 10

// Said returns the first lines that it has written to its log, 8 KiB of them; none of one that was adopted.
func (s *Service) Said() []string {
	if s.from < 0 {
		return nil
	}
	return proc.LinesFrom(s.log, s.from, mostSaid)
}

func (s *Service) ended() bool {
	select {
	case <-s.process.Done():
		return true
	default:
		return false
	}
}

// New makes a launcher and begins to work off obligations. Close ends that.
func New(o Options) *Launcher {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Retry == 0 {
		o.Retry = time.Second
	}
	if o.Record == nil {
		o.Record = func(Obligation) {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Launcher{o: o, slots: map[slotID]*slot{}, stopRetry: cancel}
	l.retrying.Go(func() { l.retryLoop(ctx) })
	return l
}

// Start starts a service; its output is appended to its log. The error says what is wrong with the
// command or the log, or that the service before it has not ended. It waits for a Stop or Clear of
// that service, and starts nothing once ctx has ended.
func (l *Launcher) Start(ctx context.Context, s Spec) (*Service, error) {
	id := slotID{s.Role, s.Index}
	place := l.slot(id)
	place.busy.Lock()
	defer place.busy.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start service %s: %w", id, err)
	}
	if old := l.service(id); old != nil && !old.ended() {
		return nil, fmt.Errorf("start service %s: pid %d still runs", id, old.PID())
	}
	if note := l.treeNote(id); note != "" && !proc.Gone(note) { // of one that no journal knows
		if _, err := l.clear(ctx, id); err != nil {
			l.o.Log.Warn("what an earlier service has left is still there", "service", id.String(), "err", err) // an obligation now
		}
	}
	path, out, err := l.openLog(id)
	if err != nil {
		return nil, fmt.Errorf("start service %s: %w", id, err)
	}
	defer out.Close()
	from := int64(-1)
	if st, err := out.Stat(); err == nil {
		from = st.Size()
	}
	p, err := l.o.Keeper.Start(proc.Spec{
		Path: l.o.Executable[0], Args: l.o.Executable[1:], Env: environment(os.Environ(), s.Env), Stdout: out, Stderr: out, ExtraFiles: s.Files,
	})
	if err != nil {
		return nil, fmt.Errorf("start service %s: %w", id, err)
	}
	return l.keep(id, &Service{ID: id.String(), Incarnation: s.Incarnation, process: p, log: path, from: from}), nil
}

// Adopt takes over a service that an earlier controller of this job started. The error says that it
// does not live.
func (l *Launcher) Adopt(name role.Name, index, incarnation int, process proc.Ident) (*Service, error) {
	id := slotID{name, index}
	place := l.slot(id)
	place.busy.Lock()
	defer place.busy.Unlock()
	if old := l.service(id); old != nil && !old.ended() {
		return nil, fmt.Errorf("adopt service %s: pid %d is running as it", id, old.PID())
	}
	p, err := l.o.Keeper.Adopt(process, "", "")
	if err != nil {
		return nil, fmt.Errorf("adopt service %s: %w", id, err)
	}
	path, err := l.logPath(id)
	if err != nil {
		return nil, fmt.Errorf("adopt service %s: %w", id, err)
	}
	return l.keep(id, &Service{ID: id.String(), Incarnation: incarnation, process: p, log: path, from: -1}), nil
}

func (l *Launcher) keep(id slotID, s *Service) *Service {
	place := l.slot(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	place.service = s
	l.started = append(l.started, s.process.Ident())
	return s
}

func (l *Launcher) slot(id slotID) *slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slots[id] == nil {
		l.slots[id] = &slot{}
	}
	return l.slots[id]
}

// service returns the last service of that place; nil if there was none.
func (l *Launcher) service(id slotID) *Service {
	place := l.slot(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	return place.service
}

// notesKept is how many sessions are noted, beyond those that live, before those that are over are forgotten.
const notesKept = 128

// Note remembers a worker that the service has started, by its pid and start time, so that what the
// worker leaves behind is known as ours when the service is gone. It never waits: whoever reads the words
// of a service calls it. Which sessions are over is found out elsewhere, now and again.
func (l *Launcher) Note(name role.Name, index, pid int, startTime uint64) {
	place := l.slot(slotID{name, index})
	worker := proc.Ident{PID: pid, StartTime: startTime}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.Contains(place.notes, worker) {
		return
	}
	place.notes = append(place.notes, worker)
	if !place.looks && len(place.notes) >= place.living+notesKept {
		place.looks = true
		go l.forgetEnded(place)
	}
}

// forgetEnded takes those sessions off a place's notes that are over, until few enough are left. It reads all
// of /proc.
func (l *Launcher) forgetEnded(place *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(place.notes) >= place.living+notesKept {
		noted := slices.Clone(place.notes)
		l.mu.Unlock()
		lives := map[int]bool{}
		for _, h := range l.o.Keeper.Remains(proc.Tree{Sessions: noted}) {
			lives[h.Session] = true
		}
		l.mu.Lock()
		over := func(id proc.Ident) bool { return !lives[id.PID] }
		place.notes = slices.DeleteFunc(place.notes, func(id proc.Ident) bool { return slices.Contains(noted, id) && over(id) })
		place.living = len(slices.DeleteFunc(noted, over))
	}
	place.looks = false
}

func (l *Launcher) logPath(id slotID) (string, error) {
	return filepath.Abs(filepath.Join(l.o.LogDir, string(id.role), fmt.Sprintf("service.%d.log", id.index)))
}

func (l *Launcher) openLog(id slotID) (string, *os.File, error) {
	path, err := l.logPath(id)
	if err != nil {
		return "", nil, err
	}
	folder, err := proc.MakeFolder(filepath.Dir(path), 0o755)
	if err != nil {
		return "", nil, err
	}
	folder.Close()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o644)
	return path, f, err
}

// environment is ours less what is meant for us alone, plus add in the order of its names.
func environment(ours []string, add map[string]string) []string {
	env := slices.DeleteFunc(slices.Clone(ours), func(item string) bool {
		name, _, _ := strings.Cut(item, "=")
		_, replaced := add[name]
		return replaced || name == proc.Mark || strings.HasPrefix(name, optionPrefix)
	})
	added := make([]string, 0, len(add))
	for name, value := range add {
		added = append(added, name+"="+value)
	}
	slices.Sort(added)
	return append(env, added...)
}

// Close ends the work on obligations, after one last try. Services that still run are left alone. Where
// none does, everything of the job that is left on this machine is ended. The error says what still is, but
// for what an earlier run has left.
func (l *Launcher) Close(ctx context.Context) error {
	l.stopRetry()
	l.retrying.Wait()
	l.retry(ctx)
	var errs []error
	if tree, alone := l.wholeJob(); alone {
		if _, err := l.o.Keeper.Clear(ctx, tree); err != nil {
			errs = append(errs, fmt.Errorf("close launcher: %w", err))
		} else {
			l.dropTreeNotes(l.treeNotes()...)
		}
		l.sweep()
		for _, id := range l.ids() {
			l.clearShm(id)
		}
	}
	for _, owed := range l.Obligations() {
		if owed.Earlier {
			l.o.Log.Warn("what an earlier run has left is still there", "left", owed.String())
			continue
		}
		errs = append(errs, errors.New(owed.String()))
	}
	return errors.Join(errs...)
}

// wholeJob is the tree of everything that this job has on this machine, and whether no service of it
// lives.
func (l *Launcher) wholeJob() (proc.Tree, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := proc.Tree{Sessions: slices.Clone(l.started), LeafPrefix: "vigil-" + l.o.JobUID, Mark: l.o.JobUID + "/"}
	for _, place := range l.slots {
		if place.service != nil && !place.service.ended() {
			return t, false
		}
		t.Sessions = append(t.Sessions, place.notes...)
	}
	l.addNoted(&t, l.treeNotes()...)
	return t, true
}

func (l *Launcher) sweep() {
	if l.o.RuntimeDir == (proc.Dir{}) {
		return
	}
	if _, err := l.o.RuntimeDir.Sweep(); err != nil {
		l.o.Log.Warn("sockets not swept", "err", err)
	}
}
