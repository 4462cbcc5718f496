package proc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// shortDir is a runtime directory whose path leaves room for sockets.
func shortDir(t *testing.T) Dir {
	t.Helper()
	path, err := os.MkdirTemp("", "v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	d, err := OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDirIsPrivateAndOurs(t *testing.T) {
	base := shortDir(t).Path()
	d, err := OpenDir(base + "/new/run")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(d.Path()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	open := base + "/open"
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(open); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(open); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v: want it closed to others", st.Mode(), err)
	}
	link, file := base+"/link", base+"/file"
	if err := errors.Join(os.Symlink(open, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	refused := map[string]string{link: "symbolic link", file: "no folder", base + "/" + strings.Repeat("x", 100): "bytes"}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Mkdir(base+"/other", 0o700), os.Chown(base+"/other", 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		refused[base+"/other"] = "belongs to user 65534"
	}
	for path, want := range refused {
		if _, err := OpenDir(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// shows: D22
func TestDirSocketsAreRandomAndPrivateAndRefuseWhatIsThere(t *testing.T) {
	d := shortDir(t)
	seen := map[string]bool{}
	for range 100 {
		path, err := d.Socket("actor-0")
		if err != nil || seen[path] {
			t.Fatalf("%s: %v, seen %v", path, err, seen[path])
		}
		seen[path] = true
	}
	path, err := d.Socket("actor-0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if l.Addr().String() != path {
		t.Errorf("address %s, want %s", l.Addr(), path)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	file := d.Path() + "/file"
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{
		path:                      "exists",
		file:                      "exists",
		d.Path() + "/none/x.sock": "no directory",
		file + "/x.sock":          "no directory",
		filepath.Join(d.Path(), strings.Repeat("y", 110)): "the platform takes 107",
	} {
		if _, err := ListenUnix(at); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), at) {
			t.Errorf("%s: %v, want it named and %q", at, err, want)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "kept" {
		t.Errorf("%q, %v: the file was touched", text, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if list, _ := os.ReadDir(d.Path()); len(list) != 1 {
		t.Errorf("left after Close: %v", list)
	}
}

// shows: D23
func TestDirSweepRemovesSocketsOnWhichNobodyListens(t *testing.T) {
	d := shortDir(t)
	path := func(name string) string { return filepath.Join(d.Path(), name) }
	living, err := ListenUnix(path("living.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	gram, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path("living-notify.sock"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer gram.Close()
	busy, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0) // listens, and its queue is full
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(busy)
	if err := errors.Join(unix.Bind(busy, &unix.SockaddrUnix{Name: path("living-busy.sock")}), unix.Listen(busy, 0)); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path("living-busy.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ours, dead := fmt.Sprintf(".new-%d-12345678", os.Getpid()), ".new-2147483647-12345678" // that pid is beyond all
	for name, kind := range map[string]int{"dead.sock": unix.SOCK_STREAM, "dead-notify.sock": unix.SOCK_DGRAM, ours: unix.SOCK_STREAM, dead: unix.SOCK_STREAM} {
		fd, err := unix.Socket(unix.AF_UNIX, kind, 0) // as a killed program leaves it: bound, then closed
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path(name)}), unix.Close(fd)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path("note.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removed, err := d.Sweep()
	slices.Sort(removed)
	if want := []string{path(dead), path("dead-notify.sock"), path("dead.sock")}; err != nil || !slices.Equal(removed, want) {
		t.Errorf("removed %v, %v; want %v", removed, err, want)
	}
	for _, name := range []string{"living.sock", "living-notify.sock", "living-busy.sock", "note.sock", ours} {
		if !exists(path(name)) {
			t.Errorf("%s was removed", name)
		}
	}
	if gone, err := RemoveStale(path("living.sock")); gone || err != nil {
		t.Errorf("a socket that listens: removed %v, %v", gone, err)
	}
	if gone, err := RemoveStale(path("none.sock")); gone || err != nil {
		t.Errorf("no socket: removed %v, %v", gone, err)
	}
}

func TestDirSweepRemovesTheFilesOfSocketsThatAreGone(t *testing.T) {
	d := shortDir(t)
	path := func(name string) string { return filepath.Join(d.Path(), name) }
	living, err := ListenUnix(path("living.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path("dead.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	for _, name := range []string{"living", "dead", "alone"} {
		if err := os.WriteFile(CompanionOf(path(name+".sock"), "peers"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Sweep(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"living.peers": true, "dead.peers": false, "alone.peers": false} {
		if exists(path(name)) != want {
			t.Errorf("%s is there: %v, want %v", name, !want, want)
		}
	}
}

func TestDirPortsAreLeasedToOneProgramAtATime(t *testing.T) {
	k := newKeeper(t, NoCgroups)
	d := shortDir(t)
	p, err := d.Ports()
	if err != nil {
		t.Fatal(err)
	}
	mine, err := p.Lease(20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	low, high := ephemeral()
	see := func(ports ...int) {
		for _, port := range ports {
			if seen[port] {
				t.Errorf("port %d was leased twice", port)
			}
			seen[port] = true
			if port >= low && port <= high && low > lowestPort+1000 {
				t.Errorf("port %d is one of the kernel's, %d to %d", port, low, high)
			}
		}
	}
	see(mine...)
	other, lines := startHelper(t, k, "lease", d.Path())
	for _, line := range lines {
		port, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		see(port)
	}
	p.Release(mine...)
	again, err := p.Lease(20) // neither the other's nor those just given back
	if err != nil {
		t.Fatal(err)
	}
	see(again...)
	port, _ := strconv.Atoi(lines[0])
	if err := p.Claim(port); err == nil || !strings.Contains(err.Error(), "held by pid "+strconv.Itoa(other.PID())) {
		t.Errorf("claim of another's port: %v", err)
	}
	k.Stop(context.Background(), []*Process{other}, StopSpec{})
	if err := errors.Join(p.Claim(port), p.Claim(port)); err != nil {
		t.Errorf("claim after the holder's death: %v", err)
	}
	if q, err := d.Ports(); err != nil {
		t.Error(err)
	} else if list, _ := filepath.Glob(d.Path() + "/ports/*" + lockSuffix); len(list) != 21 {
		t.Errorf("%d lease files after the sweep of %v, want those of the living: 21", len(list), q.folder)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if list, _ := filepath.Glob(d.Path() + "/ports/*" + lockSuffix); len(list) > 0 {
		t.Errorf("lease files left: %v", list)
	}
}

func TestDirPortsInUseAreNotLeased(t *testing.T) {
	d := shortDir(t)
	p, err := d.Ports()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, host := range []string{"127.0.0.1", "0.0.0.0"} {
		l, err := net.Listen("tcp4", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		p.choices = []int{l.Addr().(*net.TCPAddr).Port}
		if got, err := p.Lease(1); err == nil {
			t.Errorf("leased %v, which is bound on %s", got, host)
		} else if !strings.Contains(err.Error(), "only 0 are free") {
			t.Error(err)
		}
		l.Close()
		if got, err := p.Lease(1); err != nil || len(got) != 1 {
			t.Errorf("after it was freed: %v, %v", got, err)
		}
		p.Release(p.choices...)
	}
}

func TestPortsLieOutsideTheKernelsRangeWhereItLeavesAny(t *testing.T) {
	for _, c := range []struct{ low, high, n int }{
		{32768, 60999, 32768 - lowestPort + highestPort - 60999},
		{1024, 65535, highestPort - lowestPort + 1}, // nothing left: better those than none
		{10000, 19999, highestPort - lowestPort + 1},
	} {
		if got := len(choices(c.low, c.high)); got != c.n {
			t.Errorf("%d to %d leaves %d, want %d", c.low, c.high, got, c.n)
		}
	}
}

func TestTailGivesTheLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", tailBytes+10)
	for _, c := range []struct {
		text string
		n    int
		want []string
	}{
		{"", 3, nil},
		{"a\nb\nc\nd\n", 2, []string{"c", "d"}},
		{"a\nb", 5, []string{"a", "b"}},
		{"a\r\n\n", 5, []string{"a", ""}},
		{"\n", 5, []string{""}},
		{"ok\n\xff\xfebad", 2, []string{"ok", "\uFFFDbad"}},
		{"a\n", 0, nil},
		{"first\n" + long + "\nlast", 9, []string{long[:tailBytes-5], "last"}},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Tail(path, c.n); !slices.Equal(got, c.want) {
			t.Errorf("%.20q: %.60q, want %.60q", c.text, got, c.want)
		}
	}
	if got := Tail(path+"none", 5); got != nil {
		t.Errorf("no file: %q", got)
	}
	if got := Tail("/dev/zero", 5); got != nil {
		t.Errorf("no regular file: %q", got)
	}
}
