package proc

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A note is believed only where it proves that a process is ours: it must be of this boot and pid namespace, a regular
// file of our user that nobody else can write. A pid that has gone to another process names nobody.
// shows: FAULT-C8
func TestATreeNoteIsBelievedOnlyWhereItIsProof(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	p := startOne(t, k, Spec{Path: "sleep", Args: []string{"1000"}})
	good := noteFile{Boot: bootID(), Namespace: pidNamespace(), Processes: []notedProcess{{PID: p.PID(), Start: p.StartTime(), Session: p.PID()}}}
	for name, c := range map[string]struct {
		change func(*noteFile)
		file   func(path string) error
		finds  int // processes of the tree
	}{
		"as it was written":         {finds: 1},
		"of another boot":           {change: func(n *noteFile) { n.Boot = "another" }},
		"without a boot":            {change: func(n *noteFile) { n.Boot = "" }},
		"of another pid namespace":  {change: func(n *noteFile) { n.Namespace = "pid:[1]" }},
		"the pid is another's now":  {change: func(n *noteFile) { n.Processes[0].Start-- }},
		"others may write it":       {file: func(path string) error { return os.Chmod(path, 0o620) }},
		"it is a symbolic link":     {file: func(path string) error { return os.Rename(path, path+".x") }},
		"it is no list of anything": {file: func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) }},
		"it is a pipe": {file: func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return unix.Mkfifo(path, 0o600)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := good
			n.Processes = []notedProcess{good.Processes[0]}
			if c.change != nil {
				c.change(&n)
			}
			src, err := json.Marshal(n)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "job-12345678-actor-0.tree")
			if err := os.WriteFile(path, src, 0o600); err != nil {
				t.Fatal(err)
			}
			if c.file != nil {
				if err := c.file(path); err != nil {
					t.Fatal(err)
				}
			}
			if name == "it is a symbolic link" {
				if err := os.Symlink(path+".x", path); err != nil {
					t.Fatal(err)
				}
			}
			tree := ReadTreeNote(path)
			found := 0
			if len(tree.Processes)+len(tree.Sessions) > 0 {
				found = len(k.Remains(tree))
			}
			if found != c.finds {
				t.Errorf("%d processes are taken for ours, want %d", found, c.finds)
			}
		})
	}
}

// What lives is noted, and only that; when nothing does the note is gone. A note that somebody has removed is back.
func TestATreeNoteFollowsWhatLives(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	path := filepath.Join(t.TempDir(), "job-12345678-actor-0.tree")
	n := k.NoteTree(path)
	p := startOne(t, k, Spec{Path: "/bin/sh", Args: []string{"-c", "sleep 1000 & setsid sleep 1000 & wait"}})
	if err := n.Add(p); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its two children are noted", func() bool {
		if err := n.Look([]*Process{p}); err != nil {
			t.Fatal(err)
		}
		tree := ReadTreeNote(path)
		return len(tree.Processes) == 3 && len(tree.Sessions) == 2
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := n.Look([]*Process{p}); err != nil || Gone(path) {
		t.Errorf("the note is not back: %v", err)
	}
	// Another that goes on with the note knows them without being told of anybody.
	if tree := ReadTreeNote(path); len(tree.Processes) != 3 {
		t.Errorf("noted: %+v", tree)
	}
	if _, err := k.Clear(t.Context(), p.Tree()); err != nil {
		t.Fatal(err)
	}
	if err := k.NoteTree(path).Look(nil); err != nil || !Gone(path) {
		t.Errorf("the note of processes that are gone is still there: %v", err)
	}
}

// startOne starts a process that is cleared away at the end.
func startOne(t *testing.T, k *Keeper, spec Spec) *Process {
	t.Helper()
	p, err := k.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := k.Clear(context.Background(), p.Tree()); err != nil {
			t.Error(err)
		}
	})
	return p
}
