package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// playSharer is a worker that maps /dev/shm/NAME.RANK for each NAME and waits to be killed.
func playSharer(names []string) int {
	for _, name := range names {
		f, err := os.OpenFile("/dev/shm/"+name+"."+os.Getenv("VIGIL_RANK"), os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			err = f.Truncate(4096)
		}
		if err == nil {
			_, err = unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 98
		}
		f.Close()
	}
	fmt.Println("up")
	select {}
}

// sharer is a role whose workers share memory, and the files that they make.
func sharer(t *testing.T) (job.Role, []string) {
	t.Helper()
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip("THIS MACHINE HAS NO /dev/shm: not shown here")
	}
	name := "vigil-test-" + randomName()
	r := workerOf(`exec "$SELF" ` + name)
	r.Env[playAs] = "share"
	files := []string{"/dev/shm/" + name + ".0", "/dev/shm/" + name + ".1"}
	t.Cleanup(func() {
		for _, f := range files {
			os.Remove(f)
		}
	})
	return r, files
}

// stranger makes a file beside those of the workers.
func stranger(t *testing.T) string {
	t.Helper()
	path := "/dev/shm/vigil-test-" + randomName()
	touch(t, path)
	t.Cleanup(func() { os.Remove(path) })
	return path
}

// onlyLeft checks that of the files only the last is there.
func onlyLeft(t *testing.T, removed []string, stays string) {
	t.Helper()
	for _, path := range removed {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left behind", path)
		}
	}
	if _, err := os.Lstat(stays); err != nil {
		t.Errorf("what is not ours is gone: %v", err)
	}
}

func (s *stage) note() string { return proc.ShmNote(s.logDir(), "critic", 0) }

// awaitNote waits until the service has noted all files.
func (s *stage) awaitNote(files []string) {
	s.t.Helper()
	eventually(s.t, "the workers' shared memory to be noted", func() bool {
		src, _ := os.ReadFile(s.note())
		for _, f := range files {
			if !strings.Contains(string(src), filepath.Base(f)) {
				return false
			}
		}
		return true
	})
}

func TestAStoppedWorkersSharedMemoryIsRemoved(t *testing.T) {
	t.Parallel()
	r, files := sharer(t)
	s := enter(t, r)
	runsOrderly(s)
	other := stranger(t)
	s.must(stop(&api.Stop{}))
	onlyLeft(t, append(files, s.note()), other)
}

func TestAKilledWorkersSharedMemoryIsRemovedAtTheStop(t *testing.T) {
	t.Parallel()
	r, files := sharer(t)
	s := enter(t, r)
	pids := runsOrderly(s)
	other := stranger(t)
	s.awaitNote(files)
	for rank, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		s.ears.awaitState(t, rank, role.WorkerDown)
	}
	s.must(stop(&api.Stop{AfterFailure: true}))
	onlyLeft(t, append(files, s.note()), other)
}

func TestAKilledServicesNoteLeadsToItsWorkersSharedMemory(t *testing.T) {
	slow(t)
	t.Parallel()
	r, files := sharer(t)
	s := enter(t, r)
	pids := runsOrderly(s)
	other := stranger(t)
	s.awaitNote(files)
	if err := s.service.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.awaitExit()
	eventually(t, "its workers to die with it", func() bool {
		return unix.Kill(pids[0], 0) != nil && unix.Kill(pids[1], 0) != nil
	})
	if _, err := proc.ClearShm(s.note()); err != nil {
		t.Error(err)
	}
	onlyLeft(t, append(files, s.note()), other)
}
