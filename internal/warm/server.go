package warm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"vigil/internal/proc"
)

// Options are the choices of a Server.
type Options struct {
	// Preload names the modules to import. "auto" among them stands for what the program imports at its
	// top level, but for modules beside the program itself.
	Preload []string
	// PerLife names variables that differ between the lives of a worker, besides those that vigil sets.
	PerLife []string
	// Mark is the value of VIGIL_LIFE for the fork server itself, such as "UID/actor/fork", to which a
	// number is added.
	Mark string
	// Leaf is the cgroup leaf of the fork server, to which a number is added. With one, each worker must
	// have one too.
	Leaf string
	// Output is the file that gets what the fork server prints, 1 MiB at most; empty: none.
	Output string
	// Limit bounds the imports; 0: a minute.
	Limit time.Duration
	// Answer bounds a fork, once everything has been imported; 0: ten seconds.
	Answer time.Duration
	// SpareAfter is how long no worker must have been started before as many are forked ahead as were
	// started together; 0: two seconds.
	SpareAfter time.Duration
	// Notice is told, once, why workers start cold. It may be called from any goroutine.
	Notice func(text string)
	Log    *slog.Logger // nil: slog.Default()
}

const (
	importLimit = time.Minute
	answerLimit = 10 * time.Second
	spareAfter  = 2 * time.Second
	// lossLimit is how many fork servers may be lost in a row without a worker forked.
	lossLimit = 3
)

// Server forks the workers of one role. It starts its fork server when it is first needed, and anew when that has
// died, when a file that was imported has changed, or when the role's environment, folder or program has. It may be
// used from many goroutines at once.
type Server struct {
	keeper *proc.Keeper
	o      Options

	mu      sync.Mutex
	life    *life  // nil: none
	key     string // what the life was started for
	given   string // the key for which it has been given up
	why     string // for what reason
	told    string // the last notice
	losses  int    // since the last worker was forked
	begun   int    // how many have been started
	spares  int    // how many processes shall stand ready
	closed  bool
	running sync.WaitGroup
}

// numbered gives a fork server signs that no other has: the end of one must not be another's.
func (o Options) numbered(n int) Options {
	if o.Mark != "" {
		o.Mark += "." + strconv.Itoa(n)
	}
	if o.Leaf != "" {
		o.Leaf += "." + strconv.Itoa(n)
	}
	return o
}

// New makes a Server. Nothing is started yet.
func New(k *proc.Keeper, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Limit == 0 {
		o.Limit = importLimit
	}
	if o.Answer == 0 {
		o.Answer = answerLimit
	}
	if o.SpareAfter == 0 {
		o.SpareAfter = spareAfter
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	return &Server{keeper: k, o: o}
}

// ErrCold is what all errors of Fork wrap: the worker is to be started by proc.Keeper.Start.
var ErrCold = errors.New("no warm start")

// Prepare starts the fork server for workers such as spec, if there is none yet, and does not wait for it.
func (s *Server) Prepare(spec proc.Spec) {
	if c, err := read(append([]string{spec.Path}, spec.Args...)); err == nil {
		_, _ = s.current(spec, c) // Fork will say it
	}
}

// Fork starts what proc.Keeper.Start would start, by a fork. It waits for imports that are under way. Every error
// wraps ErrCold.
func (s *Server) Fork(ctx context.Context, spec proc.Spec) (*proc.Process, error) {
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	p, err := s.tryFork(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCold, err)
	}
	return p, nil
}

func (s *Server) tryFork(ctx context.Context, spec proc.Spec) (*proc.Process, error) {
	c, err := read(append([]string{spec.Path}, spec.Args...))
	switch {
	case err != nil:
		s.notice(err.Error())
		return nil, err
	case len(spec.ExtraFiles) > 0:
		return nil, errors.New("a forked worker gets no descriptors but its streams")
	case s.o.Leaf != "" && spec.Leaf == "":
		return nil, errors.New("the worker has no cgroup leaf of its own")
	}
	for range 2 {
		var l *life
		if l, err = s.current(spec, c); err != nil {
			return nil, err
		}
		select {
		case <-l.settled:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if l.why != "" {
			err = errors.New(l.why)
			if !l.killed {
				break
			}
			s.lost(l)
			continue
		}
		p, failed := l.fork(spec, c)
		if failed == nil {
			s.forked()
			return p, nil
		}
		err = failed
		if !s.judge(l, err) {
			break
		}
	}
	return nil, err
}

// forked forgets what was lost before.
func (s *Server) forked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.losses = 0
}

