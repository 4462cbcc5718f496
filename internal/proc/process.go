package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"vigil/internal/role"
)

// Mark is the environment variable that tells to which worker life a process belongs.
const Mark = "VIGIL_LIFE"

// Spec says what to start and how.
type Spec struct {
	Path string   // a program; without a slash it is looked up in the PATH of Env, with one it is relative to Dir
	Args []string // without the program's own name
	Dir  string   // empty: ours
	Env  []string // NAME=VALUE, complete; nil: ours

	Stdin, Stdout, Stderr *os.File   // nil: /dev/null
	ExtraFiles            []*os.File // become descriptors 3 and up

	// Leaf is the cgroup leaf of this life, relative to our own cgroup, such as
	// "vigil-UID/actor.0/1.0.1". It is made anew, and ignored where leaves cannot be made.
	Leaf string
	// Credential is the user that it runs as, which only root can choose; nil: ours.
	Credential *syscall.Credential
	// DieWithParent has the kernel kill the process when this program ends, however it ends.
	DieWithParent bool
	// NoOrphans promises that nothing outlives the process which was not adopted, so that an orphan is never
	// laid at its door: it is of a fork server, which lives beside all the others.
	NoOrphans bool
}

// Process is a process that the keeper started or adopted. It always leads a session of its own if
// the keeper started it.
type Process struct {
	keeper *Keeper
	id     Ident
	name   string
	mark   string // value of VIGIL_LIFE that it was started with
	leaf   string // empty: none
	child  *os.Process
	pidfd  int // of an adopted process; -1 otherwise
	oom    oomCount
	barren bool // Spec.NoOrphans

	sent atomic.Uint64 // signals that we sent, one bit each
	done chan struct{}
	exit role.Exit // written before done is closed
}

// Start starts a process in a session of its own. The error names the command and the cause.
func (k *Keeper) Start(s Spec) (*Process, error) {
	if s.Env == nil {
		s.Env = os.Environ()
	}
	path, err := findProgram(s.Path, s.Dir, s.Env)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	defer null.Close()
	files := []*os.File{s.Stdin, s.Stdout, s.Stderr}
	for i, f := range files {
		if f == nil {
			files[i] = null
		}
	}
	attr := &os.ProcAttr{Dir: s.Dir, Env: s.Env, Files: append(files, s.ExtraFiles...), Sys: &syscall.SysProcAttr{Setsid: true, Credential: s.Credential}}
	if s.DieWithParent {
		attr.Sys.Pdeathsig = syscall.SIGKILL
	}
	p := &Process{keeper: k, name: s.Path, mark: lookupEnv(s.Env, Mark), pidfd: -1, done: make(chan struct{}), oom: countOOM(k.oomFiles), barren: s.NoOrphans}
	argv := append([]string{s.Path}, s.Args...)
	start := func() error { return p.start(path, argv, attr) }
	if err := k.startInLeaf(p, s.Leaf, attr.Sys, start); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	go p.wait()
	return p, nil
}

// start runs on the forking thread.
func (p *Process) start(path string, argv []string, attr *os.ProcAttr) error {
	child, err := os.StartProcess(path, argv, attr)
	if err != nil {
		var wrapped *os.PathError
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		if errors.Is(err, syscall.ENOENT) {
			err = fmt.Errorf("%w (the program, or the interpreter in its first line)", err)
		}
		return forkLack(err)
	}
	p.child = child
	p.id.PID = child.Pid
	if e, err := readEntry(child.Pid); err == nil { // it cannot be gone: nobody has waited for it
		p.id.StartTime = e.StartTime
	}
	p.keeper.children[child.Pid] = p
	return nil
}

// wait collects the exit status and tells everybody who waits on Done.
func (p *Process) wait() {
	state, err := p.child.Wait()
	p.exit = role.Exit{PID: p.id.PID, Code: -1}
	if err == nil {
		if ws, ok := state.Sys().(syscall.WaitStatus); ok {
			p.exit = p.read(ws)
		}
	}
	p.keeper.forget(p.id.PID)
	close(p.done)
}

func (p *Process) read(ws syscall.WaitStatus) role.Exit {
	e := role.Exit{PID: p.id.PID}
	if !ws.Signaled() {
		e.Code = ws.ExitStatus()
		return e
	}
	sig := ws.Signal()
	e.Signal, e.Core = signalName(sig), ws.CoreDump()
	switch {
	case p.sent.Load()&(1<<uint(sig)) != 0:
		e.Sender = "vigil"
	case sig == syscall.SIGKILL && p.oom.rose(p.id.PID):
		e.Sender = OOMKiller
	}
	return e
}

