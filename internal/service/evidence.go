package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/evidence"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
)

// memory is what a worker has said that evidence needs. It is guarded by Service.mu.
type memory struct {
	heard        time.Time // of its last heartbeat; zero: none
	word         time.Time // of its last word, a heartbeat or of a phase; zero: none
	words        int       // how many those were
	faultHandler unix.Signal
	phases       []openPhase // oldest first
}

type openPhase struct {
	name  string
	began time.Time
}

// remember notes what is about to be told of the workers' heartbeats and phases. Service.mu is held.
func (s *Service) remember(out *words) {
	now := time.Now()
	for _, b := range out.beats {
		if w := s.lives[int(b.GetLife().GetRank())]; w != nil {
			w.memory.heard, w.memory.word = now, now
			w.memory.words++
		}
	}
	for _, word := range out.other {
		s.keep(word, slices.Contains(out.passing, word), now)
		p := word.GetPhase()
		w := s.lives[int(p.GetLife().GetRank())]
		if p == nil || w == nil {
			continue
		}
		w.memory.word = now
		w.memory.words++
		w.memory.phases = slices.DeleteFunc(w.memory.phases, func(o openPhase) bool { return o.name == p.GetName() })
		if p.GetBegin() {
			w.memory.phases = append(w.memory.phases, openPhase{p.GetName(), now.Add(-time.Duration(p.GetAgeMs()) * time.Millisecond)})
		}
	}
}

// stopFor carries out an order to stop. What can be known of the workers is kept first, where the order
// names an incident.
func (s *Service) stopFor(ctx context.Context, order *api.Stop) ([]string, error) {
	if err := s.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer s.endTurn()
	lives := s.beginStop(order.GetBelow(), order.GetRanks())
	if order.GetIncident() != "" {
		s.takeEvidence(ctx, order.GetIncident(), role.Cause(order.GetCause()), lives)
	}
	kind := stoppedInOrder
	if order.GetAfterFailure() {
		kind = stoppedAfterFailure
	}
	return s.endThese(ctx, kind, lives)
}

// takeEvidence keeps what can be known of workers that are about to be ended. It is bounded, and that
// it does not succeed is said and changes nothing.
func (s *Service) takeEvidence(ctx context.Context, incident string, cause role.Cause, lives []*worker) {
	if s.opts.IncidentDir == "" || len(lives) == 0 {
		return
	}
	form := evidence.FormOf(cause)
	account, err := s.taker().Take(ctx, filepath.Join(s.opts.IncidentDir, incident), s.id.Index, form, cause, s.subjects(lives))
	if err != nil {
		s.log.Warn("evidence is not kept", "incident", incident, "err", err)
		return
	}
	s.log.Info("evidence kept", "incident", incident, "form", form, "took", time.Duration(account.Took*float64(time.Second)).Round(time.Millisecond))
	for _, r := range account.Ranks {
		s.log.Info("evidence", "rank", r.Rank, "says", r.Says)
	}
}

func (s *Service) taker() evidence.Taker {
	return evidence.Taker{Run: s.keeper.Run, KernelLog: s.opts.KernelLog}
}

// subjects describes the lives, with the processes that each of them has.
func (s *Service) subjects(lives []*worker) []evidence.Subject {
	var tree proc.Tree
	for _, w := range lives {
		s.keepError(w)
		if w.proc != nil {
			tree.Sessions = append(tree.Sessions, w.proc.Ident())
		}
	}
	below := map[int][]int{} // pids by session
	for _, h := range s.keeper.Remains(tree) {
		below[h.Session] = append(below[h.Session], h.PID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	subjects := make([]evidence.Subject, 0, len(lives))
	for _, w := range lives {
		e := evidence.Subject{
			Life: w.life, Exit: w.exit, Stdout: w.files.stdout, Stderr: w.files.stderr, ErrorFile: w.files.torchError,
			FaultHandler: w.memory.faultHandler, Devices: w.devices, HeartbeatAge: -1, Step: -1,
		}
		if w.proc != nil {
			e.Processes = ownFirst(w.proc.PID(), below[w.proc.PID()])
		}
		if step, ok := s.steps.spoken[w.life.Rank]; ok {
			e.Step = step
		}
		if !w.memory.heard.IsZero() {
			e.HeartbeatAge = now.Sub(w.memory.heard)
		}
		for _, r := range w.senders.raised {
			e.Raised = append(e.Raised, r.String())
		}
		for _, p := range w.memory.phases {
			e.Phases = append(e.Phases, evidence.Phase{Name: p.name, Age: now.Sub(p.began).Seconds()})
		}
		e.Trace, e.Pipe = recorder(w.env, w.life.Rank)
		subjects = append(subjects, e)
	}
	return subjects
}

func ownFirst(own int, pids []int) []int {
	if i := slices.Index(pids, own); i > 0 {
		pids[0], pids[i] = pids[i], pids[0]
	}
	return pids
}

// recorder returns where NCCL's flight recorder of a rank writes, and the pipe by which it is told to:
// torch adds the rank to the names that the environment has (torch/csrc/distributed/c10d,
// ProcessGroupNCCL.cpp and FlightRecorder.hpp).
func recorder(environ []string, rank int) (trace, pipe string) {
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case value == "":
		case name == "TORCH_NCCL_DEBUG_INFO_TEMP_FILE":
			trace = value + strconv.Itoa(rank)
		case name == "TORCH_NCCL_DEBUG_INFO_PIPE_FILE":
			pipe = value + strconv.Itoa(rank) + ".pipe"
		}
	}
	return trace, pipe
}

// traceDir is where the flight recorder of a worker may write: nowhere without a device of NVIDIA's.
func traceDir(w *worker) string {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil && w.devices == 0 {
		return ""
	}
	return filepath.Dir(w.files.torchError)
}

