package service

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/devices"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/warm"
	"vigil/internal/wire/rpc"
)

// farewellTime bounds what a service says to its controller at its own end.
const farewellTime = 5 * time.Second

// Service runs and watches the workers of one role on one node. New makes one, Run works until the
// end, Close takes it apart.
type Service struct {
	opts        Options
	id          rpc.ServiceID
	log         *slog.Logger
	keeper      *proc.Keeper
	shm         *proc.Shm
	tree        *proc.TreeNote
	link        *rpc.Link
	runtime     proc.Dir
	user        *job.User // whom workers run as; nil: us
	sayCold     sync.Once
	dir         string // its path
	footing     footing
	peersFile   string        // VIGIL_PEERS_FILE
	warm        *warm.Server  // forks workers; nil: they are executed
	probeLeft   sync.Once     // that probes leave something behind is said once
	hookFolder  string        // of the optimizer hook; empty for a role that does not have it
	reserve     *proc.Reserve // descriptors for what must be started
	httpAddress string
	key         [32]byte // of the secrets in workers' addresses

	turn         chan struct{} // held by the order that starts or ends workers
	ended        []proc.Ident  // processes whose devices were not free; guarded by turn
	begun        chan struct{} // a new life has
	grown        chan struct{} // there is a new worker
	settingStep  chan struct{} // held by the order that tells workers a step
	writingPeers sync.Mutex
	leaving      chan struct{}
	leaveOnce    sync.Once
	running      sync.WaitGroup // HTTP endpoints, and whoever waits for the end of a worker
	endings      []func()       // run backwards by Close

	telling sync.Mutex // held while a change of state is told; taken before mu

	mu          sync.Mutex
	incarnation int           // the last that was started
	services    int           // of the role, with this one
	lengthened  chan struct{} // closed: stops have the grace of a wanted one until the next life
	askedStop   uint64        // number of the word that an operator has asked for that here; 0: nobody has since the last life began
	signal      string        // that this service ends because of; empty: it does not
	lives       map[int]*worker
	steps       steps
	heldPorts   int      // lives in a row that could not bind a port of theirs
	pendingStep *int64   // to be taken at the next start
	ownStep     *ownStep // set at our own endpoint; nil: the controller knows of all
	seq         int64    // of the last SET_STEP
	numbered    uint64   // words, see lasting
	reported    lasting  // of the role as a whole, in this incarnation
}

// New makes the parts of a service: the keeper of its processes, its sockets, its HTTP endpoints. The
// controller does not hear of it before Run. Close must be called also when Run was not.
func New(o Options, log *slog.Logger) (_ *Service, err error) {
	// What the controller has given us to hold, its locks, is not for workers.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		log.Debug("inherited files may reach workers", "err", err) // a kernel before 5.11
	}
	s := &Service{
		opts: o, id: rpc.ServiceID{Role: o.Role.Name, Index: o.Index}, log: log,
		turn: make(chan struct{}, 1), begun: make(chan struct{}, 1), grown: make(chan struct{}, 1), settingStep: make(chan struct{}, 1), leaving: make(chan struct{}),
		lengthened: make(chan struct{}), lives: map[int]*worker{},
	}
	s.steps.begin(0)
	_, _ = rand.Read(s.key[:]) // never fails (crypto/rand)
	if _, _, known := proc.ProcessRoom(); known {
		proc.SpareThreads(4 + min(o.Role.Workers, 64))
	}
	s.reserve = proc.HoldBack(heldBack(o.Role.Workers))
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err = s.openRuntime(); err != nil {
		return nil, err
	}
	if s.keeper, err = proc.NewKeeper(proc.Options{Log: log}); err != nil {
		return nil, err
	}
	s.atEnd(func() { s.keeper.Close() })
	s.warm = s.openWarm()
	closed := make(chan struct{})
	s.followShm(closed)
	s.followTree(closed)
	s.followStarved(closed)
	s.followKernel(closed)
	s.running.Go(func() { devices.Tend(closed) })
	s.followWarnings(closed)
	s.atEnd(func() { close(closed) })
	socket, err := s.openSocket(s.runtime)
	if err != nil {
		return nil, err
	}
	if s.hookFolder, err = s.openHook(); err != nil {
		log.Warn("optimizer steps are not counted", "err", err)
	}
	l, err := net.Listen("tcp", o.HTTP)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	s.httpAddress = l.Addr().String()
	s.serveHTTP(l)
	if err := s.makeLink(socket); err != nil {
		return nil, err
	}
	s.followFooting()
	return s, nil
}

