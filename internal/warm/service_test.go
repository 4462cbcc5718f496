package warm

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// serviceMode makes the test binary a service with a fork server and two workers: its value is the Python
// interpreter, the first argument a folder.
const serviceMode = "VIGIL_WARM_TEST_SERVICE"

func beService() {
	k, err := proc.NewKeeper(proc.Options{Cgroups: proc.NoCgroups})
	check(err)
	s := New(k, Options{Preload: []string{"json"}, Notice: func(text string) { fmt.Println("notice:", text) }})
	for range 2 {
		p, err := s.Fork(context.Background(), proc.Spec{
			Path: os.Getenv(serviceMode), Args: []string{"-c", "import time; time.sleep(300)"}, Dir: os.Args[1], DieWithParent: true})
		check(err)
		fmt.Println(p.PID())
	}
	fmt.Println(s.Status().PID)
	fmt.Println("ready")
	select {}
}

func check(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// A service that is killed takes its fork server and the workers along, whoever it runs as.
func TestForkServerAndWorkersEndWithTheirService(t *testing.T) {
	interpreter := python(t)
	binary := readableCopy(t)
	for _, uid := range []int{os.Geteuid(), 65534} {
		t.Run("user "+strconv.Itoa(uid), func(t *testing.T) {
			if uid != os.Geteuid() && os.Geteuid() != 0 {
				t.Skip("only root can be somebody else")
			}
			credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
			try := exec.Command(interpreter, "-c", "")
			try.Dir, try.SysProcAttr = "/", &syscall.SysProcAttr{Credential: credential}
			if err := try.Run(); err != nil {
				t.Skipf("that user may not run %s: %v", interpreter, err)
			}
			cmd := exec.Command(binary, "/")
			cmd.Env = append(os.Environ(), serviceMode+"="+interpreter)
			cmd.Stderr = os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential, Pdeathsig: syscall.SIGKILL}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var ids []proc.Ident
			for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "ready"; {
				pid, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
				if err != nil {
					t.Errorf("the service says %q", lines.Text())
					continue
				}
				id, err := proc.Identify(pid)
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
			if len(ids) != 3 {
				t.Errorf("it named %d processes", len(ids))
			}
			if err := unix.Kill(cmd.Process.Pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // it was killed
			for _, id := range ids {
				eventually(t, fmt.Sprintf("pid %d has ended", id.PID), func() bool { return !id.Alive() })
			}
		})
	}
}

// readableCopy copies the test binary to where everybody may run it.
func readableCopy(t *testing.T) string {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	folder, err := os.MkdirTemp("", "vigil-warm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "service")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, self); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
