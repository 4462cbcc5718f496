package service

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/wire/notify"
	"vigil/internal/wire/rpc"
)

const (
	// heldTime is how long a process that has raised what nobody caught may take to end before it counts as hanging.
	heldTime = 10 * time.Second
	// maxRaised is how many exceptions of a worker's other processes are kept for evidence.
	maxRaised = 8
	// foreignEvery is how often the controller hears of dropped datagrams at most.
	foreignEvery = time.Second
)

// raised is an exception that nobody has caught, of a process that the worker has started.
type raised struct {
	from proc.Ident
	text string
	at   time.Time
}

func (r raised) String() string { return fmt.Sprintf("pid %d: %s", r.from.PID, r.text) }

// senders is what is known of who speaks on a worker's notify socket.
type senders struct {
	begun  chan struct{} // closed when the worker's process has been started, or could not be
	begin  sync.Once
	family *proc.Family // nil before that, and for a worker that could not be started
	uid    uint32       // user of the worker's process, as far as it has spoken; only the receiver knows it

	// --- guarded by Service.mu
	speaker int      // pid of the process of the worker, or below it, that has told of its work last; 0: none has
	raised  []raised // newest last
	held    raised   // the newest whose process is to end
	holding bool     // it is waited for that
	foreign uint64   // datagrams that were dropped and that the controller has not heard of
	telling bool     // it will be told of them soon
	said    bool     // a person has been told
}

// settle lets words be heard: it is known from here on which process the worker is, or that there is none.
func (k *senders) settle() {
	if k.begun != nil {
		k.begin.Do(func() { close(k.begun) })
	}
}

// hear takes the words of one datagram. Those of a life that has ended, or is being stopped, are dropped, and those
// of a process that has no say; see notify.Judge.
func (s *Service) hear(w *worker, from notify.Credentials, said []notify.Word) {
	<-w.senders.begun // its first words may come before it is known which process it is
	if w.senders.family == nil {
		return
	}
	sender, id := s.senderOf(w, from)
	said, dropped := s.sift(w, sender, id, said)
	if dropped {
		s.dropForeign(w, sender, from)
	}
	if len(said) == 0 {
		return
	}
	s.change(func(out *words) {
		if (sender == notify.FromWorker || sender == notify.FromBelow) && slices.ContainsFunc(said, tellsOfWork) {
			w.senders.speaker = id.PID
		}
		switch {
		case s.listensTo(w):
			s.takeAll(w, said, out)
		case w.stopping && w.exit == nil: // that it saves is known, so that nobody disturbs it
			s.takePhases(w, said)
		}
	})
}

// tellsOfWork says whether a word is one that only the program itself says, and no wrapper around it.
func tellsOfWork(word notify.Word) bool {
	switch word.Kind {
	case notify.Step, notify.Alive, notify.Checkpoint, notify.PhaseBegin, notify.PhaseEnd, notify.PhaseNext:
		return true
	default:
		return false
	}
}

// senderOf finds out who has sent a datagram.
func (s *Service) senderOf(w *worker, from notify.Credentials) (notify.Sender, proc.Ident) {
	if from.PID <= 0 {
		return notify.FromForeign, proc.Ident{}
	}
	kin, id := w.senders.family.Kin(from.PID)
	switch kin {
	case proc.Itself:
		w.senders.uid = from.UID
		return notify.FromWorker, id
	case proc.Below:
		return notify.FromBelow, id
	case proc.OfTree:
		return notify.FromTree, id
	case proc.Beside:
		return notify.FromHelper, id
	case proc.Unseen:
		if from.UID == uint32(os.Geteuid()) || from.UID == w.senders.uid {
			return notify.FromGone, id
		}
	case proc.Unrelated:
	}
	return notify.FromForeign, id
}

// sift returns the words that may be taken, keeps what is evidence, and says whether something was dropped.
func (s *Service) sift(w *worker, sender notify.Sender, id proc.Ident, said []notify.Word) (taken []notify.Word, dropped bool) {
	if sender == notify.FromForeign && s.opts.Role.NotifyAccess == job.AnyProcess {
		sender = notify.FromTree
	}
	if !slices.ContainsFunc(said, func(word notify.Word) bool { return notify.Judge(sender, word.Kind) != notify.Taken }) {
		return said, false
	}
	for _, word := range said {
		switch verdict := notify.Judge(sender, word.Kind); verdict {
		case notify.Taken:
			taken = append(taken, word)
		case notify.Held, notify.Evidence:
			s.keepRaised(w, raised{id, word.Text, time.Now()}, verdict == notify.Held)
		default:
			dropped = true
		}
	}
	return taken, dropped
}

// keepRaised keeps what a process of the worker's, and not the worker itself, has raised. It is nobody's failure while
// the worker goes on: whoever has started the process may bear its end. One that may be all that its shell runs, and
// has still not ended after a while, hangs in its end: then it is the worker's failure.
func (s *Service) keepRaised(w *worker, r raised, hold bool) {
	s.log.Info("a process of the worker has raised what it did not catch: kept as evidence", "rank", w.life.Rank, "pid", r.from.PID, "said", r.text)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.listensTo(w) {
		return
	}
	k := &w.senders
	if len(k.raised) == maxRaised {
		k.raised = slices.Delete(k.raised, 0, 1)
	}
	k.raised = append(k.raised, r)
	if !hold {
		return
	}
	k.held = r
	if !k.holding {
		k.holding = true
		s.running.Go(func() {
			for waits := true; waits; {
				waits = s.awaitEndOf(w)
			}
		})
	}
}

