package devices_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/devices"
)

// job is what a helper process does.
type job struct {
	Space      string
	Fake, Want int
	Job        string
	Wait       bool
	Child      string // "sleep" or "tend": starts a process that inherits the locks
	Stolen     string // binds this name of the kernel's table and does not listen
	Answers    string // the same, and listens
}

// TestMain is a helper process where a test asks for it.
func TestMain(m *testing.M) {
	text := os.Getenv("DEVICES_TEST_JOB")
	if text == "" {
		os.Exit(m.Run())
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	go func() { // ends with the test, however that ends
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	j.run()
	select {}
}

func (j job) run() {
	if name := cmp.Or(j.Stolen, j.Answers); name != "" {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name})
		}
		if err == nil && j.Answers != "" {
			err = unix.Listen(fd, 1)
		}
		fmt.Println("has", err, os.Getpid())
		return
	}
	if j.Job == "" {
		fmt.Println("has nothing", os.Getpid())
		devices.Tend(nil)
		return
	}
	inv, err := devices.Find(context.Background(), devices.Options{Fake: j.Fake, Need: j.Want, Space: j.Space})
	if err != nil {
		fmt.Println(err)
		return
	}
	o := devices.ClaimOptions{Job: j.Job, Say: func(b *devices.Busy) { fmt.Println(b.Place()) }}
	if j.Wait {
		o.Wait = patience
	}
	c, err := devices.Take(context.Background(), inv, o)
	if err != nil {
		fmt.Println(err)
		return
	}
	pid := os.Getpid()
	if j.Child != "" {
		child := exec.Command("sleep", "600")
		if j.Child == "tend" {
			child = exec.Command(os.Args[0])
			child.Env = append(os.Environ(), "DEVICES_TEST_JOB={}")
			child.Stdin, _ = os.Open("/dev/zero")
		}
		child.ExtraFiles = c.Files()
		if err := child.Start(); err != nil {
			fmt.Println(err)
			return
		}
		pid = child.Process.Pid
	}
	fmt.Println("has", strings.Join(c.IDs(), ","), pid)
}

// helper is a process that does a job.
type helper struct {
	t     *testing.T
	pid   int
	lines chan string
	kill  func()
}

// begin starts one, as another user where uid is not ours.
func begin(t *testing.T, uid int, j job) *helper {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program(t, uid))
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "DEVICES_TEST_JOB="+string(text))
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &helper{t: t, pid: cmd.Process.Pid, lines: make(chan string, 100)}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	h.kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = stdin.Close()
		_, _ = cmd.Process.Wait()
	})
	t.Cleanup(h.kill)
	return h
}

// program is this test as a file that the user can run.
func program(t *testing.T, uid int) string {
	t.Helper()
	if uid == os.Geteuid() {
		return os.Args[0]
	}
	dir, err := os.MkdirTemp("", "devices-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	to := filepath.Join(dir, "devices.test")
	text, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = errors.Join(os.WriteFile(to, text, 0o700), os.Chmod(to, 0o755), os.Chmod(dir, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// says waits for the next line and checks how it begins.
func (h *helper) says(prefix string) string {
	h.t.Helper()
	select {
	case line := <-h.lines:
		if !strings.HasPrefix(line, prefix) {
			h.t.Fatalf("it says %q, want %q", line, prefix)
		}
		return strings.TrimPrefix(line, prefix)
	case <-time.After(patience):
		h.t.Fatalf("it does not say %q", prefix)
		return ""
	}
}

// sees waits until a line begins so, and skips others.
func (h *helper) sees(prefix string) {
	h.t.Helper()
	limit := time.After(patience)
	for {
		select {
		case line := <-h.lines:
			if strings.HasPrefix(line, prefix) {
				return
			}
		case <-limit:
			h.t.Fatalf("it does not say %q", prefix)
		}
	}
}

// hasWithPID waits until it has devices, and returns the pid of its child.
func (h *helper) hasWithPID(ids string) (pid int) {
	h.t.Helper()
	if _, err := fmt.Sscan(h.says("has "+ids+" "), &pid); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if pid != h.pid {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return pid
}
