package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// LackError says that a limit of the machine, or of this user on it, keeps something from being started now. It may
// pass: what others hold they give back.
type LackError struct {
	Limit string // which limit, its value, and whose it is
	Err   error
}

func (e *LackError) Error() string { return fmt.Sprintf("%v: %s", e.Err, e.Limit) }

// Unwrap returns what the machine has said.
func (e *LackError) Unwrap() error { return e.Err }

// LackOf returns err as a *LackError if it is one, or says that descriptors, memory or room on a disk are used up;
// else nil. What the kernel says of processes (EAGAIN) means other things elsewhere, so that only the start of a
// process makes a *LackError of it.
func LackOf(err error) *LackError {
	if known := new(LackError); errors.As(err, &known) {
		return &LackError{known.Limit, err}
	}
	switch {
	case errors.Is(err, unix.EMFILE):
		return &LackError{filesOf(os.Getpid()), err}
	case errors.Is(err, unix.ENFILE):
		return &LackError{"the open files of the whole machine (fs.file-nr: " + strings.Join(strings.Fields(word("/proc/sys/fs/file-nr")), ", ") + ")", err}
	case errors.Is(err, unix.ENOMEM):
		return &LackError{memoryLimit(), err}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &LackError{room(err), err}
	}
	return nil
}

// forkLack says which limit kept a process from being forked; err as it is, where that is another matter.
func forkLack(err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		return &LackError{processLimit(), err}
	case errors.Is(err, unix.ENOMEM):
		return &LackError{memoryLimit(), err}
	}
	return err
}

// crashes are what Go's runtime says when it ends a program for lack of something, with what that is.
var crashes = []struct{ said, lack string }{
	{"failed to create new OS thread", "it could not make a thread"},
	{"fatal error: newosproc", "it could not make a thread"},
	{"fatal error: out of memory", "it could get no memory"},
	{"fatal error: runtime: out of memory", "it could get no memory"},
	{"fatal error: runtime: cannot allocate memory", "it could get no memory"},
	{"cannot allocate memory", "it could get no memory"},
}

// CrashLack returns a *LackError if the last lines of a Go program say that it has ended for lack of threads or memory;
// else nil.
func CrashLack(lines []string, err error) *LackError {
	for _, line := range lines {
		for _, c := range crashes {
			if !strings.Contains(line, c.said) {
				continue
			}
			limit := memoryLimit()
			if strings.HasSuffix(c.lack, "thread") {
				limit = processLimit()
			}
			return &LackError{limit, fmt.Errorf("%w: %s", err, c.lack)}
		}
	}
	return nil
}

// filesOf says how many descriptors a process may have, and has.
func filesOf(pid int) string {
	open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return fmt.Sprintf("the open files of one process (ulimit -n): %d allowed to pid %d (%s), %d in use", FileLimit(), pid, word(fmt.Sprintf("/proc/%d/comm", pid)), len(open))
}

// FileLimit is how many descriptors this process may have. Go's runtime has raised the limit that counts to the
// highest that this user may set, and gives programs that it starts the one that it was started with.
func FileLimit() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil || l.Cur > 1<<30 {
		return 1 << 30
	}
	return int(l.Cur)
}

// AddressLimit is how many bytes of address space this process may have (ulimit -v), and whether there is a limit.
func AddressLimit() (int64, bool) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &l) != nil || l.Cur > 1<<60 {
		return 0, false
	}
	return int64(l.Cur), true
}

// ProcessRoom is how many more processes and threads this user may have here, by the narrowest limit, which it names;
// known is false where there is none. A user with CAP_SYS_RESOURCE or CAP_SYS_ADMIN has no ulimit -u.
func ProcessRoom() (room int, limit string, known bool) {
	for _, at := range pidCgroups() {
		if left := at.max - at.now; !known || left < room {
			room, limit, known = left, at.String(), true
		}
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &l) != nil || l.Cur > 1<<30 || unlimitedTasks() {
		return room, limit, known
	}
	now := tasksOf(os.Getuid())
	if left := int(l.Cur) - now; !known || left < room {
		room, limit, known = left, fmt.Sprintf("the processes and threads of uid %d (ulimit -u): %d allowed, %d in use", os.Getuid(), l.Cur, now), true
	}
	return room, limit, known
}

// processLimit names the limit that is the likely cause where no process could be forked.
func processLimit() string {
	if room, limit, known := ProcessRoom(); known && room <= 32 {
		return limit
	}
	return fmt.Sprintf("the processes and threads of the whole machine (kernel.threads-max %s, kernel.pid_max %s), or a limit that cannot be seen here",
		word("/proc/sys/kernel/threads-max"), word("/proc/sys/kernel/pid_max"))
}

// unlimitedTasks says whether the kernel asks this process for no RLIMIT_NPROC (fork(2)).
func unlimitedTasks() bool {
	if os.Getuid() == 0 {
		return true
	}
	const sysAdmin, sysResource = 1 << 21, 1 << 24
	for line := range strings.Lines(word("/proc/self/status")) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return caps&(sysAdmin|sysResource) != 0
		}
	}
	return false
}

// tasksOf counts the threads of a user's processes that can be seen.
func tasksOf(uid int) int {
	all, _ := filepath.Glob("/proc/[0-9]*")
	n := 0
	for _, path := range all {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil || int(st.Uid) != uid {
			continue
		}
		threads, err := os.ReadDir(filepath.Join(path, "task"))
		if err == nil {
			n += len(threads)
		}
	}
	return n
}

// countedLimit is a limit of a cgroup with what is used of it.
type countedLimit struct {
	file     string
	max, now int
}

