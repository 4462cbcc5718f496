package warm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// refusal is why a fork server or a worker of it will not do what it is asked for.
type refusal struct {
	kind string // changed, unfit or error
	why  string
}

func (r *refusal) Error() string { return r.why }

// errLost says that a fork server does not answer as it should.
var errLost = errors.New("the fork server does not answer")

// born is a process that was forked and waits to be told what to be.
type born struct {
	id      proc.Ident
	control *net.UnixConn // it ends when this is closed before it runs its program
}

// fork makes a worker of a process that stands ready, or else of a new one, and returns it when it runs its
// program.
func (l *life) fork(spec proc.Spec, c command) (*proc.Process, error) {
	l.using.RLock()
	defer l.using.RUnlock()
	l.stock.order(rankOf(spec.Env))
	for {
		w := l.stock.take()
		if w == nil {
			break
		}
		p, err := l.employ(w, spec, c)
		var no *refusal
		if err == nil || errors.As(err, &no) {
			return p, err
		}
		l.log.Debug("a process that stood ready was of no use", "pid", w.id.PID, "err", err)
	}
	w, err := l.bear()
	if err != nil {
		return nil, err
	}
	return l.employ(w, spec, c)
}

// rankOf is the rank that a worker's environment names; empty if it names none.
func rankOf(env []string) string {
	for _, pair := range env {
		if rank, ok := strings.CutPrefix(pair, "VIGIL_RANK="); ok {
			return rank
		}
	}
	return ""
}

// employ makes a worker of a process that waits.
func (l *life) employ(w *born, spec proc.Spec, c command) (*proc.Process, error) {
	defer w.control.Close()
	_ = w.control.SetDeadline(time.Now().Add(l.answer))
	if err := instruct(w.control, spec, c); err != nil { // it makes itself ready while it is adopted
		return nil, err
	}
	p, err := l.keeper.AdoptChild(spec, w.id)
	if err != nil {
		return nil, err
	}
	if err := release(w.control); err != nil {
		w.control.Close()
		_, left := l.keeper.Clear(context.Background(), p.Tree())
		return nil, errors.Join(err, left)
	}
	return p, nil
}

// bear has a process forked.
func (l *life) bear() (*born, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "worker's end")
	defer theirs.Close()
	control, err := connOf(pair[0])
	if err != nil {
		return nil, err
	}
	pid, err := l.ask(theirs)
	if err != nil {
		control.Close()
		return nil, err
	}
	id, err := proc.Identify(pid)
	if err != nil {
		control.Close()
		return nil, fmt.Errorf("find forked worker: %w", err)
	}
	return &born{id: id, control: control}, nil
}

// ask has the fork server fork and returns the pid.
func (l *life) ask(control *os.File) (int, error) {
	l.asking.Lock()
	defer l.asking.Unlock()
	words, err := l.exchange(control)
	if err != nil {
		l.conn.Close() // an answer that comes later must not be taken for another's
		return 0, fmt.Errorf("%w: %w", errLost, err)
	}
	if words[0] != "pid" {
		return 0, &refusal{kind: words[0], why: strings.Join(words[1:], " ")}
	}
	return strconv.Atoi(words[1])
}

func (l *life) exchange(control *os.File) ([]string, error) {
	if err := l.conn.SetDeadline(time.Now().Add(l.answer)); err != nil {
		return nil, err
	}
	if _, _, err := l.conn.WriteMsgUnix([]byte("fork"), unix.UnixRights(int(control.Fd())), nil); err != nil {
		return nil, err
	}
	return l.hear()
}
