package takeover

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/internal/role"
)

// begun starts the small job and waits until all is well.
func begun(j *job) standing {
	j.t.Helper()
	j.start()
	return j.well("all is well")
}

// well waits until every role is, and makes steps.
func (j *job) well(what string) standing {
	j.t.Helper()
	var now standing
	j.eventually(what, func() (err error) {
		if now, err = j.look(); err == nil {
			err = now.ill()
		}
		return err
	})
	j.goesOn(now)
	return now
}

// dead kills a worker.
func (j *job) dead(name string, of standing) {
	j.t.Helper()
	if err := syscall.Kill(of.pid(name), syscall.SIGKILL); err != nil {
		j.t.Fatalf("kill %s: %v", name, err)
	}
}

// writable lets the controller's process write files, or fails every one of its writes.
func (j *job) writable(may bool) {
	j.t.Helper()
	limit := unix.Rlimit{Cur: 1, Max: unix.RLIM_INFINITY}
	if may {
		limit.Cur = unix.RLIM_INFINITY
	}
	if err := unix.Prlimit(j.cmd.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		j.t.Fatal(err)
	}
}

// waitsForTheJournal waits until it is said that the disk takes nothing and the critic, whose worker has
// died, waits for its repair.
func (j *job) waitsForTheJournal() {
	j.t.Helper()
	j.eventually("the operator is told, and the repair waits", func() error {
		if !strings.Contains(j.log(j.starts), "the journal cannot be written") {
			return errors.New("it does not say that the journal cannot be written")
		}
		now, err := j.look()
		if err != nil {
			return err
		}
		if critic := now.roles["critic"]; critic.State != role.Repairing || critic.Workers[0].PID != 0 {
			return fmt.Errorf("the critic is %+v", critic)
		}
		return nil
	})
}

// goOn waits until these roles have made steps.
func (j *job) goOn(names ...string) {
	j.t.Helper()
	var from standing
	j.eventually("the controller answers", func() (err error) { from, err = j.look(); return err })
	j.eventually("the others go on", func() error {
		now, err := j.look()
		for _, n := range names {
			if err == nil && now.roles[n].CurrentStep < from.roles[n].CurrentStep+5 {
				err = fmt.Errorf("%s is at step %d", n, now.roles[n].CurrentStep)
			}
		}
		return err
	})
}

// shows: A49
func TestWhatCannotBeRecordedIsNotDone(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	j.piped = true
	was := begun(j)
	j.writable(false)
	j.dead("critic/0", was)
	j.waitsForTheJournal()
	j.goOn("actor", "engine")
	j.writable(true)
	now := j.well("the critic is repaired once the disk takes it")
	if !strings.Contains(j.log(j.starts), "the journal is written again") {
		t.Error("it is not said that the journal is written again")
	}
	if got := now.spent(); got != (spent{critic: 1}) {
		t.Errorf("%+v is spent, want one restart of the critic", got)
	}

	// The controller dies before it can be recorded: the next one knows nothing of the decision, and takes it.
	j.writable(false)
	j.dead("critic/0", now)
	j.waitsForTheJournal()
	j.kill()
	after := j.well("the next controller repairs the critic")
	if got := after.spent(); got != (spent{critic: 2}) {
		t.Errorf("%+v is spent, want two restarts of the critic", got)
	}
	j.unharmed(was, after, "critic")
	j.interrupt(func() {})
	j.livedOnce()
}

// On a disk without a free byte the journal goes on with the room that it has, so failures are repaired
// and controllers may change. What needs room of its own is said, and the job goes on.
func TestAFullDiskStopsNeitherRepairsNorTakeovers(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	state := filepath.Join(j.dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Skipf("SKIPPED: a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	was := begun(j)
	ballast, err := os.Create(filepath.Join(state, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = ballast.Write(make([]byte, 4096))
	}
	if _ = ballast.Close(); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	j.dead("critic/0", was)
	j.eventually("the critic is repaired", func() error {
		now, err := j.look()
		if err == nil && now.roles["critic"].Incarnation == 1 {
			err = errors.New("it is not yet")
		}
		return err
	})
	j.well("all is well on a full disk")
	if !strings.Contains(j.log(j.starts), "no space left on device") {
		t.Error("nobody is told that the disk is full")
	}
	j.kill()
	now := j.well("all is well after a change of the controller")
	if got := now.spent(); got != (spent{critic: 1}) || now.pid("actor/0") != was.pid("actor/0") {
		t.Errorf("%+v is spent, want one restart of the critic; the actor had pid %d and has %d", got, was.pid("actor/0"), now.pid("actor/0"))
	}
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	j.interrupt(func() {})
	j.livedOnce()
}

// ownDisk puts the state directory on a file system of its own, which becomes read-only at its first error. It
// returns the folder, and what triggers an error.
func (j *job) ownDisk() (state, trigger string) {
	j.t.Helper()
	image := filepath.Join(j.dir, "disk")
	state = filepath.Join(j.dir, "state")
	err := errors.Join(os.Mkdir(state, 0o700), os.WriteFile(image, nil, 0o600), os.Truncate(image, 64<<20))
	if err != nil {
		j.t.Fatal(err)
	}
	for _, words := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop,errors=remount-ro", image, state}} {
		if said, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			j.t.Skipf("SKIPPED: a file system of its own cannot be had here: %v: %v: %s", words, err, said)
		}
	}
	j.t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		j.t.Fatal(err)
	}
	device := regexp.MustCompile(`(?m)^/dev/(loop\d+) ` + regexp.QuoteMeta(state) + ` ext4 `).FindSubmatch(mounts)
	if device == nil {
		j.t.Fatalf("no loop device is mounted on %s", state)
	}
	return state, filepath.Join("/sys/fs/ext4", string(device[1]), "trigger_fs_error")
}

