package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// sharing starts a service whose worker shares memory, and waits until it has noted that. It returns
// the file.
func (b *bench) sharing(t *testing.T) (*Service, string) {
	t.Helper()
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip("THIS MACHINE HAS NO /dev/shm: not shown here")
	}
	path := fmt.Sprintf("/dev/shm/vigil-test-%d-%s", os.Getpid(), b.job)
	t.Cleanup(func() { os.Remove(path) })
	env := b.env("sharing")
	env["TEST_SHM"] = path
	s, err := b.Start(context.Background(), Spec{Role: "actor", Incarnation: 1, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service notes the memory", func() bool {
		_, err := os.Stat(proc.ShmNote(b.o.LogDir, "actor", 0))
		return err == nil
	})
	return s, path
}

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func TestAKilledServicesSharedMemoryIsClearedWithIt(t *testing.T) {
	eachWay(t, func(t *testing.T, b *bench) {
		s, path := b.sharing(t)
		if err := unix.Kill(s.PID(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		if _, err := b.Clear(context.Background(), "actor", 0); err != nil {
			t.Fatal(err)
		}
		if !isGone(path) || !isGone(proc.ShmNote(b.o.LogDir, "actor", 0)) {
			t.Error("the memory, or the note of it, is left behind")
		}
	})
}

func TestSharedMemoryThatOthersUseIsTriedAgainWhenTheJobEnds(t *testing.T) {
	b := newBench(t, proc.NoCgroups)
	_, path := b.sharing(t)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := b.Stop(context.Background(), "actor", 0, 0); err != nil {
		t.Fatal(err)
	}
	if isGone(path) {
		t.Fatal("it was taken from a living process")
	}
	f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if !isGone(path) {
		t.Error("it is left behind")
	}
}
