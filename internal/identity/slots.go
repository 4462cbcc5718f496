package identity

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"vigil/internal/journal"
	"vigil/internal/proc"
)

// Moment is how a moment of another start is told.
const Moment = "2006-01-02 15:04:05"

// Home is a state directory whose lock is held.
type Home struct {
	Name string // of the job
	Dir  string
	Lock *proc.FileLock
	Note []string // what the user is to know of the choice, a sentence each
}

// Shared says whether the command that the home was chosen for may mean another run: one beside it, or, outside the
// scheduler's job, another experiment's. What an earlier version has kept is found by its name only.
func (h Home) Shared() bool {
	own, _ := readNote(h.Dir)
	if own.Key == "" || len(own.Slurm) > 0 {
		return true
	}
	states := filepath.Dir(h.Dir)
	dirs, _ := os.ReadDir(states) // it is there: ours lies in it
	return slices.ContainsFunc(dirs, func(e os.DirEntry) bool {
		n, _ := readNote(filepath.Join(states, e.Name()))
		return n.Key == own.Key && e.Name() != h.Name
	})
}

// Options of a choice.
type Options struct {
	States  string // where the state directories of all jobs of the user lie
	Resume  bool   // the last run is wanted, also one that is closed
	Old     string // name that an earlier version gave to every script of this file's name
	Version string // of this program
}

// HeldError says that a name's run is alive.
type HeldError struct {
	Name  string
	PID   int    // 0: not known
	Since string // when its controller has begun
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("--name %s: %s: end that run with \"kill %d\", or give this one another name", e.Name, e.living(), e.PID)
}

func (e *HeldError) living() string {
	return fmt.Sprintf("%s is running (pid %d, since %s)", e.Name, e.PID, e.Since)
}

// Since says when the lock at path was taken.
func Since(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "just now"
	}
	return info.ModTime().Format(Moment)
}

// slot is one of the state directories of an experiment: NAME, NAME-2, ...
type slot struct {
	number int
	name   string
	dir    string
	lock   *proc.FileLock
	known  bool // there was a run
	open   bool
	at     time.Time // when it ended or was last heard of
}

func (s *slot) release() {
	if s != nil && s.lock != nil {
		_ = s.lock.Unlock()
	}
}

// lockFile is the lock of a state directory's controller, journalFile its journal.
const (
	lockFile    = "controller.lock"
	journalFile = "journal.db"
)

// Named takes the state directory that a name stands for. One that is in use is a *HeldError.
func Named(o Options, name string, id Identity) (Home, error) {
	dir := filepath.Join(o.States, name)
	if err := makeFolder(dir); err != nil {
		return Home{}, err
	}
	lock, err := lock(filepath.Join(dir, lockFile))
	if held := new(proc.LockedError); errors.As(err, &held) {
		return Home{}, &HeldError{name, held.PID, Since(held.Path)}
	} else if err != nil {
		return Home{}, fmt.Errorf("use the state directory: %w", err)
	}
	if _, ours := readNote(dir); !ours { // a slot's own name is its experiment's still
		err = writeNote(dir, note{Identity: id})
	}
	return Home{Name: name, Dir: dir, Lock: lock}, err
}

// Take chooses the state directory of an experiment's next run: the lowest that was left open and is nobody's now, else the
// lowest that is free. One that is alive is never touched. With Resume it is that of the run that was heard of last.
func Take(o Options, id Identity) (Home, error) {
	name, err := claimName(o.States, id)
	if err != nil {
		return Home{}, err
	}
	choosing, err := waitFor(filepath.Join(o.States, name, "slots.lock"))
	if err != nil {
		return Home{}, err
	}
	defer func() { _ = choosing.Unlock() }()
	c := choice{Options: o, id: id, name: name}
	s, err := c.choose()
	if err != nil {
		return Home{}, err
	}
	if s == nil { // nothing is known of it
		if old, found := c.old(); found {
			return old, nil
		}
		return Home{}, &NothingToResumeError{Folder: id.Folder, Others: c.others()}
	}
	return Home{Name: s.name, Dir: s.dir, Lock: s.lock, Note: c.notes}, writeNote(s.dir, note{id.key(), id})
}

// claimName returns the experiment's name, and makes its folder.
func claimName(states string, id Identity) (string, error) {
	var name string
	for _, name = range id.names() {
		n, there := readNote(filepath.Join(states, name))
		if !there || n.Key == id.key() {
			break
		}
	}
	return name, makeFolder(filepath.Join(states, name))
}

// makeFolder makes a state directory that is ours alone.
func makeFolder(dir string) error {
	f, err := proc.MakeFolder(dir, 0o700)
	if err != nil {
		return fmt.Errorf("make the state directory %s: %w; --state-dir names another", dir, err)
	}
	return f.Close()
}

// choice is one choice of a slot.
type choice struct {
	Options
	id     Identity
	name   string
	living []HeldError
	known  bool // some slot has had a run
	notes  []string
}