// judge draws the consequence of a fork that failed and says whether to try again with a new fork server.
func (s *Server) judge(l *life, err error) (again bool) {
	var no *refusal
	switch {
	case errors.As(err, &no) && no.kind == "unfit":
		s.giveUp(l, no.why)
		return false
	case errors.As(err, &no) && no.kind == "changed":
		s.o.Log.Info("fork server is replaced", "pid", l.proc.PID(), "why", no.why)
		s.drop(l)
		return true
	case errors.Is(err, errLost):
		s.lost(l)
		return true
	}
	s.o.Log.Warn("worker was not forked", "err", err)
	return false
}

// current returns the fork server for workers such as spec, starting one if the present one is for others.
func (s *Server) current(spec proc.Spec, c command) (*life, error) {
	key := s.keyOf(spec, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, errors.New("the service ends")
	case s.given != "" && s.given == key:
		return nil, errors.New(s.why)
	case s.life != nil && s.key == key:
		return s.life, nil
	case s.life != nil:
		s.o.Log.Info("fork server is replaced", "pid", s.life.proc.PID(), "why", "environment, folder or program of the role has changed")
		s.endLater(s.life)
		s.life = nil
	}
	return s.start(key, spec, c)
}

// keyOf is equal for workers that one fork server can fork.
func (s *Server) keyOf(spec proc.Spec, c command) string {
	parts := append([]string{spec.Path, spec.Dir, c.kind, c.target, strings.Join(c.flags, " "), ""}, lasting(spec.Env, s.o.PerLife)...)
	return strings.Join(parts, "\x00")
}

// start starts a fork server and follows it. s.mu is held.
func (s *Server) start(key string, spec proc.Spec, c command) (*life, error) {
	s.begun++
	l, err := begin(s.keeper, s.o.numbered(s.begun), spec, c)
	if err != nil {
		s.given, s.why = key, err.Error()
		go s.notice(err.Error())
		return nil, err
	}
	s.life, s.key, s.given, s.why = l, key, "", ""
	spares := s.spares
	s.running.Go(func() {
		l.settle(s.o.Limit)
		if l.why != "" && !l.killed {
			s.giveUp(l, l.why)
			return
		}
		if l.killed {
			s.replace(l, key, spec, c)
			return
		}
		s.o.Log.Info("fork server is ready", "pid", l.proc.PID(), "modules", l.modules, "memory", residentBytes(l.proc.PID()))
		l.stock.expect(spares)
		<-l.proc.Done()
		s.replace(l, key, spec, c)
	})
	return l, nil
}

// replace starts a fork server in the place of one that has died by itself.
func (s *Server) replace(dead *life, key string, spec proc.Spec, c command) {
	if !s.lost(dead) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spares = dead.stock.most()
	if s.life == nil && !s.closed && s.given != key {
		_, _ = s.start(key, spec, c) // why not has been told
	}
}

// lost counts a fork server that died or fell silent, and says whether it was the current one.
func (s *Server) lost(l *life) bool {
	s.mu.Lock()
	if s.life != l || s.closed {
		s.mu.Unlock()
		return false
	}
	s.losses++
	many := s.losses >= lossLimit
	if many {
		s.mu.Unlock()
		why := fmt.Sprintf("%d fork servers were lost in a row", lossLimit)
		if l.killed {
			why += ", the last one so: " + l.why
		}
		s.giveUp(l, why)
		return true
	}
	s.life = nil
	s.endLater(l)
	s.mu.Unlock()
	s.o.Log.Warn("fork server is lost", "pid", l.proc.PID())
	return true
}

// drop ends a fork server, so that the next fork begins a new one.
func (s *Server) drop(l *life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life == l {
		s.life = nil
		s.endLater(l)
	}
}

// giveUp ends a fork server for good: workers such as it was for start cold.
func (s *Server) giveUp(l *life, why string) {
	s.mu.Lock()
	if s.life != l || s.closed {
		s.mu.Unlock()
		return
	}
	s.given, s.why = s.key, why
	s.life = nil
	s.endLater(l)
	s.mu.Unlock()
	s.notice(why)
}

// notice tells why workers start cold, once for each reason.
func (s *Server) notice(why string) {
	s.mu.Lock()
	again := s.told == why
	s.told = why
	if s.why == "" {
		s.why = why
	}
	s.mu.Unlock()
	if !again {
		s.o.Notice("workers start cold: " + why)
	}
}

// endLater ends a fork server in the background. s.mu is held.
func (s *Server) endLater(l *life) {
	s.running.Go(func() {
		if err := l.end(context.Background()); err != nil {
			s.o.Log.Warn("fork server is left behind", "err", err)
		}
	})
}

// Close ends the fork server and waits until nothing of it is left. Workers that it forked go on.
func (s *Server) Close() error {
	s.mu.Lock()
	l := s.life
	s.closed, s.life = true, nil
	s.mu.Unlock()
	var err error
	if l != nil {
		err = l.end(context.Background())
	}
	s.running.Wait()
	return err
}
