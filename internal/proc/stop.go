package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// StopSpec says how processes are asked to end.
type StopSpec struct {
	Signal   unix.Signal   // 0: SIGTERM
	Grace    time.Duration // before SIGKILL; 0: kill at once, without asking
	Deaf     time.Duration // before SIGKILL to a process that cannot run its handler; 0: it has the grace too
	Deadline time.Duration // for proof, after SIGKILL; 0: 10 s

	Reach   Reach                  // who else is sent the signal
	AtWork  func(*Process) bool    // IfIdle: that a process is at work on the signal, as far as others know; may be nil
	Speaker func(*Process) int     // IfIdle: pid of the one that speaks for a process: itself, or one below it; 0: not known; may be nil
	Told    func(*Process, Holder) // is called for each that was sent the signal by IfIdle; may be nil

	// Longer is closed when the grace becomes LongGrace, counted from the begin, for everybody; nil: never.
	Longer    <-chan struct{}
	LongGrace time.Duration
}

// StopReport says how stopping went.
type StopReport struct {
	Held   []Holder // who was there when the grace was over, or would not die
	Killed int      // how many processes got SIGKILL
	Took   time.Duration
	Left   []Holder // who is there still; empty is the proof that nothing is left
	Seen   []Ident  // the processes themselves, and who was of their trees
}

const proofDeadline = 10 * time.Second

// Stop ends the processes and everything of their trees: SIGCONT, then the stop signal to the main
// process of each at once (to it alone, so that it can end its children in order; spec.Reach says otherwise),
// and when a main process has gone and others of its tree have not, to those. It ends as soon as all are gone. After
// the grace, or when ctx ends, comes SIGKILL to everything; then the proof. Leaves that have become
// empty are removed. It goes on to the proof whatever becomes of ctx.
func (k *Keeper) Stop(ctx context.Context, procs []*Process, spec StopSpec) StopReport {
	began := time.Now()
	if spec.Signal == 0 {
		spec.Signal = unix.SIGTERM
	}
	if spec.Deadline == 0 {
		spec.Deadline = proofDeadline
	}
	trees := make([]Tree, len(procs))
	for i, p := range procs {
		trees[i] = p.Tree()
	}
	why := "killed without being asked"
	unheard := &deaf{} // who was ended early
	if spec.Grace > 0 {
		k.ask(ctx, procs, trees, spec, unheard)
		why = fmt.Sprintf("still there %s after %s", time.Since(began).Round(time.Millisecond), unix.SignalName(spec.Signal))
	}
	held, killed, left := k.kill(context.WithoutCancel(ctx), trees, procs, spec.Deadline)
	for i := range held {
		held[i].Why = why
	}
	early := unheard.all()
	held, killed = append(early, held...), killed+len(early)
	return StopReport{Held: held, Killed: killed, Took: time.Since(began), Left: left, Seen: everybody(procs, trees, held)}
}

// everybody gathers who was of the trees, each once.
func everybody(procs []*Process, trees []Tree, held []Holder) []Ident {
	var all []Ident
	for _, p := range procs {
		all = append(all, p.id)
	}
	for _, t := range trees {
		all = append(all, t.Processes...)
	}
	for _, h := range held {
		all = append(all, h.Ident)
	}
	slices.SortFunc(all, func(a, b Ident) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.StartTime, b.StartTime))
	})
	return slices.Compact(all)
}

// Clear kills everything of the tree at once, waits until it is proved gone and removes the empty
// leaves. It returns who was there; the error says who is there still after 10 s or at the end of ctx.
// It is also how the rest of a process that ended by itself is cleared away: Clear(ctx, p.Tree()).
func (k *Keeper) Clear(ctx context.Context, t Tree) ([]Holder, error) {
	held, _, left := k.kill(ctx, []Tree{t}, nil, proofDeadline)
	if len(left) > 0 {
		return held, &LeftError{Left: left}
	}
	return held, nil
}

// LeftError says who is there still although everything was done to end them.
type LeftError struct{ Left []Holder }

func (e *LeftError) Error() string {
	who := make([]string, len(e.Left))
	for i, h := range e.Left {
		who[i] = h.String()
	}
	return "clear processes: still there: " + strings.Join(who, ", ")
}

