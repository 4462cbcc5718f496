package service

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/notify"
)

// lifeFiles are the files of one worker life.
type lifeFiles struct {
	stdout, stderr string
	torchError     string // TORCHELASTIC_ERROR_FILE
}

// run starts the workers of one incarnation, all or none, and returns the step that they start from. A
// later incarnation only: what an earlier life left must have been stopped. An order for single workers
// starts those of the current incarnation anew, beside the others.
func (s *Service) run(ctx context.Context, order *api.Run) (int64, error) {
	if err := s.takeTurn(ctx); err != nil {
		return 0, err
	}
	defer s.endTurn()
	if err := s.admit(order); err != nil {
		return 0, fmt.Errorf("run %s incarnation %d: %w", s.id, order.GetIncarnation(), err)
	}
	// What a life that ended by itself has left behind must not meet the new one.
	if _, err := s.endThese(ctx, stoppedBetween, s.beginStop(0, order.GetOnly())); err != nil {
		return 0, err
	}
	if err := s.regain(); err != nil {
		return 0, err
	}
	if err := s.writePeers(order.GetPeersJson()); err != nil {
		return 0, err
	}
	step := s.beginLife(order)
	s.beginShm(len(order.GetOnly()) > 0)
	noted := s.iterationFile()
	workers, err := s.startAll(order)
	if err != nil {
		_, stopErr := s.endThese(ctx, stoppedAfterFailure, s.beginStop(0, order.GetOnly()))
		return 0, errors.Join(err, stopErr)
	}
	for _, w := range workers {
		s.probe(w)
	}
	if w := workers[0]; w.life.Rank == int(order.GetFirstRank()) {
		s.followIteration(noted, w)
	}
	s.log.Info("workers started", "incarnation", order.GetIncarnation(), "workers", len(workers), "step", step)
	return step, nil
}

// admit says why an order to run cannot be carried out.
func (s *Service) admit(order *api.Run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	inc := int(order.GetIncarnation())
	alone := len(order.GetOnly()) > 0
	switch {
	case s.signal != "":
		return fmt.Errorf("service %s is ending: it got %s", s.id, s.signal)
	case len(order.GetWorkers()) == 0:
		return errors.New("it names no workers")
	case inc <= s.incarnation && !alone:
		return fmt.Errorf("incarnation %d was started already", s.incarnation)
	case inc != s.incarnation && alone:
		return fmt.Errorf("single workers can be started of incarnation %d only", s.incarnation)
	}
	seen := map[uint32]bool{}
	for _, w := range order.GetWorkers() {
		if seen[w.GetRank()] {
			return fmt.Errorf("it names rank %d twice", w.GetRank())
		}
		seen[w.GetRank()] = true
	}
	for _, rank := range order.GetOnly() {
		if !seen[rank] {
			return fmt.Errorf("it does not say what rank %d is given", rank)
		}
	}
	for _, w := range s.lives {
		if w.running() && (!alone || slices.Contains(order.GetOnly(), uint32(w.life.Rank))) {
			return fmt.Errorf("rank %d of incarnation %d runs still", w.life.Rank, w.life.Incarnation)
		}
	}
	return nil
}

// beginLife settles from which step the new life starts: from a pending one that no later order has
// replaced, else from the order's. The order is changed to say so.
func (s *Service) beginLife(order *api.Run) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(order.GetOnly()) > 0 {
		return order.GetResumeStep()
	}
	if s.pendingStep != nil {
		order.ResumeStep = *s.pendingStep
		s.pendingStep = nil
	}
	s.incarnation, s.services = int(order.GetIncarnation()), max(int(order.GetGroupWorldSize()), 1)
	s.reported = lasting{}
	s.lengthened, s.askedStop = make(chan struct{}), 0
	s.steps.begin(order.GetResumeStep())
	return order.GetResumeStep()
}

// startAll starts the workers of the order: every one, or the single ones that it asks for, all at once. If
// one cannot be started, those that were are left to the caller to end.
func (s *Service) startAll(order *api.Run) ([]*worker, error) {
	back := s.reserve.Lend()
	defer back()
	workers, err := s.prepareAll(order)
	if err != nil {
		return nil, err
	}
	var group errgroup.Group
	for _, w := range workers {
		group.Go(func() error {
			if err := s.start(w); err != nil {
				s.discard(w)
				return fmt.Errorf("start %s rank %d: %w", s.id.Role, w.life.Rank, err)
			}
			s.change(func(out *words) { out.state(w) })
			s.running.Go(func() { s.watch(w) })
			return nil
		})
	}
	return workers, group.Wait()
}

// prepareAll makes what the workers of the order need before they start, for all of them or for none.
func (s *Service) prepareAll(order *api.Run) ([]*worker, error) {
	fromFile, err := s.readEnvFile()
	if err != nil {
		return nil, err
	}
	ordered := slices.Clone(order.GetWorkers())
	slices.SortFunc(ordered, func(a, b *api.Worker) int { return int(a.GetRank()) - int(b.GetRank()) })
	var workers []*worker
	for local, o := range ordered {
		if only := order.GetOnly(); len(only) > 0 && !slices.Contains(only, o.GetRank()) {
			continue
		}
		w, set, err := s.prepare(order, o)
		if err == nil {
			workers = append(workers, w)
			set.LocalRank, set.FromFile = local, fromFile
			w.devices = len(visible(set))
			set.TraceDir = traceDir(w)
			w.command, w.env, err = compose(set)
		}
		if err == nil {
			err = s.openTimers(w)
		}
		if err != nil {
			for _, w := range workers {
				s.discard(w)
			}
			return nil, fmt.Errorf("start %s rank %d: %w", s.id.Role, o.GetRank(), err)
		}
	}
	return workers, nil
}

