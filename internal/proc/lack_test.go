package proc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// shows: FAULT-H4
func TestWhatTheMachineLacksIsNamed(t *testing.T) {
	full := &os.PathError{Op: "open", Path: filepath.Join(t.TempDir(), "log"), Err: unix.ENOSPC}
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("start critic: %w", unix.EMFILE), "ulimit -n"},
		{unix.ENFILE, "fs.file-nr"},
		{unix.ENOMEM, "memory"},
		{full, "inodes free"},
		{&os.PathError{Op: "mkdir", Path: "/sys/fs/cgroup/x/y", Err: unix.ENOSPC}, "cgroup.max.descendants"},
		{forkLack(unix.EAGAIN), "processes and threads"},
	} {
		lack := LackOf(c.err)
		if lack == nil || !strings.Contains(lack.Limit, c.want) || !errors.Is(lack, errors.Unwrap(lack)) {
			t.Errorf("%v: %+v, want that it names %s", c.err, lack, c.want)
		}
	}
	for _, err := range []error{nil, unix.EAGAIN, unix.ENOENT, errors.New("no")} {
		if lack := LackOf(err); lack != nil {
			t.Errorf("%v is taken for lack of %s", err, lack.Limit)
		}
	}
}

func TestACrashForWantOfAThreadIsKnown(t *testing.T) {
	ended := errors.New("exit status 2")
	if lack := CrashLack([]string{"runtime: failed to create new OS thread (have 9 already; errno=11)", "fatal error: newosproc"}, ended); lack == nil || !errors.Is(lack, ended) {
		t.Errorf("got %v", lack)
	}
	if lack := CrashLack([]string{"panic: index out of range"}, ended); lack != nil {
		t.Errorf("got %v", lack)
	}
}

func TestAReserveGivesItsDescriptorsUpAndTakesThemBack(t *testing.T) {
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	before := open()
	r := HoldBack(10)
	if n := open(); n < before+10 {
		t.Errorf("%d are open, want 10 more than %d", n, before)
	}
	back, other := r.Lend(), r.Lend()
	if n := open(); n >= before+10 {
		t.Errorf("%d are open while they are lent", n)
	}
	back()
	other()
	if n := open(); n < before+10 {
		t.Errorf("%d are open, want 10 more than %d", n, before)
	}
	for range 10 {
		(<-r.keep).Close()
	}
}

func TestRoomForProcessesIsCountedForAUserThatHasALimit(t *testing.T) {
	if room, limit, known := ProcessRoom(); known && (room < -1<<20 || limit == "") {
		t.Errorf("%d left, by %q", room, limit)
	}
	if n := tasksOf(os.Getuid()); n < 1 {
		t.Errorf("%d tasks of this user", n)
	}
}
