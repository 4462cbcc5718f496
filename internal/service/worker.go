package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/notify"
	"vigil/internal/wire/roleapi"
	"vigil/internal/wire/rpc"
)

// tailLines is how many of the last lines of standard error go with the end of a worker.
const tailLines = 20

// worker is one worker life. What is below the line is guarded by Service.mu.
type worker struct {
	life    role.Life
	ports   map[string]uint32
	master  uint32   // port of the life's store; 0: there is none
	devices int      // how many it sees
	gpus    []string // those that are its own, as the order names them
	command []string
	env     []string
	files   lifeFiles
	inbox   string
	notify  *notify.Receiver
	output  *output
	timers  *fileTimers // nil: it does not ask for them
	proc    *proc.Process
	ready   chan struct{} // closed at READY=1
	ended   chan struct{} // closed when its end has been told

	senders   senders         // who speaks for it
	probing   context.Context // ends with the life
	endProbes context.CancelFunc
	probes    sync.WaitGroup

	// ---
	state     role.WorkerState
	stopping  bool            // it is being ended: what it says is dropped
	changed   *proc.OtherUser // it runs as another user than it was started as; nil: as far as is known it does not
	exit      *role.Exit
	status    string            // STATUS=
	statusDue bool              // it will be told soon
	isReady   bool              // READY=1 was said
	lingering map[string]string // by name, its ports that earlier connections held when it was started, and their state
	heldPort  bool              // it has ended because of one
	leftSaid  bool              // it was said what it has left behind
	fatal     bool              // it said that restarting cannot help
	unready   string            // what its ready probe met last; empty: nothing, or it is ready
	reported  string            // the first error that it reported
	failed    *role.Failure     // what the controller was told of its failure, last
	sent      sent              // what of that the controller was told
	told      *toldStep
	memory    memory
	lasting   lasting // words of it that hold beyond the session in which they were told
	phases    phases
	starved   time.Time // when it was last seen to wait for a CPU
	looked    time.Time // when the controller was last told of a look at it; only who looks reads it
	saysSteps bool      // it says its steps itself: none is guessed
	guessed   int64     // the highest step that was guessed
}

// sent says which report of a life the controller has been told.
type sent int

const (
	nothing sent = iota
	aReport
	aFatalReport
)

// running says whether the worker's process has not ended, as far as we know.
func (w *worker) running() bool { return w.proc != nil && w.exit == nil }

// words is what a change of state gives the controller to hear.
type words struct {
	beats   []*api.Beat
	other   []*api.FromService
	passing []*api.FromService // those of other that are not told again in a later session
}

func (o *words) state(w *worker) {
	o.other = append(o.other, &api.FromService{Word: &api.FromService_Worker{Worker: w.wire()}})
}

func (o *words) failure(f role.Failure) {
	o.other = append(o.other, rpc.WireFailure(f, f.At))
}

// passingFailure tells a failure that is told again by itself while it holds.
func (o *words) passingFailure(f role.Failure) {
	o.failure(f)
	o.passing = append(o.passing, o.other[len(o.other)-1])
}

func (o *words) beat(l role.Life, step *int64) {
	b := &api.Beat{Life: rpc.WireLife(l)}
	if step != nil {
		b.HasStep, b.Step = true, *step
	}
	o.beats = append(o.beats, b)
}

// wire returns the worker's state as the controller reads it. Service.mu is held.
func (w *worker) wire() *api.WorkerState {
	state := &api.WorkerState{Life: rpc.WireLife(w.life), State: string(w.state), Exit: rpc.WireExit(w.exit), Status: w.status, Unready: w.unready}
	if w.proc != nil {
		state.Pid = int64(w.proc.PID())
	}
	return state
}

// change is the only way in which the state of workers changes and the controller hears of it: in the
// order in which it happened. f runs under the lock and says what is to be told.
func (s *Service) change(f func(*words)) {
	s.telling.Lock()
	defer s.telling.Unlock()
	var out words
	s.mu.Lock()
	f(&out)
	s.remember(&out)
	s.mu.Unlock()
	for _, b := range out.beats {
		s.link.Beat(b)
	}
	for _, word := range out.other {
		s.link.Send(word)
	}
}

// takeAll takes words that were said together. Service.mu is held.
func (s *Service) takeAll(w *worker, said []notify.Word, out *words) {
	hook := false
	for _, word := range said { // these hold for the words beside them, whichever comes first
		w.fatal = w.fatal || word.Kind == notify.Fatal
		hook = hook || word.Kind == notify.Guessed
	}
	for _, word := range said {
		if hook && word.Kind == notify.Step {
			s.guess(w, word.Number, out)
			continue
		}
		s.take(w, word, out)
	}
}

// listensTo says whether words of a life count. Service.mu is held.
func (s *Service) listensTo(w *worker) bool {
	return s.lives[w.life.Rank] == w && !w.stopping && w.exit == nil
}