// freeze has every write to the file system of a folder wait, until thaw.
func freeze(t *testing.T, folder string) (thaw func()) {
	t.Helper()
	const fifreeze, fithaw = 0xc0045877, 0xc0045878 // linux/fs.h
	f, err := os.Open(folder)
	if err == nil {
		err = unix.IoctlSetInt(int(f.Fd()), fifreeze, 0)
	}
	if err != nil {
		t.Fatalf("freeze %s: %v", folder, err)
	}
	thaw = sync.OnceFunc(func() {
		if err := errors.Join(unix.IoctlSetInt(int(f.Fd()), fithaw, 0), f.Close()); err != nil {
			t.Errorf("thaw %s: %v", folder, err)
		}
	})
	t.Cleanup(thaw)
	return thaw
}

// A disk that answers no write and no fsync holds up what must be recorded first, and nothing else.
// shows: A49
func TestADiskThatStallsHoldsUpDecisionsOnly(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	state, _ := j.ownDisk()
	was := begun(j)
	thaw := freeze(t, state)
	j.dead("critic/0", was)
	j.eventually("the operator is told, and the repair waits", func() error {
		now, err := j.look()
		switch {
		case err != nil:
			return err
		case !regexp.MustCompile(`the disk has not answered for [2-9]`).MatchString(now.job.Why):
			return fmt.Errorf("the job says %q", now.job.Why)
		case now.roles["critic"].State != role.Repairing || now.roles["critic"].Workers[0].PID != 0:
			return fmt.Errorf("the critic is %+v", now.roles["critic"])
		}
		return nil
	})
	j.goOn("actor", "engine")
	thaw()
	now := j.well("the critic is repaired once the disk answers")
	if got := now.spent(); got != (spent{critic: 1}) {
		t.Errorf("%+v is spent, want one restart of the critic", got)
	}
	j.unharmed(was, now, "critic")
	j.interrupt(func() {})
	j.livedOnce()
}

// shows: A49
func TestADiskThatTurnsReadOnlyIsToldAndTheJobGoesOn(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	_, trigger := j.ownDisk()
	was := begun(j)
	if err := os.WriteFile(trigger, []byte("a test\n"), 0); err != nil {
		t.Skipf("SKIPPED: this kernel makes no errors for tests: %v", err)
	}
	j.dead("critic/0", was)
	j.waitsForTheJournal()
	j.goOn("actor", "engine")
	j.interrupt(func() {}) // Ctrl-C ends it, whatever the disk says
	j.livedOnce()
}

// shows: A49
func TestAStateDirectoryThatCannotBeWrittenIsRefusedAndTheJobGoesOn(t *testing.T) {
	t.Parallel()
	j := prepare(t, os.Geteuid() == 0, smallJob) // an ordinary user, for nothing is forbidden to root
	was := begun(j)
	j.kill()
	state := filepath.Join(j.dir, "state")
	for _, file := range []string{"journal.db", "controller.lock"} {
		if err := os.Chmod(filepath.Join(state, file), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(state, 0o500); err != nil {
		t.Fatal(err)
	}
	said, status := j.refused()
	if status != 2 || !strings.Contains(said, state) || !strings.Contains(said, "permission denied") {
		t.Errorf("it ends with %d and says %s", status, said)
	}
	for _, file := range []string{"journal.db", "controller.lock"} {
		if err := os.Chmod(filepath.Join(state, file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	now := j.well("the next controller goes on")
	j.unharmed(was, now)
	j.interrupt(func() {})
	j.livedOnce()
}
