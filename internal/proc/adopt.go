package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// AdoptChild makes a Process of a child of ours that nobody here started: a fork server of ours forked it
// and its own parent has ended, so that it fell to us. Everything then holds as for one that Start made from
// s, its exit status too, but that it is moved into its leaf instead of being born there and that it leads a
// session only once it has made one. It must not start anything before this has returned. The error says that it
// is no living child of ours that is free to be adopted.
func (k *Keeper) AdoptChild(s Spec, id Ident) (*Process, error) {
	pid := id.PID
	err := k.claim(id)
	if err != nil {
		return nil, fmt.Errorf("adopt pid %d: %w", pid, err)
	}
	p := &Process{keeper: k, id: id, name: s.Path, mark: lookupEnv(s.Env, Mark), pidfd: -1, done: make(chan struct{}), oom: countOOM(k.oomFiles)}
	if p.leaf, err = k.moveIntoLeaf(pid, s.Leaf); err != nil {
		k.forget(pid)
		return nil, fmt.Errorf("adopt pid %d: %w", pid, err)
	}
	if p.child, err = os.FindProcess(pid); err != nil { // nobody else waits for it, so it is there, dead or alive
		k.forget(pid)
		return nil, fmt.Errorf("adopt pid %d: %w", pid, err)
	}
	k.mu.Lock()
	k.children[pid] = p
	k.mu.Unlock()
	go p.wait()
	return p, nil
}

// claim has the reaper leave a child alone, so that its pid is its own from here on.
func (k *Keeper) claim(id Ident) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, err := readEntry(id.PID)
	_, known := k.children[id.PID]
	switch {
	case err != nil || e.Ident != id || !e.alive():
		return errors.New("it has ended")
	case known:
		return errors.New("it is ours already")
	case e.Parent != k.self.PID:
		return fmt.Errorf("it is no child of ours, but of pid %d", e.Parent)
	}
	k.children[id.PID] = nil
	return nil
}

// moveIntoLeaf puts a process into a new leaf and returns the leaf; empty where leaves are not made. It is an
// error if it cannot be moved: it would stay in the leaf of who forked it, and end with that.
func (k *Keeper) moveIntoLeaf(pid int, leaf string) (string, error) {
	if leaf == "" || k.cgroup == "" {
		return "", nil
	}
	dir, err := makeLeaf(k.cgroup, leaf)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	err = os.WriteFile(filepath.Join(dir.Name(), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	if err != nil {
		_ = removeSoon(dir.Name()) // an empty leaf that stays harms nobody
		return "", fmt.Errorf("move into cgroup leaf %s: %w", leaf, err)
	}
	return leaf, nil
}
