package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// findCgroup returns the folder of our own version 2 cgroup if a leaf can be made in it, a process born
// into the leaf, and the leaf removed; otherwise the empty string.
func (k *Keeper) findCgroup() string {
	own, err := CgroupOf(os.Getpid())
	if err == nil {
		err = k.tryLeaf(own)
	}
	if err != nil {
		k.log.Debug("no cgroup leaves", "err", err)
		return ""
	}
	return own
}

// CgroupOf returns the folder of a process's version 2 cgroup, below a mount of cgroup2, which may lie anywhere
// (cgroups(7)).
func CgroupOf(pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	path, found := "", false
	for line := range strings.Lines(string(text)) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path, found = p, true
		}
	}
	if !found {
		return "", errors.New("no cgroup of version 2")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		field := strings.Fields(before)
		if len(field) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		below, err := filepath.Rel(field[3], path)
		if err != nil || !filepath.IsLocal(below) {
			continue
		}
		folder := filepath.Join(field[4], below)
		pids, err := pidsIn(folder)
		if err == nil && slices.Contains(pids, pid) {
			return folder, nil
		}
	}
	return "", fmt.Errorf("no mount shows cgroup %s", path)
}

// tryLeaf proves that leaves work, by one. Where our own cgroup was killed before, children are born
// dead; that shows here too.
func (k *Keeper) tryLeaf(own string) error {
	path := filepath.Join(own, fmt.Sprintf("vigil-try-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	defer func() { _ = removeSoon(path) }() // one that stays is found by the next start
	program, err := exec.LookPath("true")
	if err != nil {
		return nil // then the first start shows
	}
	leaf, err := os.Open(path)
	if err != nil {
		return err
	}
	defer leaf.Close()
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(leaf.Fd())}
	return k.Run(cmd)
}

// startInLeaf runs start on the forking thread, with the child born into a new leaf where that can be
// done. A machine that does not let us costs the leaf, never the start.
func (k *Keeper) startInLeaf(p *Process, leaf string, sys *syscall.SysProcAttr, start func() error) error {
	own := k.cgroup
	if leaf == "" || own == "" {
		return k.fork(start)
	}
	dir, err := makeLeaf(own, leaf)
	if err != nil {
		return err
	}
	defer dir.Close()
	p.leaf = leaf
	sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
	if k.fork(start) == nil {
		return nil
	}
	p.leaf = ""
	sys.UseCgroupFD = false
	_ = removeLeaves(own, leaf, time.Second) // an empty leaf that stays harms nobody
	if err := k.fork(start); err != nil {
		return err
	}
	k.log.Warn("process started without a cgroup leaf", "command", p.name, "pid", p.id.PID, "leaf", leaf)
	return nil
}

// makeLeaf makes a leaf that was never used: one that was killed would kill what is born into it. An
// empty one of that name is replaced; one with processes in it is an error.
func makeLeaf(own, leaf string) (*os.File, error) {
	if !filepath.IsLocal(leaf) {
		return nil, fmt.Errorf("make cgroup leaf %q: it leads out of our own cgroup", leaf)
	}
	path := filepath.Join(own, leaf)
	var err error
	for range 10 { // somebody may remove the folder above it at this moment, because it is empty
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			continue
		}
		err = os.Mkdir(path, 0o755)
		if errors.Is(err, fs.ErrExist) {
			if rm := removeUntil(path, time.Now().Add(50*time.Millisecond)); rm != nil {
				pids, _ := pidsIn(path)
				return nil, fmt.Errorf("make cgroup leaf %s: it is in use by pids %v: %w", leaf, pids, rm)
			}
			continue
		}
		if err == nil {
			return os.Open(path)
		}
	}
	return nil, fmt.Errorf("make cgroup leaf %s: %w", leaf, err)
}

// leavesBelow returns the folders at and below prefix, deepest first.
func leavesBelow(own, prefix string) []string {
	if own == "" || prefix == "" || !filepath.IsLocal(prefix) {
		return nil
	}
	var found []string
	_ = filepath.WalkDir(filepath.Join(own, prefix), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // it has been removed meanwhile
		}
		if d.IsDir() {
			found = append(found, path)
		}
		return nil
	})
	slices.Reverse(found)
	return found
}

// pidsIn lists the processes of one cgroup folder.
func pidsIn(folder string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for word := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 0 { // 0: of a foreign pid namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killLeaf ends all processes of one leaf at one instant, which a tree that forks cannot outrun. Older
// kernels have no cgroup.kill; there the signals by pid have to do.
func killLeaf(folder string) {
	f, err := os.OpenFile(filepath.Join(folder, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString("1")
}

// removeLeaves removes the empty folders at and below prefix, and those above it that are empty then,
// up to our own cgroup. A folder that has processes stays, and is returned with the cause.
func removeLeaves(own, prefix string, patience time.Duration) error {
	var errs []error
	until := time.Now().Add(patience)
	for _, folder := range leavesBelow(own, prefix) {
		err := removeUntil(folder, until)
		if err != nil {
			errs = append(errs, err)
		}
	}
	if prefix == "" || !filepath.IsLocal(prefix) || own == "" {
		return nil
	}
	for above := filepath.Dir(prefix); above != "."; above = filepath.Dir(above) {
		if err := os.Remove(filepath.Join(own, above)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			break // others are in it
		}
	}
	return errors.Join(errs...)
}

// removeSoon removes a cgroup folder, waiting a moment for processes that are just ending.
func removeSoon(path string) error { return removeUntil(path, time.Now().Add(time.Second)) }

func removeUntil(path string, until time.Time) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		err := os.Remove(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(until) {
			return err
		}
		<-tick.C
	}
}
