package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// process is one that has a mark of ours in its environment.
type process struct {
	pid     int
	environ string
}

func (p process) values() []string { return strings.Split(p.environ, "\x00") }

// marked returns the services and workers of a job, or, for no uid, of any.
func marked(uid string) []process {
	var all []process
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		src, readErr := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || readErr != nil || pid == os.Getpid() {
			continue // gone meanwhile, or not ours to look into
		}
		if bytes.Contains(src, []byte("VIGIL_LIFE="+uid)) || bytes.Contains(src, []byte("VIGIL_OPT_JOB_UID="+uid)) {
			all = append(all, process{pid, string(src)})
		}
	}
	return all
}

// there says whether a process is there; a zombie is not.
func there(pid int) bool {
	src, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	state := strings.TrimSpace(string(src[bytes.LastIndexByte(src, ')')+1:]))
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// leaves returns the cgroups of a job.
func leaves(uid string) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "vigil-"+uid) {
			found = append(found, path)
			return fs.SkipDir
		}
		return nil // a cgroup that has gone meanwhile is none
	})
	return found
}

// cgroupsWritable says whether this machine lets us make cgroups.
func cgroupsWritable() bool {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil && unix.Access(root, unix.W_OK) == nil {
			var st unix.Statfs_t
			if unix.Statfs(root, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
				return true
			}
		}
	}
	return false
}

// nothingLeft looks once: what the programs promise holds when they have ended, not a while later.
func nothingLeft(ts *testscript.TestScript, neg bool, args []string) {
	s := on(ts)
	if neg || len(s.runs) == 0 {
		ts.Fatalf("a mistake in the script: no job")
	}
	var left []string
	for name, r := range s.runs {
		select {
		case <-r.done:
		default:
			ts.Fatalf("%s has not ended", name)
		}
		left = append(left, leftOf(r.uid)...)
	}
	_ = filepath.WalkDir(filepath.Join(s.dir, "run"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && !isLockFolder(d.Name()) {
			return nil //nolint:nilerr // gone between the listing and the look, which is what is asked for
		}
		if d.IsDir() {
			return fs.SkipDir
		}
		left = append(left, "file "+path)
		return nil
	})
	addresses := []string{strings.TrimPrefix(s.url, "http://")}
	for _, arg := range args {
		if file, ok := strings.CutPrefix(arg, "@"); ok {
			addresses = append(addresses, strings.Fields(ts.ReadFile(file))...)
		} else {
			addresses = append(addresses, arg)
		}
	}
	for _, address := range addresses {
		if !strings.Contains(address, ":") {
			address = "127.0.0.1:" + address
		}
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			c.Close()
			left = append(left, "listener "+address)
		}
	}
	if len(left) > 0 {
		ts.Fatalf("left:\n%s%s", strings.Join(left, "\n"), s.said())
	}
}

// leftOf returns what there is of one job, in words.
func leftOf(uid string) []string {
	var left []string
	for _, p := range marked(uid) {
		if there(p.pid) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
			left = append(left, fmt.Sprintf("process %d %q", p.pid, name))
		}
	}
	for _, leaf := range leaves(uid) {
		left = append(left, "cgroup "+leaf)
	}
	shm, _ := filepath.Glob("/dev/shm/*" + uid + "*")
	return append(left, shm...)
}

// isLockFolder says whether a folder of the runtime directory holds the machine's locks: the files of
// ports and devices stay, for removing a locked file would let two hold it.
func isLockFolder(name string) bool { return name == "ports" || name == "devices" || name == "locks" }

// noZombies waits, for between a death and its reaping every process is one.
func noZombies(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1)
	eventually(ts, func() error {
		all, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, path := range all {
			src, _ := os.ReadFile(path) // gone meanwhile
			fields := strings.Fields(string(src[bytes.LastIndexByte(src, ')')+1:]))
			if len(fields) > 1 && fields[0] == "Z" && slices.Contains(args, fields[1]) {
				return fmt.Errorf("a zombie: %s", src)
			}
		}
		return nil
	})
}

// junk writes what nobody could mean.
func junk(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 0)
	s := on(ts)
	noise := make([]byte, 2<<20)
	targets := [][2]string{{"tcp", strings.TrimPrefix(s.url, "http://")}, {"tcp", strings.TrimPrefix(s.url, "http://")}}
	sockets, err := filepath.Glob(filepath.Join(s.dir, "run", "*.sock"))
	ts.Check(err)
	if len(sockets) == 0 {
		ts.Fatalf("no socket in %s", s.dir)
	}
	for _, path := range sockets {
		targets = append(targets, [2]string{"unix", path})
	}
	words, err := filepath.Glob(filepath.Join(s.dir, "run", "*.up"))
	ts.Check(err)
	for _, path := range words {
		targets = append(targets, [2]string{"unixgram", path})
	}
	for i, to := range targets {
		if i == 0 { // one request that has no end
			copy(noise, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", len(noise)/2))
		} else {
			_, _ = rand.Read(noise) // never fails
		}
		c, err := net.Dial(to[0], to[1])
		ts.Check(err)
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		for i := 0; i < len(noise); i += 4 << 10 {
			if _, err := c.Write(noise[i : i+4<<10]); err != nil {
				break // it had enough
			}
		}
		c.Close()
	}
}

// memoryCgroup is where memory cgroups of version 1 lie.
const memoryCgroup = "/sys/fs/cgroup/memory"

// memoryCgroups says whether a limit of memory can be set there.
func memoryCgroups() bool {
	_, err := os.Stat(filepath.Join(memoryCgroup, "memory.limit_in_bytes"))
	return err == nil && unix.Access(memoryCgroup, unix.W_OK) == nil
}
