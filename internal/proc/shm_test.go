package proc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// shmName returns a name in /dev/shm that nobody else has; what is there at the end is removed.
func shmName(t testing.TB, what string) string {
	t.Helper()
	if !exists(shmDir) {
		t.Skip("THIS MACHINE HAS NO /dev/shm: not shown here")
	}
	name := fmt.Sprintf("vigil-test-%d-%s-%s", os.Getpid(), what, filepath.Base(t.TempDir()))
	t.Cleanup(func() { os.Remove(filepath.Join(shmDir, name)) })
	return name
}

func inShm(name string) bool { return exists(filepath.Join(shmDir, name)) }

func makeShm(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(shmDir, name), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// look looks, with a helper as the only worker.
func look(t *testing.T, s *Shm, p *Process) {
	t.Helper()
	if err := s.Look([]*Process{p}); err != nil {
		t.Fatal(err)
	}
}

func end(t *testing.T, k *Keeper, p *Process) {
	t.Helper()
	if _, err := k.Clear(context.Background(), p.Tree()); err != nil {
		t.Fatal(err)
	}
}

func mustRemove(t *testing.T, s *Shm, ended *Process, names ...string) {
	t.Helper()
	removed, err := s.Clear([]*Process{ended})
	if err != nil {
		t.Error(err)
	}
	var want []string
	for _, name := range names {
		want = append(want, filepath.Join(shmDir, name))
	}
	slices.Sort(want)
	slices.Sort(removed)
	if !slices.Equal(removed, want) {
		t.Errorf("removed %q, want %q", removed, want)
	}
}

func TestSharedMemoryOfAKilledTreeIsRemovedAndNothingElse(t *testing.T) {
	eachWay(t, func(t *testing.T, k *Keeper) {
		before, ours, below, openOnly := shmName(t, "before"), shmName(t, "ours"), shmName(t, "below"), shmName(t, "open")
		readOnly, strangers := shmName(t, "read"), shmName(t, "strangers")
		makeShm(t, before)
		s := k.FollowShm("")
		p, _ := startHelper(t, k, "shm", "map:"+before, "map:"+ours, "child:map:"+below, "open:"+openOnly, "read:"+readOnly)
		makeShm(t, strangers)
		look(t, s, p)
		end(t, k, p)
		mustRemove(t, s, p, ours, below)
		for _, name := range []string{before, openOnly, readOnly, strangers} {
			if !inShm(name) {
				t.Errorf("%s is gone", name)
			}
		}
	})
}

func TestSharedMemoryThatALivingProcessUsesStaysUntilItHasEnded(t *testing.T) {
	for _, verb := range []string{"map", "read", "open"} {
		t.Run(verb, func(t *testing.T) {
			k := newKeeper(t, NoCgroups)
			name := shmName(t, "shared")
			s := k.FollowShm("")
			p, _ := startHelper(t, k, "shm", "map:"+name)
			other, _ := startHelper(t, k, "shm", verb+":"+name)
			look(t, s, p)
			end(t, k, p)
			mustRemove(t, s, p)
			if !inShm(name) {
				t.Fatal("it was taken from a living process")
			}
			s.Begin() // it is ours in the next life, too
			end(t, k, other)
			mustRemove(t, s, p, name)
		})
	}
}

func TestAFileOfTheSameNameIsNotTheSameFile(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	name := shmName(t, "again")
	s := k.FollowShm("")
	p, _ := startHelper(t, k, "shm", "map:"+name)
	look(t, s, p)
	end(t, k, p)
	if err := os.Remove(filepath.Join(shmDir, name)); err != nil {
		t.Fatal(err)
	}
	makeShm(t, name)
	mustRemove(t, s, p)
	if !inShm(name) {
		t.Error("a new file of that name was removed")
	}
}

func TestGlancesFindWhatIsMadeLaterAndTireOfStrangers(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	s := k.FollowShm("")
	late, strangers := shmName(t, "late"), shmName(t, "strangers")
	makeShm(t, strangers)
	p, _ := startHelper(t, k, "shm")
	glance := func() {
		t.Helper()
		if err := s.Glance([]*Process{p}); err != nil {
			t.Fatal(err)
		}
	}
	f, _, _ := shmNamed(strangers)
	for range 2 * looksInVain {
		glance()
	}
	if got := s.vain[f.Inode]; got != looksInVain {
		t.Errorf("a stranger's file was looked at %d times, want %d", got, looksInVain)
	}
	eventually(t, "a glance settles the directory", func() bool {
		glance()
		return !s.settled.IsZero()
	})
	q, _ := startHelper(t, k, "shm", "map:"+late)
	p = q
	eventually(t, "a glance finds the new file", func() bool {
		glance()
		return len(s.ours) == 1
	})
	end(t, k, q)
	mustRemove(t, s, q, late)
}

func TestWhatADeadProgramKnewIsRemovedByItsNote(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	note := filepath.Join(t.TempDir(), "shm/critic.0.json")
	name, shared := shmName(t, "noted"), shmName(t, "shared")
	s := k.FollowShm(note)
	if exists(note) {
		t.Error("there is a note of nothing")
	}
	p, _ := startHelper(t, k, "shm", "map:"+name, "map:"+shared)
	other, _ := startHelper(t, k, "shm", "open:"+shared)
	look(t, s, p)
	end(t, k, p)
	removed, err := ClearShm(note)
	if err != nil || !slices.Equal(removed, []string{filepath.Join(shmDir, name)}) || inShm(name) || !inShm(shared) {
		t.Errorf("removed %q, %v", removed, err)
	}
	end(t, k, other)
	again := k.FollowShm(note) // as the service that takes its place does
	mustRemove(t, again, p, shared)
	if exists(note) {
		t.Error("the note is still there")
	}
	if removed, err := ClearShm(note); len(removed) > 0 || err != nil {
		t.Errorf("without a note: %q, %v", removed, err)
	}
}

func TestANoteLeadsNowhereElse(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(shmDir, victim)
	if err != nil {
		t.Fatal(err)
	}
	f, _, ok := shmNamed(up)
	if !ok {
		t.Fatal("the victim cannot be reached")
	}
	if err := writeShmNote(dir+"/note", []shmFile{f}); err != nil {
		t.Fatal(err)
	}
	if removed, err := ClearShm(dir + "/note"); len(removed) > 0 || err != nil || !exists(victim) {
		t.Errorf("removed %q, %v", removed, err)
	}
}

func TestANoteOfAnEarlierBootCountsNot(t *testing.T) {
	name := shmName(t, "boot")
	makeShm(t, name)
	f, _, _ := shmNamed(name)
	note := filepath.Join(t.TempDir(), "note")
	src := fmt.Sprintf(`{"boot":"another","files":[{"name":%q,"dev":%d,"inode":%d}]}`, f.Name, f.Dev, f.Inode)
	if err := os.WriteFile(note, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	if removed, err := ClearShm(note); len(removed) > 0 || err != nil {
		t.Errorf("removed %q, %v", removed, err)
	}
}

// BenchmarkShm measures what following costs with four workers.
func BenchmarkShm(b *testing.B) {
	k, err := NewKeeper(Options{Cgroups: NoCgroups})
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	var procs []*Process
	for range 4 {
		p, err := k.Start(Spec{Path: "python3", Args: []string{"-c", "import time, ssl, json, multiprocessing; time.sleep(600)"}, DieWithParent: true})
		if err != nil {
			b.Skip(err)
		}
		defer k.Clear(context.Background(), p.Tree())
		procs = append(procs, p)
	}
	<-time.After(time.Second) // until they have mapped their libraries
	measure := func(name string, s *Shm, f func() error) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	empty := k.FollowShm("")
	measure("glance/0 files", empty, func() error { return empty.Glance(procs) })
	measure("look/0 files", empty, func() error { return empty.Look(procs) })
	base := shmName(b, "bench")
	for i := range 50 {
		path := filepath.Join(shmDir, fmt.Sprintf("%s.%d", base, i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			b.Fatal(err)
		}
		defer os.Remove(path)
	}
	known := k.FollowShm("")
	measure("look/50 known files", known, func() error { return known.Look(procs) })
	measure("look/50 new files", empty, func() error { return empty.Look(procs) })
	<-time.After(150 * time.Millisecond)
	measure("glance/50 files", empty, func() error { return empty.Glance(procs) })
	files := make([]shmFile, 0, 50)
	for i := range 50 {
		f, _, _ := shmNamed(fmt.Sprintf("%s.%d", base, i))
		files = append(files, f)
	}
	measure("who uses 50 files", empty, func() error { inUse(files); return nil })
}

func TestWhatAPeerHasMadeIsItsOwnAlthoughNobodyUsesItNow(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	s := k.FollowShm("")
	mine, theirs := shmName(t, "mine"), shmName(t, "theirs")
	p, _ := startHelper(t, k, "shm", "map:"+mine)
	other, _ := startHelper(t, k, "shm", "map:"+theirs)
	if err := s.Look([]*Process{p, other}); err != nil {
		t.Fatal(err)
	}
	end(t, k, p)
	end(t, k, other)
	mustRemove(t, s, p, mine)
	if !inShm(theirs) {
		t.Fatal("the file of a peer, which may open it again, is gone")
	}
	mustRemove(t, s, other, theirs)
}