// openSocket listens where the controller will call, and makes the peers file, which belongs to the
// socket.
func (s *Service) openSocket(dir proc.Dir) (net.Listener, error) {
	path, err := dir.Socket("s")
	if err != nil {
		return nil, err
	}
	l, err := proc.ListenUnix(path)
	if err != nil {
		return nil, err
	}
	s.atEnd(func() { l.Close() }) // where no link has closed it
	s.footing.socket, s.peersFile = path, proc.CompanionOf(path, "peers")
	s.atEnd(func() { _, _ = os.Remove(s.peersFile), os.RemoveAll(proc.OwnFolder(path)) })
	return l, s.writePeers("")
}

func (s *Service) makeLink(l net.Listener) (err error) {
	s.link, err = rpc.NewLink(rpc.LinkOptions{
		Controller: s.opts.Controller, JobUID: s.opts.JobUID, ID: s.id, Node: s.opts.Node,
		Incarnation: s.opts.Incarnation, Token: s.opts.Token, Epoch: s.opts.Epoch, HTTPAddress: s.httpAddress,
		Listener: l, Grace: s.opts.ControllerGrace, Orders: s.obey, Hello: s.hello, Log: s.log,
	})
	if err != nil {
		return err
	}
	s.atEnd(func() {
		ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
		defer cancel()
		s.link.Close(ctx)
	})
	return nil
}

// Run registers with the controller and works until it is told to leave or ctx ends: then it returns
// nil, with the workers stopped in order. The error wraps rpc.ErrControllerLost when it has been
// without a controller for too long; the workers have been stopped in order then, too.
func (s *Service) Run(ctx context.Context) error {
	if err := s.takeSeat(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to stop before it was known
		}
		return err
	}
	if err := s.link.Register(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // told to stop before it was known
		}
		s.sweep() // of a controller that was killed first
		return err
	}
	s.log.Info("registered", "service", s.id.String(), "controller", s.opts.Controller, "http", s.httpAddress)
	linkCtx, endLink := context.WithCancel(context.WithoutCancel(ctx))
	linkEnded := make(chan error, 1)
	go func() { linkEnded <- s.link.Run(linkCtx) }()
	var err error
	select {
	case <-s.leaving:
		s.unregister()
	case <-ctx.Done():
		err = s.endForSignal(ctx, context.Cause(ctx))
		s.unregister()
	case err = <-linkEnded:
		endLink()
		return s.withoutController(ctx, err)
	}
	endLink()
	<-linkEnded //nolint:errcheck // its end was asked for
	return err
}

// withoutController ends the workers in order when the controller is no more.
func (s *Service) withoutController(ctx context.Context, why error) error {
	switch {
	case errors.Is(why, rpc.ErrControllerLost):
		s.log.Error("stopping the workers: without a controller there is no mandate", "err", why, "grace", s.opts.ControllerGrace)
		err := s.endWithNote(ctx, fmt.Sprintf("it had been without a controller for %s", s.opts.ControllerGrace))
		s.sweep()
		if err != nil {
			return fmt.Errorf("%s: %w", why, err) // nobody is to read that the end was orderly
		}
		return why
	case errors.Is(why, rpc.ErrReplaced):
		s.log.Error("stopping the workers: without a controller there is no mandate", "err", why, "grace", s.opts.ControllerGrace)
	case errors.Is(why, rpc.ErrControllerStopped):
		s.log.Info("stopping the workers: the controller has stopped")
		why = nil
	}
	_, err := s.Stop(context.WithoutCancel(ctx), 0, stoppedInOrder)
	return errors.Join(why, err)
}

// sweep removes what a controller that was killed has left in the runtime directory: its socket, its
// leases of ports. What somebody holds is left alone.
func (s *Service) sweep() {
	_, err := s.runtime.Sweep()
	if err := errors.Join(err, s.runtime.VoidLeases()); err != nil {
		s.log.Warn("runtime directory is not swept", "err", err)
	}
}

func (s *Service) unregister() {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	if err := s.link.Unregister(ctx); err != nil {
		s.log.Warn("the controller is not told of the end", "err", err)
	}
}

// atEnd has Close call f, before what was asked for earlier.
func (s *Service) atEnd(f func()) { s.endings = append(s.endings, f) }

// Close takes the service apart: endpoints, sockets, files. Workers that still run, which Run leaves
// only where they cannot be stopped, die with the program.
func (s *Service) Close() {
	s.mu.Lock()
	for _, w := range s.lives {
		w.endProbes()
	}
	s.mu.Unlock()
	for len(s.endings) > 0 {
		last := len(s.endings) - 1
		s.endings[last]()
		s.endings = s.endings[:last]
	}
	s.mu.Lock()
	lives := slices.Collect(maps.Values(s.lives))
	s.mu.Unlock()
	for _, w := range lives {
		s.discard(w)
	}
	if len(lives) == 0 { // else somebody waits for an end that does not come
		s.running.Wait()
	}
}
