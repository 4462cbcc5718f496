package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/notify"
)

// The times of a probe that names none.
const (
	probePeriod  = time.Second
	probeTimeout = 10 * time.Second
)

// probe finds out when a worker is ready, and tells it once. Without a probe it is ready since it runs.
// One that is ready is asked whether it is alive, where the role says how.
func (s *Service) probe(w *worker) {
	ready, alive := s.opts.Role.Ready, s.opts.Role.Alive
	if ready == nil {
		s.becomeReady(w)
		if alive == nil {
			return
		}
	}
	w.probes.Go(func() {
		ctx, cancel := context.WithCancel(w.probing)
		defer cancel()
		go func() { // an ended worker is asked nothing more
			select {
			case <-w.ended:
				cancel()
			case <-ctx.Done():
			}
		}()
		if ready != nil {
			if !s.awaitReady(ctx, w, *ready) {
				return
			}
			s.becomeReady(w)
		}
		if alive != nil {
			s.stayAlive(ctx, w, *alive)
		}
	})
}

func (s *Service) becomeReady(w *worker) {
	s.change(func(out *words) {
		if s.listensTo(w) && w.state == role.WorkerStarting {
			w.state, w.unready = role.WorkerReady, ""
			out.state(w)
		}
	})
}

// awaitReady asks until the answer is good, or ctx ends: then it returns false.
func (s *Service) awaitReady(ctx context.Context, w *worker, p job.Probe) bool {
	if p.Notify {
		select {
		case <-w.ready:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if p.Period <= 0 {
		p.Period = probePeriod
	}
	if p.Timeout <= 0 {
		p.Timeout = probeTimeout
	}
	tick := time.NewTicker(p.Period)
	defer tick.Stop()
	for asked := 1; ; asked++ {
		once, cancel := context.WithTimeout(ctx, p.Timeout)
		err := s.ask(once, w, p)
		cancel()
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.noteUnready(w, err.Error())
		// The first answers of a worker that starts are no news; that there are none yet is, later.
		if asked == 30 {
			s.log.Warn("worker is not ready yet", "rank", w.life.Rank, "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// noteUnready keeps what a ready probe has met last: it is the reason if the worker never becomes ready.
func (s *Service) noteUnready(w *worker, met string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.unready != met && w.state == role.WorkerStarting {
		w.unready = met
		s.tellStateSoon(w)
	}
}

// ask asks once.
func (s *Service) ask(ctx context.Context, w *worker, p job.Probe) error {
	switch {
	case p.HTTP != nil:
		return askHTTP(ctx, w, *p.HTTP)
	case p.TCP != nil:
		return askTCP(ctx, w, *p.TCP)
	default:
		return s.askExec(ctx, w, p.Exec)
	}
}

// asker follows no redirect, since one is a good answer, and heeds no proxy.
var asker = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func askHTTP(ctx context.Context, w *worker, p job.HTTPProbe) error {
	return w.atLoopback(p.Port, func(address string) error { return getHTTP(ctx, address, p.Path) })
}

func getHTTP(ctx context.Context, address, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}
	resp, err := asker.Do(req)
	if err != nil {
		if inner := new(url.Error); errors.As(err, &inner) && !inner.Timeout() {
			err = inner.Err // which names the address
		}
		return fmt.Errorf("probe: %w", err)
	}
	resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("probe %s: status %d, want 200 to 399", path, resp.StatusCode)
	}
	return nil
}

func askTCP(ctx context.Context, w *worker, p job.TCPProbe) error {
	return w.atLoopback(p.Port, func(address string) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		return conn.Close()
	})
}

// askExec runs a command with the worker's environment, less what would let it speak for the worker; exit status 0 is
// the good answer.
func (s *Service) askExec(ctx context.Context, w *worker, command []string) error {
	args := make([]string, len(command))
	for i, arg := range command {
		var err error
		if args[i], err = job.ExpandPorts(arg, w.ports); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
	}
	said := openNote()
	defer said.Close()
	p, err := s.keeper.Start(proc.Spec{Path: args[0], Args: args[1:], Dir: s.opts.Role.Workdir, Env: s.probeEnv(w), Stderr: said, DieWithParent: true})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	select {
	case <-p.Done():
		s.endBackground(ctx, w, p)
	case <-ctx.Done():
		if _, err := s.keeper.Clear(context.WithoutCancel(ctx), p.Tree()); err != nil {
			return fmt.Errorf("end probe %s: %w", args[0], err)
		}
		return fmt.Errorf("probe %s: no answer in time%s", args[0], lastLine(said))
	}
	exit := p.Exit()
	exit.PID = 0 // of a process that nobody can look for
	if exit.Signal != "" || exit.Code != 0 {
		return fmt.Errorf("probe %s: %s%s", args[0], exit, lastLine(said))
	}
	return nil
}

// endBackground ends what a probe that is over has left in the background, so that nothing piles up, and says so for the
// first of all. A worker is asked by one probe at a time: everything with its probes' mark is of this one.
func (s *Service) endBackground(ctx context.Context, w *worker, p *proc.Process) {
	held, err := s.keeper.Clear(context.WithoutCancel(ctx), p.Tree())
	switch {
	case err != nil:
		s.log.Warn("what a probe has started is left behind", "rank", w.life.Rank, "err", err)
	case len(held) > 0:
		s.probeLeft.Do(func() {
			s.log.Warn("a probe leaves processes in the background, which are ended whenever it is over", "rank", w.life.Rank, "probe", p.Name(), "such as", held[0].String())
		})
	}
}

// probeEnv is a worker's environment for those who ask how it is.
func (s *Service) probeEnv(w *worker) []string {
	env := notify.Mute(w.env)
	for i, pair := range env {
		switch name, value, _ := strings.Cut(pair, "="); name {
		case proc.Mark:
			env[i] = name + "=" + probeMark(w)
		case "PYTHONPATH":
			env[i] = name + "=" + withoutHook(s.hookFolder, value)
		}
	}
	return env
}

// probeMark is the mark of a worker's probes and of what they leave behind: not the worker's own.
func probeMark(w *worker) string { return w.life.String() + "/probe" }

// clearProbes ends what exec probes of workers that have ended have left behind.
func (s *Service) clearProbes(ctx context.Context, lives []*worker) {
	if !asksByCommand(&s.opts.Role) {
		return
	}
	for _, w := range lives {
		if _, err := s.keeper.Clear(ctx, proc.Tree{Mark: probeMark(w)}); err != nil {
			s.log.Warn("what probes have started is left behind", "rank", w.life.Rank, "err", err)
		}
	}
}

func asksByCommand(r *job.Role) bool {
	return r.Ready != nil && len(r.Ready.Exec) > 0 || r.Alive != nil && len(r.Alive.Exec) > 0
}

// atLoopback asks where a worker may listen on its leased port of that name: on 127.0.0.1, and where nobody listens there,
// on ::1, which is what "localhost" means to some programs. Where neither is listened on, it tells what the first one met
// that this machine has.
func (w *worker) atLoopback(port string, ask func(address string) error) error {
	number, ok := w.ports[port]
	if !ok {
		return fmt.Errorf("probe: no port %q was leased for this worker", port)
	}
	at := func(host string) error { return ask(net.JoinHostPort(host, strconv.Itoa(int(number)))) }
	first := at("127.0.0.1")
	if !isAbsent(first) && !errors.Is(first, unix.ECONNREFUSED) {
		return first
	}
	second := at("::1")
	if second != nil && (isAbsent(second) || errors.Is(second, unix.ECONNREFUSED) && !isAbsent(first)) {
		return first
	}
	return second
}

// isAbsent reports whether a connection failed because the machine does not have that address.
func isAbsent(err error) bool {
	return errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EHOSTUNREACH)
}
