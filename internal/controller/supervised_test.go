package controller

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"vigil/internal/restart"
	"vigil/internal/role"
)

// listener is a supervisor's end of NOTIFY_SOCKET.
type listener struct {
	mu    sync.Mutex
	words []string
}

func listen(t *testing.T) (*listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "vigil")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	l := &listener{}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			l.mu.Lock()
			l.words = append(l.words, strings.Split(string(buf[:n]), "\n")...)
			l.mu.Unlock()
		}
	}()
	return l, path
}

func (l *listener) heard(prefix string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, w := range l.words {
		if strings.HasPrefix(w, prefix) {
			n++
		}
	}
	return n
}

func TestASupervisorHearsTheTruth(t *testing.T) {
	slow(t)
	l, path := listen(t)
	p := beginWith(t, sleepers, func(o *Options) {
		o.Environ = append(o.Environ, "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=300000")
	})
	p.until(t, "READY=1 and a fed watchdog", func() bool { return l.heard("READY=1") == 1 && l.heard("WATCHDOG=1") > 2 })
	if l.heard("STATUS=running") == 0 {
		t.Errorf("heard %q", l.words)
	}
	hold := make(chan struct{})
	block(p, hold)
	p.until(t, "the watchdog to starve", func() bool {
		fed := l.heard("WATCHDOG=1")
		<-time.After(1500 * time.Millisecond)
		return l.heard("WATCHDOG=1") == fed
	})
	close(hold)
	fed := l.heard("WATCHDOG=1")
	p.until(t, "the watchdog to be fed again", func() bool { return l.heard("WATCHDOG=1") > fed })
	p.Stop(syscall.SIGTERM)
	p.until(t, "STOPPING=1", func() bool { return l.heard("STOPPING=1") == 1 })
	if n := l.heard("READY=1"); n != 1 {
		t.Errorf("READY=1 was said %d times", n)
	}
}

// block keeps the repair loop from its work until hold is closed.
func block(p *play, hold chan struct{}) {
	waiting := make(chan struct{})
	p.engine.Explain = func(restart.Decision, []role.Failure) {
		close(waiting)
		<-hold
		p.engine.Explain = nil
	}
	p.store.Report(role.Failure{Life: role.Life{Role: "a", Rank: role.NoRank}, Cause: role.Reported, Detail: "to hold up the repair loop"})
	<-waiting
}

func TestAWatchdogOfAnotherProcessIsNotFed(t *testing.T) {
	if s := newSupervisor([]string{"NOTIFY_SOCKET=/x", "WATCHDOG_USEC=300000", "WATCHDOG_PID=1"}, 4711); s == nil || s.every != 0 {
		t.Errorf("supervisor %+v", s)
	}
	if s := newSupervisor([]string{"NOTIFY_SOCKET=/x", "WATCHDOG_USEC=300000", "WATCHDOG_PID=4711"}, 4711); s == nil || s.every != 100*time.Millisecond {
		t.Errorf("supervisor %+v", s)
	}
	if s := newSupervisor([]string{"NOTIFY_SOCKET="}, 4711); s != nil {
		t.Errorf("supervisor %+v without a socket", s)
	}
}

func TestWhatASupervisorCouldNotBeToldIsToldAgain(t *testing.T) {
	slow(t)
	l, path := listen(t)
	hidden := path + ".hidden"
	if err := os.Rename(path, hidden); err != nil {
		t.Fatal(err)
	}
	p := beginWith(t, sleepers, func(o *Options) { o.Environ = append(o.Environ, "NOTIFY_SOCKET="+path) })
	p.until(t, "the job to be ready, of which nobody hears", func() bool { return view{p.Controller}.Ready() == nil })
	<-time.After(supervisorEvery + 500*time.Millisecond) // it has been tried
	if err := os.Rename(hidden, path); err != nil {
		t.Fatal(err)
	}
	p.until(t, "READY=1", func() bool { return l.heard("READY=1") == 1 && l.heard("STATUS=running") == 1 })
}