// Adopt watches a process that is not our child: an earlier life of this program started it. Leaf and
// mark are what it was started with, or empty. Its exit status is not ours to read: Exit has the code -1.
// The error says that it does not live.
func (k *Keeper) Adopt(id Ident, leaf, mark string) (*Process, error) {
	e, err := readEntry(id.PID)
	if err != nil || e.StartTime != id.StartTime || !e.alive() {
		return nil, fmt.Errorf("adopt pid %d: it has ended", id.PID)
	}
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("adopt pid %d: %w", id.PID, err)
	}
	if !id.Alive() { // the descriptor may be of a newer process
		unix.Close(fd)
		return nil, fmt.Errorf("adopt pid %d: it has ended", id.PID)
	}
	p := &Process{keeper: k, id: id, name: e.Name, leaf: leaf, mark: mark, pidfd: fd, done: make(chan struct{})}
	k.mu.Lock()
	k.adopted[id.PID] = p
	k.mu.Unlock()
	k.running.Go(p.watch)
	return p, nil
}

// watch waits for the end of an adopted process, or of the keeper.
func (p *Process) watch() {
	f := os.NewFile(uintptr(p.pidfd), "pidfd")
	ended := make(chan struct{})
	go func() {
		select {
		case <-p.keeper.closed:
			f.Close()
		case <-ended:
		}
	}()
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool { return readable(int(fd)) })
	}
	close(ended)
	f.Close()
	p.keeper.mu.Lock()
	delete(p.keeper.adopted, p.id.PID)
	p.keeper.mu.Unlock()
	if err == nil {
		p.exit = role.Exit{PID: p.id.PID, Code: -1}
		close(p.done)
	}
}

func readable(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1
}

// PID is the process id.
func (p *Process) PID() int { return p.id.PID }

// StartTime is when the process began, in clock ticks since boot (field 22 of /proc/PID/stat).
func (p *Process) StartTime() uint64 { return p.id.StartTime }

// Ident is the process id with the start time.
func (p *Process) Ident() Ident { return p.id }

// Name is the command as it was given.
func (p *Process) Name() string { return p.name }

// Leaf is the cgroup leaf in which the process was started, relative to our own; empty without one.
func (p *Process) Leaf() string { return p.leaf }

// Done is closed when the process has ended, within about a millisecond.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how the process ended. It may be called once Done is closed. Sender is "vigil" when a signal
// of ours ended it and "oom-killer" when the kernel says so.
func (p *Process) Exit() role.Exit {
	<-p.done
	return p.exit
}

// Tree is what the process has brought about: its session, its leaf, its mark.
func (p *Process) Tree() Tree {
	return Tree{Sessions: []Ident{p.id}, LeafPrefix: p.leaf, Mark: p.mark, Since: p.id.StartTime}
}

// Signal sends sig to the process alone. Once it has ended, nothing is sent and the error is
// os.ErrProcessDone.
func (p *Process) Signal(sig unix.Signal) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
	}
	p.note(sig)
	return signal(p.id, sig)
}

// note remembers that we sent sig, for Exit.Sender.
func (p *Process) note(sig unix.Signal) { p.sent.Or(1 << uint(sig)) }

// findProgram looks name up as the started program's own shell would: in the PATH of its environment.
func findProgram(name, dir string, env []string) (string, error) {
	if dir != "" {
		if st, err := os.Stat(dir); err != nil {
			return "", fmt.Errorf("working directory: %w", err)
		} else if !st.IsDir() {
			return "", fmt.Errorf("working directory %s is not a directory", dir)
		}
	}
	if name == "" {
		return "", errors.New("no program named")
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	list := lookupEnv(env, "PATH")
	for _, folder := range filepath.SplitList(list) {
		path := filepath.Join(folder, name)
		at := path
		if !filepath.IsAbs(at) {
			at = filepath.Join(dir, path)
		}
		if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() && unix.Access(at, unix.X_OK) == nil {
			if !strings.Contains(path, "/") {
				path = "./" + path
			}
			return path, nil
		}
	}
	return "", fmt.Errorf("not found in PATH %q", list)
}

// lookupEnv returns the last value that env gives name.
func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}