// String says "pid 4711 python3 (in its session)".
func (h Holder) String() string {
	s := fmt.Sprintf("pid %d %s", h.PID, h.Name)
	if h.Why != "" {
		s += " (" + h.Why + ")"
	}
	return s
}

// ask sends the stop signal and waits until everything is gone, the grace is over or ctx ends.
func (k *Keeper) ask(ctx context.Context, procs []*Process, trees []Tree, spec StopSpec, unheard *deaf) {
	ctx, cancel := spec.withGrace(ctx)
	defer cancel()
	seen := k.wake(procs, trees)
	asked := map[Ident]string{} // by the name that it had then
	below := k.newBelow(spec, asked)
	for i, p := range procs {
		before, known := effortOf(p.id)
		_ = p.Signal(spec.Signal) // who is gone needs none; who cannot be reached will be in Held
		if known && spec.Deaf > 0 && spec.Deaf < spec.Grace {
			unheard.watch(ctx, p, spec, before)
		}
		below.begin(p, trees[i], before, known)
	}
	ended := make(chan struct{}, 1)
	for _, p := range procs {
		go func() {
			select {
			case <-p.done:
				select {
				case ended <- struct{}{}:
				default:
				}
			case <-ctx.Done():
			}
		}()
	}
	defer below.timer.Stop()
	for {
		alone, mains := orphaned(procs, trees)
		rest := 0
		began := time.Now()
		if len(alone) > 0 {
			if seen == nil {
				seen = k.look()
			}
			rest = askRest(seen, alone, asked, spec.Signal)
		}
		seen = nil
		if mains == 0 && rest == 0 {
			return
		}
		// Looking may cost no more than a tenth of one CPU.
		poll := max(20*time.Millisecond, 10*time.Since(began))
		if rest == 0 {
			poll = spec.Grace
		}
		timer := time.NewTimer(poll)
		select {
		case <-ended:
		case <-timer.C:
		case <-below.timer.C:
			below.ask()
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// withGrace returns a context that ends with the grace, which Longer may lengthen meanwhile.
func (spec StopSpec) withGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	grace := time.AfterFunc(spec.Grace, cancel)
	go func() {
		select {
		case <-spec.Longer:
			if grace.Stop() {
				grace.Reset(max(spec.Grace, spec.LongGrace) - time.Since(began))
			}
		case <-ctx.Done():
			grace.Stop()
		}
	}()
	return ctx, cancel
}

// orphaned returns the trees whose main process has gone, and how many main processes live.
func orphaned(procs []*Process, trees []Tree) (alone []Tree, living int) {
	for i, p := range procs {
		select {
		case <-p.done:
			alone = append(alone, trees[i])
		default:
			living++
		}
	}
	return alone, living
}

// wake continues what is stopped, so that it can hear, and writes down in the trees who is below the
// main processes now: once those are gone, nothing else may say so. The main processes get SIGCONT in
// any case. It returns what it saw if all of them had gone before it looked, for then that is who is
// left.
func (k *Keeper) wake(procs []*Process, trees []Tree) *sight {
	_, mains := orphaned(procs, trees)
	s := k.look()
	for i := range trees {
		for _, h := range s.members(trees[i]) {
			trees[i].Processes = append(trees[i].Processes, h.Ident)
			if state := s.all[h.PID].State; state == 'T' || state == 't' {
				_ = signal(h.Ident, unix.SIGCONT)
			}
		}
	}
	for _, p := range procs {
		_ = p.Signal(unix.SIGCONT)
	}
	if mains > 0 {
		return nil
	}
	return s
}

// askRest sends sig once to each living member of trees that have lost their main process, and returns
// how many there are. One that has become another program since is asked again: a signal that comes
// between a fork and its exec goes to the parent's handler, which the exec removes.
func askRest(s *sight, alone []Tree, asked map[Ident]string, sig unix.Signal) int {
	rest := 0
	for _, t := range alone {
		for _, h := range s.members(t) {
			if !s.all[h.PID].alive() {
				continue // the reaper will have it
			}
			rest++
			if asked[h.Ident] != h.Name {
				asked[h.Ident] = h.Name
				_ = signal(h.Ident, sig)
			}
		}
	}
	return rest
}

// kill sends SIGKILL to everything of the trees until nothing is left, or the deadline or ctx ends. It
// returns who was there at first, how many got the signal, and who is left. A look at /proc is no
// snapshot, so after a kill only two empty looks in a row are the proof.
func (k *Keeper) kill(ctx context.Context, trees []Tree, mains []*Process, deadline time.Duration) (held []Holder, killed int, left []Holder) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	hit := map[Ident]error{} // with what became of the last signal
	empty := 0
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		known := len(hit)
		var dead []Holder
		left, dead = k.killOnce(trees, hit)
		if held == nil {
			held = slices.Clone(left)
		}
		left = append(left, dead...)
		if _, living := orphaned(mains, trees[:len(mains)]); len(left) == 0 && living == 0 {
			if empty++; empty == 2 || len(hit) == 0 {
				break
			}
			continue
		}
		empty = 0
		if len(hit) > known {
			pause = time.Millisecond // it grows while we kill
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return held, len(hit), explain(left, mains, hit)
		}
	}
	for _, t := range trees {
		if err := removeLeaves(k.cgroup, t.LeafPrefix, time.Second); err != nil {
			k.log.Warn("cgroup leaf not removed", "leaf", t.LeafPrefix, "err", err)
		}
	}
	return held, len(hit), nil
}