// take takes one word. Service.mu is held.
func (s *Service) take(w *worker, word notify.Word, out *words) {
	switch word.Kind {
	case notify.Ready:
		if !w.isReady {
			w.isReady = true
			close(w.ready)
		}
	case notify.Status:
		s.takeStatus(w, word.Text)
	case notify.Alive:
		out.beat(w.life, nil)
	case notify.Step:
		if !w.saysSteps {
			w.saysSteps = true
			s.steps.forget(w.life.Rank) // what was guessed may have counted something else
		}
		s.steps.said(w.life.Rank, word.Number)
		out.beat(w.life, &word.Number)
	case notify.Ack:
		if w.told != nil && w.told.seq == word.Number && !w.told.taken {
			w.told.taken = true
			s.steps.took(w.life.Rank, w.told.step)
			w.lasting.wentBack(w.told.step)
			// Newer than every step that still waits to be sent, which it replaces.
			out.beat(w.life, &w.told.step)
			close(w.told.ack)
		}
	case notify.Error, notify.Uncaught:
		s.report(w, word.Text, out)
	case notify.Trigger:
		s.report(w, "the worker said that it has failed (WATCHDOG=trigger)", out)
	case notify.Fatal:
		if w.reported != "" {
			s.report(w, w.reported, out)
		}
	case notify.Checkpoint:
		out.other = append(out.other, &api.FromService{Word: &api.FromService_Checkpoint{
			Checkpoint: &api.Checkpoint{Life: rpc.WireLife(w.life), Step: word.Number}}})
	case notify.Armed:
		w.memory.faultHandler = unix.SignalNum(word.Text)
	case notify.PhaseBegin, notify.PhaseEnd, notify.PhaseNext:
		s.takePhase(w, word, out)
	case notify.Guessed: // hear has looked at it
	case notify.Stopping, notify.Extend:
		// A worker that ends is known by its end, and no limit of the service can be lengthened: the
		// words are part of the convention and change nothing.
	}
}

// notice tells a person what should be known of a worker and what is no failure.
func (s *Service) notice(w *worker, text string) { s.tellNotice(w, &api.Notice{Text: text}) }

func (s *Service) tellNotice(w *worker, n *api.Notice) {
	n.Life = rpc.WireLife(w.life)
	s.log.Warn(n.Text, "rank", w.life.Rank, "incarnation", w.life.Incarnation)
	s.change(func(out *words) {
		out.other = append(out.other, &api.FromService{Word: &api.FromService_Notice{Notice: n}})
	})
}

// statusEvery is how often the controller hears of new STATUS= words at most.
const statusEvery = 200 * time.Millisecond

// takeStatus notes what a worker says of itself, and has the newest told soon. Service.mu is held.
func (s *Service) takeStatus(w *worker, text string) {
	if w.status == text {
		return
	}
	w.status = text
	s.tellStateSoon(w)
}

// tellStateSoon has the controller told how a worker is. Service.mu is held.
func (s *Service) tellStateSoon(w *worker) {
	if w.statusDue {
		return
	}
	w.statusDue = true
	time.AfterFunc(statusEvery, func() {
		s.change(func(out *words) {
			w.statusDue = false
			if s.listensTo(w) {
				out.state(w)
			}
		})
	})
}

// report tells the controller of a worker's error: once per life, and once more if only then it turns
// out to be fatal. Service.mu is held.
func (s *Service) report(w *worker, text string, out *words) {
	level := aReport
	if w.fatal {
		level = aFatalReport
	}
	if w.reported == "" {
		w.reported = text
	}
	if level <= w.sent {
		return
	}
	w.sent = level
	w.failed = &role.Failure{Life: w.life, Cause: role.Reported, Detail: w.reported, Fatal: w.fatal, At: time.Now(), Log: w.files.stderr}
	if held := s.heldPort(w, w.reported); held != "" {
		w.failed.Cause, w.failed.Detail = role.PortTaken, held+"; "+w.reported
	}
	out.failure(*w.failed)
}

// watch waits for the end of a worker and tells it. A worker that ends well has finished; one that
// ends otherwise, or hides that its program has, has failed, unless it was being stopped. Its last words are heard first.
func (s *Service) watch(w *worker) {
	<-w.proc.Done()
	ended := time.Now()
	w.notify.Drain()
	w.output.drain()
	s.keepError(w)
	exit := w.proc.Exit()
	if exit.Signal != "" || exit.Code != 0 {
		exit.Tail = w.output.stderr.last(tailLines)
	}
	why := s.cause(w, exit, ended)
	asked := false
	s.change(func(out *words) {
		w.exit, asked = &exit, w.stopping
		if !w.heldPort {
			s.heldPorts = 0
		}
		switch {
		case w.stopping:
			w.state = role.WorkerDown
		case exit.Signal == "" && exit.Code == 0 && !w.hidesFailure():
			w.state = role.WorkerFinished
			s.steps.ended[w.life.Rank] = s.lives[w.life.Rank] == w
		default:
			w.state = role.WorkerDown
			f := w.failure(why, s.lastRaised(w))
			w.failed = &f
			out.failure(f)
		}
		out.state(w)
	})
	s.log.Info("worker ended", "rank", w.life.Rank, "incarnation", w.life.Incarnation, "attempt", w.life.Attempt, "exit", exit.String(), "stopping", asked)
	close(w.ended)
	if !asked && exit.Signal == "" && exit.Code == 0 {
		s.running.Go(func() { s.followLeft(w) })
	}
}

// failure completes why a worker has ended by what it said itself, or else by what processes of it, or of its peers,
// have raised. Service.mu is held.
func (w *worker) failure(f role.Failure, raised string) role.Failure {
	f.Fatal = w.fatal
	switch {
	case f.Exit.Sender == proc.OOMKiller || f.Cause != role.Exited:
	case w.reported != "":
		f.Detail = w.reported
	case raised != "" && f.Detail == f.Exit.String(): // nothing says more
		f.Detail = raised + "; " + f.Detail
	}
	return f
}

// heard takes a word that came by HTTP; life is the one it names, or empty for the current one.
func (s *Service) heard(rank int, life string, f func(*worker, *words)) error {
	err := fmt.Errorf("word of %s rank %d: it does not run: %w", s.id.Role, rank, roleapi.ErrStale)
	s.change(func(out *words) {
		w := s.lives[rank]
		switch {
		case w == nil || !s.listensTo(w):
		case life != "" && life != w.life.String():
			err = fmt.Errorf("word of life %s: the current one is %s: %w", life, w.life, roleapi.ErrStale)
		default:
			err = nil
			f(w, out)
		}
	})
	return err
}