// awaitEndOf waits for the end of the process that has raised last, and judges it. It returns whether another one has
// raised meanwhile.
func (s *Service) awaitEndOf(w *worker) (another bool) {
	s.mu.Lock()
	r := w.senders.held
	s.mu.Unlock()
	wait := time.NewTimer(time.Until(r.at.Add(heldTime)))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-w.ended:
	case <-w.probing.Done():
	}
	hangs := r.from.Alive() && isAllThatRuns(w.senders.family.Between(r.from.PID))
	s.change(func(out *words) {
		another = w.senders.held != r && s.listensTo(w)
		w.senders.holding = another
		if hangs && s.listensTo(w) && w.memory.heard.Before(r.at) {
			s.report(w, r.text, out)
		}
	})
	return another
}

// isAllThatRuns reports whether the ancestors of a process do nothing but wait for it, as a shell or another wrapper
// does: each has one child, and none is an interpreter that may go on by itself.
func isAllThatRuns(ancestors []int) bool {
	return len(ancestors) > 0 && !slices.ContainsFunc(ancestors, func(pid int) bool {
		of := filepath.Join("/proc", strconv.Itoa(pid))
		program, err := os.Readlink(filepath.Join(of, "exe"))
		name := filepath.Base(program)
		children, unknown := os.ReadFile(filepath.Join(of, "task", strconv.Itoa(pid), "children"))
		return err != nil || strings.HasPrefix(name, "python") || strings.HasPrefix(name, "pypy") || unknown != nil || len(strings.Fields(string(children))) != 1
	})
}

// lastRaised is what a process of a worker has raised shortly before the worker's end, or a process of a peer, with the
// peer's rank, if that has raised first: a rank that fails takes the others along. A worker that was killed, or that is
// restarted alone, has not ended because of a peer. Empty for nothing. Service.mu is held.
func (s *Service) lastRaised(w *worker) string {
	if w.hidesFailure() {
		return w.programRaised()
	}
	alone := s.opts.Role.Restart.Unit == job.UnitWorker || w.exit.Signal != ""
	var first raised
	from := w
	for _, peer := range s.lives {
		n := len(peer.senders.raised)
		if n == 0 || alone && peer != w {
			continue
		}
		if r := peer.senders.raised[n-1]; time.Since(r.at) < heldTime && (first.text == "" || r.at.Before(first.at)) {
			first, from = r, peer
		}
	}
	if from != w {
		return fmt.Sprintf("rank %d failed first: %s", from.life.Rank, first.text)
	}
	return first.text
}

// programRaised is what the process below a worker that speaks for it has raised shortly before the worker's end, after
// which nobody has spoken for it; empty for nothing. Service.mu is held.
func (w *worker) programRaised() string {
	for _, r := range slices.Backward(w.senders.raised) {
		if r.from.PID == w.senders.speaker && time.Since(r.at) < heldTime {
			return r.text
		}
	}
	return ""
}

// hidesFailure reports whether a worker's exit status cannot say how its program has ended: in a shell, the status of
// "python train.py | tee log" is that of tee. Service.mu is held.
func (w *worker) hidesFailure() bool {
	return w.exit.Signal == "" && w.exit.Code == 0 && w.programRaised() != ""
}

// dropForeign counts a datagram of which something was dropped, and tells a person of the first.
func (s *Service) dropForeign(w *worker, sender notify.Sender, from notify.Credentials) {
	s.mu.Lock()
	k := &w.senders
	first := !k.said
	k.said = true
	k.foreign++
	soon := !k.telling
	k.telling = true
	s.mu.Unlock()
	if soon {
		time.AfterFunc(foreignEvery, func() { s.tellForeign(w) })
	}
	if first {
		s.notice(w, fmt.Sprintf("%s, which is no process of this worker (%s), spoke on its notify socket: dropped, more of which is only counted; \"notify_access: any\" admits foreign processes",
			nameOf(from), sender))
	}
}

// tellForeign tells the controller how many datagrams were dropped since it was told last.
func (s *Service) tellForeign(w *worker) {
	s.change(func(out *words) {
		n := w.senders.foreign
		w.senders.foreign, w.senders.telling = 0, false
		out.other = append(out.other, &api.FromService{Word: &api.FromService_Notice{Notice: &api.Notice{Life: rpc.WireLife(w.life), Foreign: n}}})
	})
}

// nameOf says which process that was, by its pid and the name of its program where that is known.
func nameOf(from notify.Credentials) string {
	if from.PID <= 0 {
		return "a process that cannot be seen from here"
	}
	comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(from.PID), "comm"))
	if err != nil {
		return fmt.Sprintf("pid %d of uid %d", from.PID, from.UID)
	}
	return fmt.Sprintf("pid %d (%s)", from.PID, strings.TrimSpace(string(comm)))
}

// wasTolerated reports whether an error file that was written then cannot say why the worker ended now: it has made
// progress since.
func (s *Service) wasTolerated(rank int, written time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.lives[rank]
	return w != nil && w.memory.heard.Sub(written) > heldTime
}

// explicit leaves out what a program has not said itself, of words whose sender is not known.
func explicit(said []notify.Word) []notify.Word {
	return slices.DeleteFunc(said, func(word notify.Word) bool { return notify.Judge(notify.FromGone, word.Kind) != notify.Taken })
}
