package proc

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// firstVar has this test program behave as one that UnderFirst runs again.
const firstVar = "VIGIL_TEST_UNDER_FIRST"

func init() {
	if os.Getenv(firstVar) == "" {
		return
	}
	if status, was := UnderFirst(os.Stderr); was {
		os.Exit(status)
	}
	os.Stdout.WriteString("program " + strconv.Itoa(os.Getpid()) + "\n")
	if code, err := strconv.Atoi(os.Getenv(firstVar)); err == nil {
		os.Exit(code)
	}
	select {}
}

// In a container the program is the first process. It is told of signals, its exit code is given, and a crash is a death
// by a signal, which is no refusal.
// shows: FAULT-C13
func TestTheFirstProcessOfAContainerTellsHowTheProgramEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		does   string
		signal unix.Signal
		status int
	}{
		"it exits":               {does: "3", status: 3},
		"it is told to end":      {does: "wait", signal: unix.SIGTERM, status: 128 + int(unix.SIGTERM)},
		"it crashes of a signal": {does: "wait", signal: unix.SIGQUIT, status: 128 + int(unix.SIGABRT)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^$")
			cmd.Env = append(os.Environ(), firstVar+"="+c.does, "GOTRACEBACK=crash")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); errors.Is(err, unix.EPERM) {
				t.Skip("SKIPPED: this user may not make a PID namespace")
			} else if err != nil {
				t.Fatal(err)
			}
			said, err := bufio.NewReader(out).ReadString('\n')
			if pid, _ := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(said), "program ")); err != nil || pid < 2 {
				t.Errorf("the program says %q (%v), want that it is not the first process", said, err)
			}
			if c.signal != 0 {
				if err := cmd.Process.Signal(c.signal); err != nil {
					t.Error(err)
				}
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("exit %d, want %d", got, c.status)
			}
		})
	}
}