func (c countedLimit) String() string {
	return fmt.Sprintf("the processes and threads of a cgroup (%s): %d allowed, %d in use", c.file, c.max, c.now)
}

// pidCgroups are the limits of our cgroup and of those above it, as far as they can be seen.
func pidCgroups() []countedLimit {
	var out []countedLimit
	for _, folder := range cgroupsAbove("pids") {
		most, err := strconv.Atoi(word(filepath.Join(folder, "pids.max")))
		now, wrong := strconv.Atoi(word(filepath.Join(folder, "pids.current")))
		if err == nil && wrong == nil {
			out = append(out, countedLimit{filepath.Join(folder, "pids.max"), most, now})
		}
	}
	return out
}

// cgroupsAbove are the folders of our own cgroup that count for a controller, deepest first: of version 2, or of the
// hierarchy of version 1 that has it.
func cgroupsAbove(controller string) []string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		field := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(field) != 3 || field[1] != "" && !slices.Contains(strings.Split(field[1], ","), controller) {
			continue
		}
		for mount := range strings.Lines(string(mounts)) {
			before, after, _ := strings.Cut(mount, " - ")
			at, of := strings.Fields(before), strings.Fields(after)
			if len(at) < 5 || len(of) < 3 {
				continue
			}
			v2 := field[1] == "" && of[0] == "cgroup2"
			v1 := field[1] != "" && of[0] == "cgroup" && slices.Contains(strings.Split(of[2], ","), controller)
			below, err := filepath.Rel(at[3], field[2])
			if !v1 && !v2 || err != nil || !filepath.IsLocal(below) {
				continue
			}
			for ; ; below = filepath.Dir(below) {
				out = append(out, filepath.Join(at[4], below))
				if below == "." {
					break
				}
			}
		}
	}
	return out
}

// MemoryLimit is how many bytes the cgroups of this process allow it and its neighbours there, at the narrowest, and
// which file says so; 0 without a limit.
func MemoryLimit() (bytes int64, file string) {
	for _, folder := range cgroupsAbove("memory") {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			n, err := strconv.ParseInt(word(filepath.Join(folder, name)), 10, 64)
			if err == nil && n < 1<<60 && (bytes == 0 || n < bytes) {
				bytes, file = n, filepath.Join(folder, name)
			}
		}
	}
	return bytes, file
}

// memoryLimit names the limits of memory that there are.
func memoryLimit() string {
	var all []string
	if n, is := AddressLimit(); is {
		all = append(all, fmt.Sprintf("the address space of one process (ulimit -v): %d KiB allowed", n>>10))
	}
	if n, file := MemoryLimit(); n > 0 {
		all = append(all, fmt.Sprintf("the memory of a cgroup (%s): %d MiB allowed", file, n>>20))
	}
	for line := range strings.Lines(word("/proc/meminfo")) {
		if free, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			all = append(all, "the memory of the machine: "+strings.TrimSpace(free)+" available")
		}
	}
	return strings.Join(all, "; ")
}

// room says which disk or cgroup is full.
func room(err error) string {
	path := ""
	if at := new(fs.PathError); errors.As(err, &at) {
		path = at.Path
	}
	what := "the room on the disk"
	switch {
	case errors.Is(err, unix.EDQUOT):
		what = fmt.Sprintf("the disk quota of uid %d", os.Geteuid())
	case strings.HasPrefix(path, "/sys/fs/cgroup"):
		return "the number of cgroups below another (cgroup.max.descendants, cgroup.max.depth): " + filepath.Dir(path)
	}
	if path == "" {
		return what
	}
	var st unix.Statfs_t
	for folder := path; ; folder = filepath.Dir(folder) {
		if unix.Statfs(folder, &st) == nil {
			return fmt.Sprintf("%s of %s: %d MiB and %d inodes free", what, path, int64(st.Bavail)*st.Bsize>>20, st.Ffree)
		}
		if folder == filepath.Dir(folder) {
			return what + " of " + path
		}
	}
}

// word is the content of a small file, trimmed; empty if it cannot be read.
func word(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Reserve is descriptors that are held back, so that there are some for what must be started when everything else
// has used up the others.
type Reserve struct {
	keep chan *os.File // closed files are not in it
}

// HoldBack holds back n descriptors, or as many as there are.
func HoldBack(n int) *Reserve {
	r := &Reserve{keep: make(chan *os.File, n)}
	r.refill()
	return r
}

func (r *Reserve) refill() {
	for range cap(r.keep) {
		f, err := os.OpenFile(os.DevNull, os.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		select {
		case r.keep <- f:
		default:
			f.Close()
			return
		}
	}
}

// Lend gives the descriptors up until back is called. Who starts something at the same time shares them.
func (r *Reserve) Lend() (back func()) {
	for {
		select {
		case f := <-r.keep:
			f.Close()
			continue
		default:
		}
		return r.refill
	}
}

// ExitLacks is what a program of ours ends with when a limit of the machine kept it from starting; EX_OSERR of
// sysexits(3). Its last line names the limit.
const ExitLacks = 71

// SpareThreads has Go's runtime make n threads and keep them idle: where the machine gives no more, the runtime would
// end the program for want of one.
func SpareThreads(n int) {
	var locked, left sync.WaitGroup
	goOn := make(chan struct{})
	for range n {
		locked.Add(1)
		left.Go(func() {
			runtime.LockOSThread()
			locked.Done()
			<-goOn
			runtime.UnlockOSThread()
		})
	}
	locked.Wait()
	close(goOn)
	left.Wait()
}