// cause finds out why a worker has ended. What it reported says more than its status does; so does the
// error file that was written first, which may be a peer's: a rank that raises takes the others with
// it, and which of them ends first is chance.
func (s *Service) cause(w *worker, exit role.Exit, ended time.Time) role.Failure {
	f := role.Failure{Life: w.life, Cause: role.Exited, Detail: exit.String(), At: time.Now(), Exit: &exit, Log: w.files.stderr}
	raised, broken := s.rootCause(w, exit, ended)
	switch {
	case exit.Sender == proc.OOMKiller:
		f.Detail = "killed by the kernel: out of memory; " + exit.String()
	case raised != "":
		f.Detail = raised
	case broken != nil:
		s.log.Warn("the error file says nothing", "rank", w.life.Rank, "err", broken)
		f.Detail += "; " + broken.Error()
	}
	if taken := s.takenPort(w, exit); taken != "" {
		f.Cause, f.Detail = role.PortTaken, taken+"; "+f.Detail
		return f
	}
	if exit.Signal == "" && exit.Code != 0 {
		said := raised + "\n" + strings.Join(slices.Concat(w.output.stderr.last(tailLines), w.output.stdout.last(tailLines)), "\n")
		s.mu.Lock()
		held := s.heldPort(w, said)
		s.mu.Unlock()
		if held != "" {
			f.Cause, f.Detail = role.PortTaken, held+"; "+f.Detail
			return f
		}
	}
	if w.devices == 0 {
		return f
	}
	// The process's start is in ticks of a hundredth of a second since boot.
	since := time.Duration(w.proc.StartTime())*10*time.Millisecond - time.Second
	if x, ok := illDevice(s.taker().Xids(since), exit.PID); ok {
		f.Cause, f.Detail = role.Hardware, x.Line+"; "+f.Detail
	}
	return f
}

// takenPort says which of the ports that were leased for a worker a stranger listens on. A worker that was killed has
// not ended because of that, and one whose role has chosen a port itself cannot be helped by another life.
func (s *Service) takenPort(w *worker, exit role.Exit) string {
	if exit.Signal == "" && exit.Code == 0 || exit.Signal != "" && exit.Signal != "SIGABRT" {
		return ""
	}
	s.mu.Lock()
	stopping := w.stopping
	s.mu.Unlock()
	if stopping {
		return ""
	}
	ports := map[string]uint32{}
	for _, p := range s.opts.Role.Ports {
		if port, has := w.ports[p.Name]; has && p.Number == 0 {
			ports[p.Name] = port
		}
	}
	if w.master != 0 && s.opts.Role.Distributed != job.None && w.life.Rank == 0 { // the others connect to it
		ports["master"] = w.master
	}
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		if who, taken := proc.ListenerOn(int(ports[name])); taken && s.isStranger(who) {
			return fmt.Sprintf("its port %d (%s) is taken by %s", ports[name], name, who)
		}
	}
	return ""
}

// isStranger says whether who listens is nothing of this job.
func (s *Service) isStranger(who proc.Listener) bool {
	if who.PID == 0 {
		return who.UID != os.Geteuid()
	}
	return !strings.HasPrefix(who.Mark, s.opts.JobUID+"/") && !who.Below(os.Getpid())
}

// rootCause returns the message of the error file that was written first by a rank of the role on this
// machine, with the rank where that is another's, and what is wrong with the worker's own if there is
// none. Workers that are restarted alone do not take each other along: of such only the own one counts. What a
// peer has written after this worker had ended is no cause of that.
func (s *Service) rootCause(w *worker, exit role.Exit, ended time.Time) (message string, broken error) {
	for _, peer := range s.living() {
		s.keepError(peer)
	}
	files := map[int]string{}
	if s.opts.Role.Restart.Unit != job.UnitWorker {
		files = evidence.ErrorFiles(filepath.Dir(filepath.Dir(w.files.torchError)))
	}
	files[w.life.Rank] = w.files.torchError
	var first evidence.ErrorFile
	from := role.NoRank
	for rank, path := range files {
		raised, err := evidence.ReadErrorFile(path)
		switch {
		case err == nil && s.wasTolerated(rank, raised.Written):
			// A process that it has started wrote it, and it went on.
		case err == nil && rank != w.life.Rank && raised.Written.After(ended.Add(-noticed(exit))):
			// Its peer has felt its end.
		case err == nil && (from == role.NoRank || raised.Before(first)):
			first, from = raised, rank
		case err != nil && rank == w.life.Rank && !errors.Is(err, fs.ErrNotExist):
			broken = err
		}
	}
	switch from {
	case role.NoRank, w.life.Rank:
		return first.Message, broken
	default:
		return fmt.Sprintf("rank %d failed first: %s", from, first.Message), broken
	}
}

// noticed is how long before its end was seen a process may have been ended by a signal, on a machine that
// is busy. SIGABRT, which a process sends itself, may well be the consequence of what its peer has raised, as
// an exit code may.
func noticed(exit role.Exit) time.Duration {
	if exit.Signal == "" || exit.Signal == "SIGABRT" {
		return 0
	}
	return 2 * time.Second
}

// illDevice returns the newest word of the driver about a device that is ill, unless it names a process
// that still runs and is not this one.
func illDevice(xids []evidence.Xid, pid int) (evidence.Xid, bool) {
	for _, x := range slices.Backward(xids) {
		if !x.Hardware() {
			continue
		}
		if other, err := proc.Identify(x.PID); x.PID == 0 || x.PID == pid || err != nil || !other.Alive() {
			return x, true
		}
	}
	return evidence.Xid{}, false
}