// killOnce looks once and kills what it sees. It returns who lived, and which dead children of ours
// have not been collected yet.
func (k *Keeper) killOnce(trees []Tree, hit map[Ident]error) (living, dead []Holder) {
	s := k.look()
	for _, t := range trees {
		found := s.members(t)
		if len(found) > 0 {
			k.killLeaves(t)
		}
		for _, h := range found {
			if !s.all[h.PID].alive() {
				dead = append(dead, h) // the reaper will have it
				continue
			}
			hit[h.Ident] = k.killOne(h.Ident)
			living = append(living, h)
		}
	}
	return append(living, s.ending(hit, living)...), dead
}

// ending returns those that were killed and have not ended, although no sign tells any more that they are
// ours: a process that is ending loses its environment before it lets go of its files.
func (s *sight) ending(hit map[Ident]error, living []Holder) []Holder {
	var out []Holder
	for id := range hit {
		e, there := s.all[id.PID]
		if !there || e.Ident != id || !e.alive() || slices.ContainsFunc(living, func(h Holder) bool { return h.Ident == id }) {
			continue
		}
		out = append(out, Holder{Ident: id, Session: e.Session, Name: e.Name, Why: "is ending"})
	}
	return out
}

// killLeaves kills the leaves of t that have processes. Empty ones are left, and folders above leaves
// too: a folder once killed may kill what is born below it.
func (k *Keeper) killLeaves(t Tree) {
	for _, folder := range leavesBelow(k.cgroup, t.LeafPrefix) {
		pids, err := pidsIn(folder)
		if err != nil || len(pids) == 0 {
			continue
		}
		for _, pid := range pids {
			k.noteKill(pid)
		}
		killLeaf(folder)
	}
}

func (k *Keeper) noteKill(pid int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.children[pid]; p != nil {
		p.note(unix.SIGKILL)
	}
}

// killOne sends SIGKILL to that very process; that it has ended meanwhile is no error.
func (k *Keeper) killOne(id Ident) error {
	k.mu.Lock()
	p := k.children[id.PID]
	k.mu.Unlock()
	if p != nil && p.id == id {
		p.note(unix.SIGKILL)
	}
	if err := signal(id, unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// explain says of each that is left why it is. A main process whose end nobody has seen is left too.
func explain(left []Holder, mains []*Process, hit map[Ident]error) []Holder {
	for _, p := range mains {
		known := slices.ContainsFunc(left, func(h Holder) bool { return h.Ident == p.id })
		select {
		case <-p.done:
		default:
			if !known {
				left = append(left, Holder{Ident: p.id, Session: p.id.PID, Name: p.name, Mark: p.mark})
			}
		}
	}
	for i, h := range left {
		left[i].Why = "still there after SIGKILL"
		if err := hit[h.Ident]; err != nil {
			left[i].Why = err.Error()
		}
	}
	return left
}
