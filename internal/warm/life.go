package warm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

// What a fork server runs: boot.py by -c, and by it the other files in this order.
var (
	//go:embed boot.py
	boot string
	//go:embed imports.py
	importsFile []byte
	//go:embed fitness.py
	fitnessFile []byte
	//go:embed store.py
	storeFile []byte
	//go:embed reports.py
	reportsFile []byte
	//go:embed worker.py
	workerFile []byte
	//go:embed forkserver.py
	serverFile []byte

	partNames = "imports fitness store reports worker forkserver"
	parts     = [][]byte{importsFile, fitnessFile, storeFile, reportsFile, workerFile, serverFile}
)

// life is one fork server process.
type life struct {
	keeper *proc.Keeper
	log    *slog.Logger
	proc   *proc.Process
	output string // path of what it printed; may be empty
	answer time.Duration
	kept   chan struct{} // closed when all of its output is in the file

	using   sync.RWMutex // held shared by every fork, so that the end comes before or after it
	asking  sync.Mutex   // one request at a time
	conn    *net.UnixConn
	settled chan struct{} // closed when it is ready, or will never be
	stock   stock

	// Written before settled is closed.
	modules []string
	why     string // it cannot be used; empty: it can
	killed  bool   // because a signal ended it, which may have come from anywhere
}

// begin starts a fork server for what spec would start, and has it import. The caller settles it.
func begin(k *proc.Keeper, o Options, spec proc.Spec, c command) (*life, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start fork server: make socket: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "fork server's end")
	defer theirs.Close()
	conn, err := connOf(pair[0])
	if err != nil {
		return nil, fmt.Errorf("start fork server: %w", err)
	}
	out, into, err := os.Pipe()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("start fork server: %w", err)
	}
	defer into.Close()
	env := append(lasting(spec.Env, o.PerLife), Switch+"=1")
	if o.Mark != "" {
		env = append(env, proc.Mark+"="+o.Mark)
	}
	p, err := k.Start(proc.Spec{
		Path: spec.Path, Args: append(append([]string{}, c.flags...), "-c", boot), Dir: spec.Dir, Env: env,
		Stdout: into, Stderr: into, ExtraFiles: []*os.File{theirs},
		Leaf: o.Leaf, DieWithParent: true, NoOrphans: true,
	})
	if err != nil {
		conn.Close()
		out.Close()
		return nil, fmt.Errorf("start fork server: %w", err)
	}
	l := &life{keeper: k, log: o.Log, proc: p, output: o.Output, answer: o.Answer, conn: conn, kept: make(chan struct{}), settled: make(chan struct{})}
	l.stock.after, l.stock.bear = o.SpareAfter, l.bear
	go func() {
		defer close(l.kept)
		if err := keepOutput(out, o.Output); err != nil {
			o.Log.Warn("output of the fork server is not kept", "err", err)
		}
	}()
	go func() {
		<-p.Done()
		soon := time.Now().Add(200 * time.Millisecond) // for what it said last
		_ = conn.SetReadDeadline(soon)
		_ = out.SetReadDeadline(soon)
	}()
	l.tell(partNames)
	for _, part := range parts {
		l.tell(string(part))
	}
	l.tell(strings.Join(append([]string{c.kind, c.target}, o.Preload...), "\x00"))
	return l, nil
}

// connOf makes a connection of a socket.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close() // FileConn has one of its own
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// tell sends a message. That it did not arrive shows when the answer is read.
func (l *life) tell(message string) { _, _ = l.conn.Write([]byte(message)) }

// hear reads one message and returns its fields. A peer that ends with something unread has the socket reset,
// which is told before what it had said last.
func (l *life) hear() ([]string, error) {
	buf := make([]byte, 64<<10)
	n, err := l.conn.Read(buf)
	if errors.Is(err, unix.ECONNRESET) {
		n, err = l.conn.Read(buf)
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(string(buf[:n]), "\x00"), nil
}

// strayLooks and strayEvery are how often and how far apart a process must be seen for it to stay: one that ends
// between two looks at /proc is taken for an orphan for a moment.
const (
	strayLooks = 3
	strayEvery = 50 * time.Millisecond
)

// stray returns a process that the fork server has started and that stays.
func (l *life) stray() (proc.Holder, bool) {
	var seen map[proc.Ident]bool
	tick := time.NewTicker(strayEvery)
	defer tick.Stop()
	for look := 1; ; look++ {
		var found []proc.Holder
		now := map[proc.Ident]bool{}
		for _, h := range l.keeper.Remains(l.proc.Tree()) {
			if h.Ident != l.proc.Ident() && (seen == nil || seen[h.Ident]) {
				found, now[h.Ident] = append(found, h), true
			}
		}
		switch {
		case len(found) == 0:
			return proc.Holder{}, false
		case look == strayLooks:
			return found[0], true
		}
		seen = now
		<-tick.C
	}
}

// settle waits until the fork server has imported everything, at most limit, and closes settled.
func (l *life) settle(limit time.Duration) {
	defer close(l.settled)
	_ = l.conn.SetReadDeadline(time.Now().Add(limit))
	doing := "starting"
	for {
		words, err := l.hear()
		switch {
		case err != nil:
			l.why = l.silence(err, doing, limit)
			return
		case words[0] == "importing":
			doing = "importing " + words[1]
		case words[0] == "unfit":
			l.why = words[1]
			return
		case words[0] == "ready":
			l.modules = words[1:]
			if h, stays := l.stray(); stays {
				l.why = fmt.Sprintf("what was imported has started pid %d (%s), which still runs", h.PID, h.Name)
			}
			return
		}
	}
}

// silence says why nothing more is heard of a fork server.
func (l *life) silence(err error, doing string, limit time.Duration) string {
	wait := time.NewTimer(2 * time.Second)
	defer wait.Stop()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		wait.Reset(0)
	}
	select {
	case <-l.proc.Done():
	case <-wait.C:
		select {
		case <-l.proc.Done():
		default:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Sprintf("%s takes longer than %s", doing, limit)
			}
			return fmt.Sprintf("the connection to the fork server broke while %s: %v", doing, err)
		}
	}
	select {
	case <-l.kept:
	case <-wait.C:
	}
	l.killed = l.proc.Exit().Signal != ""
	why := fmt.Sprintf("the fork server ended while %s: %s", doing, l.proc.Exit())
	if last := proc.Tail(l.output, 1); l.output != "" && len(last) == 1 {
		why += ": " + last[0]
	}
	return why
}

// farewell is how long a fork server has to remove its temporary folders.
const farewell = time.Second

// awaitEnd waits until a fork server that has lost its connection ends by itself. One that imports does not notice.
func (l *life) awaitEnd() {
	select {
	case <-l.settled:
	default:
		return
	}
	patience := time.NewTimer(farewell)
	defer patience.Stop()
	select {
	case <-l.proc.Done():
	case <-patience.C:
	}
}

// end kills the fork server and whatever it started. A worker that is being forked is waited for: until it is
// adopted it bears the fork server's signs.
func (l *life) end(ctx context.Context) error {
	l.stock.close()
	l.conn.Close()
	l.using.Lock()
	defer l.using.Unlock()
	l.awaitEnd()
	_, err := l.keeper.Clear(ctx, l.proc.Tree())
	return err
}