// choose returns a slot with its lock; nil: there is none to be resumed.
func (c *choice) choose() (*slot, error) {
	var chosen, free *slot
	var left []string
	numbers, err := c.numbers()
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
		s, err := c.enter(n)
		if err != nil {
			chosen.release()
			free.release()
			return nil, err
		}
		switch {
		case s == nil: // alive
		case c.Resume && s.known && (chosen == nil || s.at.After(chosen.at)):
			chosen.release()
			chosen = s
		case !c.Resume && s.open && chosen == nil:
			chosen = s
		case !c.Resume && !s.open && free == nil:
			free = s
		default:
			if s.open {
				left = append(left, s.name)
			}
			s.release()
		}
	}
	switch {
	case c.Resume || chosen != nil:
		free.release()
	case free != nil:
		chosen = free
	default:
		if chosen, err = c.fresh(numbers); err != nil {
			return nil, err
		}
	}
	if chosen != nil {
		c.say(chosen, left)
	}
	return chosen, nil
}

// say notes what is to be known of the choice.
func (c *choice) say(chosen *slot, left []string) {
	if !chosen.open && !c.Resume && len(c.living) > 0 {
		c.notes = append(c.notes, fmt.Sprintf("%s: this run begins beside it as %s", c.living[0].living(), chosen.name))
	}
	if len(left) > 0 {
		c.notes = append(c.notes, fmt.Sprintf("goes on with %s; %s was left open too, and is next for the same command", chosen.name, strings.Join(left, ", ")))
	}
	if !c.known {
		c.sayOld(chosen.name)
	}
}

// nameOf is that of a slot.
func (c *choice) nameOf(number int) string {
	if number == 1 {
		return c.name
	}
	return c.name + "-" + strconv.Itoa(number)
}

// numbers are those of the slots that are there, ascending.
func (c *choice) numbers() ([]int, error) {
	entries, err := os.ReadDir(c.States)
	if err != nil {
		return nil, fmt.Errorf("look for runs: %w", err)
	}
	var all []int
	for _, e := range entries {
		number := 1
		if e.Name() != c.name {
			text, is := strings.CutPrefix(e.Name(), c.name+"-")
			n, err := strconv.Atoi(text)
			if !is || err != nil || n < 2 || strconv.Itoa(n) != text {
				continue
			}
			number = n
		}
		if e.IsDir() {
			all = append(all, number)
		}
	}
	slices.Sort(all)
	return all, nil
}

// fresh makes the lowest slot that is not there.
func (c *choice) fresh(numbers []int) (*slot, error) {
	number := 1
	for slices.Contains(numbers, number) {
		number++
	}
	if err := makeFolder(filepath.Join(c.States, c.nameOf(number))); err != nil {
		return nil, err
	}
	s, err := c.enter(number)
	if s == nil && err == nil {
		err = fmt.Errorf("%s has just been taken by another run: try again", c.nameOf(number))
	}
	return s, err
}

// enter takes the lock of a slot and looks what is in it; nil: its run is alive.
func (c *choice) enter(number int) (*slot, error) {
	s := &slot{number: number, name: c.nameOf(number), dir: filepath.Join(c.States, c.nameOf(number))}
	var err error
	s.lock, err = lock(filepath.Join(s.dir, lockFile))
	if held := new(proc.LockedError); errors.As(err, &held) {
		c.living = append(c.living, HeldError{s.name, held.PID, Since(held.Path)})
		c.known = true
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("use the state directory: %w", err)
	}
	run, at, err := lastRun(s.dir, s.name, c.Version)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case errors.As(err, new(*journal.HeldError)): // somebody has removed the lock of one that is alive
		c.living, c.known = append(c.living, HeldError{Name: s.name, Since: "not known"}), true
		s.release()
		return nil, nil
	case err != nil: // who takes it is told what is wrong with it
		s.known, s.open = true, true
	default:
		s.known, s.open, s.at = run.UID != "", run.UID != "" && run.Closed == nil, at
	}
	c.known = c.known || s.known
	if host, _ := os.Hostname(); s.open && err == nil && run.Left == nil && run.Host != host { // it may be alive there
		c.living = append(c.living, HeldError{Name: s.name + " on " + run.Host, Since: run.Began.Local().Format(Moment)})
		s.release()
		return nil, nil
	}
	return s, nil
}

// lastRun is the run that a state directory knows, and when it ended or was last heard of.
func lastRun(dir, name, version string) (journal.Run, time.Time, error) {
	path := filepath.Join(dir, journalFile)
	info, err := os.Stat(path)
	if err != nil {
		return journal.Run{}, time.Time{}, err
	}
	j, err := journal.Open(path, journal.Options{Job: name, Version: version})
	if err != nil {
		return journal.Run{}, info.ModTime(), err
	}
	run, _, err := j.LastRun()
	at := info.ModTime()
	if end := run.Last(); end != nil {
		at = end.At
	}
	return run, at, cmp.Or(err, j.Close())
}
