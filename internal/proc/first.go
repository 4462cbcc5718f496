package proc

import (
	"fmt"
	"io"
	"os"
	ossignal "os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that the first process of a container hands on to the program.
var forwarded = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT, unix.SIGWINCH}

// UnderFirst runs this program again, as a child, where it is the first process of a PID namespace, as in a container
// without an init: the kernel does not let the first process end itself by a signal, so a crash of it would end with 2,
// which is a refusal. It hands signals on, collects orphans, and returns the child's exit code, or 128 and the number of
// the signal that it died of. Elsewhere it does nothing, and was is false.
func UnderFirst(stderr io.Writer) (status int, was bool) {
	if os.Getpid() != 1 {
		return 0, false
	}
	got := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !ossignal.Ignored(s) {
			ossignal.Notify(got, s)
		}
	}
	child, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil { // without /proc, say: better as the first process than not at all
		ossignal.Stop(got)
		fmt.Fprintln(stderr, "run below the first process of the container:", err)
		return 0, false
	}
	SealInherited().Close(func(int) bool { return false }) // the child has them
	go func() {
		for s := range got {
			_ = unix.Kill(child, s.(syscall.Signal))
		}
	}()
	for {
		var how unix.WaitStatus
		pid, err := unix.Wait4(-1, &how, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			fmt.Fprintln(stderr, "wait below the first process of the container:", err)
			return 128 + int(unix.SIGABRT), true
		case pid == child && how.Signaled():
			fmt.Fprintf(stderr, "killed by %s\n", unix.SignalName(how.Signal()))
			return 128 + int(how.Signal()), true
		case pid == child && how.Exited():
			return how.ExitStatus(), true
		}
	}
}