// prepare makes what a worker life needs before it starts: its folder and its notify socket.
func (s *Service) prepare(order *api.Run, o *api.Worker) (*worker, setting, error) {
	attempt := max(int(o.GetAttempt()), 1)
	w := &worker{
		life:  role.Life{Job: s.opts.JobUID, Role: s.id.Role, Incarnation: int(order.GetIncarnation()), Rank: int(o.GetRank()), Attempt: attempt},
		ports: o.GetPorts(), master: order.GetMasterPort(), gpus: o.GetDevices(),
		ready: make(chan struct{}), ended: make(chan struct{}),
		state: role.WorkerStarting,
	}
	w.probing, w.endProbes = context.WithCancel(context.Background())
	dir := filepath.Join(s.opts.LogDir, string(s.id.Role), strconv.Itoa(w.life.Incarnation), fmt.Sprintf("%d.%d", w.life.Rank, attempt))
	switch folder, err := proc.MakeFolder(dir, 0o750); {
	case err == nil:
		folder.Close()
	case !full(err):
		return nil, setting{}, fmt.Errorf("make log folder of %s rank %d: %w", s.id.Role, w.life.Rank, err)
	}
	w.files = lifeFiles{
		stdout:     filepath.Join(dir, "stdout.log"),
		stderr:     filepath.Join(dir, "stderr.log"),
		torchError: filepath.Join(dir, "error.json"),
	}
	socket := s.runtime.NotifySocket(randomName())
	w.inbox = filepath.Join(proc.OwnFolder(socket), "in")
	w.senders.begun, w.senders.uid = make(chan struct{}), uint32(s.workerUID())
	r, err := notify.Listen(socket, func(from notify.Credentials, said []notify.Word) { s.hear(w, from, said) }, func(err error) {
		s.notice(w, "it says what cannot be meant, more of which is only counted: "+err.Error())
	})
	if err != nil {
		return nil, setting{}, fmt.Errorf("prepare %s rank %d: %w", s.id.Role, w.life.Rank, err)
	}
	w.notify = r
	if err := s.openOwn(w); err != nil {
		r.Close()
		return nil, setting{}, fmt.Errorf("prepare %s rank %d: %w", s.id.Role, w.life.Rank, err)
	}
	return w, setting{
		Base: os.Environ(), JobName: s.opts.JobName, Life: w.life, Role: &s.opts.Role, Run: order, Worker: o,
		User: s.user, NotifySocket: socket, Inbox: w.inbox, PeersFile: s.peersFile, ErrorFile: s.errorFile(w), HookFolder: s.hookFolder, Devices: s.opts.DeviceVariable,
		ServiceURL: s.urlOf(w.life),
	}, nil
}

// start starts the worker's process. From here on its words count.
func (s *Service) start(w *worker) error {
	var err error
	if w.output, err = openOutput(w.files, s.opts.Role.Logs, s.scanOf(w), func(text string) { s.notice(w, text) }); err != nil {
		return err
	}
	defer w.output.started()
	if err := s.giveTo(s.workerUID(), w); err != nil {
		return err
	}
	lingering := lingeringOf(w.ports)
	s.mu.Lock()
	w.lingering = lingering
	s.lives[w.life.Rank] = w
	s.mu.Unlock()
	p, err := s.spawn(proc.Spec{
		Path: w.command[0], Args: w.command[1:], Dir: s.opts.Role.Workdir, Env: w.env,
		Stdout: w.output.childEnds[0], Stderr: w.output.childEnds[1],
		Leaf: fmt.Sprintf("vigil-%s/%s.%d/%d.%d.%d", s.opts.JobUID, s.id.Role, s.id.Index,
			w.life.Incarnation, w.life.Rank, w.life.Attempt),
		Credential: s.credential(), DieWithParent: true,
	})
	s.mu.Lock()
	if err != nil {
		delete(s.lives, w.life.Rank)
		s.mu.Unlock()
		w.senders.settle()
		if s.user != nil && errors.Is(err, unix.EACCES) {
			err = fmt.Errorf("%w (user %s must be able to reach the program and the workdir)", err, s.opts.Role.User)
		}
		return err
	}
	w.proc, w.senders.family = p, s.keeper.FamilyOf(p)
	s.mu.Unlock()
	w.senders.settle()
	s.noteWorker(p)
	return nil
}

// discard removes what a life needed only while it ran. The logs stay.
func (s *Service) discard(w *worker) {
	w.endProbes()
	w.senders.settle()
	w.notify.Close()
	w.timers.close()
	if w.output != nil {
		w.output.close()
	}
	s.keepError(w)
	if err := os.RemoveAll(w.own()); err != nil {
		s.log.Warn("inbox is left behind", "path", w.inbox, "err", err)
	}
}

// readEnvFile reads what the role's env_file says now; nothing without one.
func (s *Service) readEnvFile() (map[string]string, error) {
	file := job.Role{EnvFile: s.opts.Role.EnvFile}
	pairs, err := file.Environ(nil)
	if err != nil {
		return nil, fmt.Errorf("compose environment of %s: %w", s.id.Role, err)
	}
	env := map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		env[key] = value
	}
	return env, nil
}

// randomName returns 16 hexadecimal digits that nobody can guess.
func randomName() string {
	var b [8]byte
	rand.Read(b[:]) // never fails, since Go 1.24
	return hex.EncodeToString(b[:])
}
