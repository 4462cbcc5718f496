package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// helpInherited says which descriptors it has sealed, which of 3 to 9 are open once it has closed them but for 5, and
// which a program has that it runs.
func helpInherited() {
	open := func() (fds []int) {
		for fd := 3; fd <= 9; fd++ {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
				fds = append(fds, fd)
			}
		}
		return fds
	}
	before := open()
	sealed := SealInherited()
	slices.Sort(sealed)
	if at := slices.IndexFunc(sealed, func(fd int) bool { return fd > 9 }); at >= 0 {
		sealed = sealed[:at] // of the program that runs the tests
	}
	fmt.Println(before, sealed, open())
	sealed.Close(func(fd int) bool { return fd == 5 })
	var left []int
	for _, fd := range sealed {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			left = append(left, fd)
		}
	}
	fmt.Println(left)
	child, err := exec.Command("sh", "-c", "for fd in /proc/self/fd/*; do echo ${fd##*/}; done").Output()
	check(err)
	fmt.Println(strings.Fields(string(child)))
	os.Exit(0)
}

// What a program of ours was executed with is passed on to nobody, and closed, but for what is needed and for a lock that
// its caller took.
// shows: FAULT-C7
func TestWhatTheCallerLeftOpenIsClosedButForLocksAndWhatIsNeeded(t *testing.T) {
	t.Parallel()
	reader, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer pipe.Close()
	var files []*os.File // 3, 4, ...
	for _, name := range []string{"plain", "flocked", "needed", "locked by open file"} {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	if err := unix.Flock(int(files[1].Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(files[3].Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperMode+"=inherited")
	cmd.ExtraFiles = append(files, pipe)
	said, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	// The shell that is run has its folder open.
	if want := "[3 4 5 6 7] [3 4 5 6 7] []\n[4 5 6]\n[0 1 2 3]\n"; string(said) != want {
		t.Errorf("it says\n%swant\n%s", said, want)
	}
}
