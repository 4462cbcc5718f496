package proc

import (
	"cmp"
	"slices"
	"time"
)

// Reach says who is sent the stop signal besides the main processes, as long as those live.
type Reach int

// The ways of reaching what is below a main process.
const (
	// MainOnly is nobody.
	MainOnly Reach = iota
	// IfIdle is who runs below a process that does not react: a wrapper that traps the signal keeps it from the program
	// that it waits for. At half of the grace, if no thread of the process has done anything since it had the signal,
	// whoever speaks for it has it too, else its children. The same goes for those, until the grace is over.
	IfIdle
	// Everything is the whole tree, at once.
	Everything
)

// idleShare is how much CPU time a process may have had since the signal and count as one that does not react: a
// wrapper's handler notes the signal, and it may look a few times a second whether its program still runs.
const idleShare = 20 * time.Millisecond

// below sends the stop signal to what runs below processes that have it and do not react.
type below struct {
	keeper *Keeper
	spec   StopSpec
	began  time.Time
	timer  *time.Timer
	step   int              // how often it was looked, from half of the grace on
	asked  map[Ident]string // who was sent the signal once its main process had gone or by this, by name
	had    []reached
}

// reached is a process that has the signal.
type reached struct {
	main   *Process // whose tree it is of
	id     Ident
	at     time.Time
	before effort
	under  []Ident // who ran below it when it had the signal: what it has begun since is its answer to that
	done   bool    // who runs below it has been sent the signal too, or shall not be
}

// looksBelow is how often it is looked between half of the grace and its end: at 4, 5, 6 and 7 eighths.
const looksBelow = 4

func (k *Keeper) newBelow(spec StopSpec, asked map[Ident]string) *below {
	b := &below{keeper: k, spec: spec, began: time.Now(), asked: asked, timer: time.NewTimer(spec.Grace / 2)}
	if spec.Reach != IfIdle {
		b.timer.Stop()
	}
	return b
}

// begin says that a main process has just been sent the signal.
func (b *below) begin(p *Process, t Tree, before effort, known bool) {
	switch {
	case b.spec.Reach == Everything:
		for _, h := range b.keeper.look().members(t) {
			if h.Ident != p.id {
				b.send(p, h, nil)
			}
		}
	case b.spec.Reach == IfIdle && known:
		b.had = append(b.had, reached{main: p, id: p.id, at: time.Now(), before: before, under: t.Processes})
	}
}

// send sends one process the signal, if it has not had it, and notes that it has, and who runs below it, at the end of had.
func (b *below) send(main *Process, h Holder, under []Ident) bool {
	if _, had := b.asked[h.Ident]; had {
		return false
	}
	b.asked[h.Ident] = h.Name
	before, known := effortOf(h.Ident)
	if signal(h.Ident, b.spec.Signal) != nil {
		return false
	}
	b.had = append(b.had, reached{main: main, id: h.Ident, at: time.Now(), before: before, under: under, done: !known})
	return true
}

// ask looks at those that have the signal and sends it to who runs below the idle ones.
func (b *below) ask() {
	b.step++
	if b.step < looksBelow {
		b.timer.Reset(time.Until(b.began.Add(b.spec.Grace * time.Duration(4+b.step) / 8)))
	}
	var s *sight
	for i := range len(b.had) {
		one := b.had[i]
		if one.done || time.Since(one.at) < b.spec.Grace*3/16 || !b.isIdle(&b.had[i]) {
			continue
		}
		if s == nil {
			s = b.keeper.look()
		}
		speaker, under := b.under(s, one)
		for _, h := range under {
			if !b.send(one.main, h, s.childrenOf(h.PID)) {
				continue
			}
			if speaker { // it is the program itself
				b.had[len(b.had)-1].done = true
			}
			if b.spec.Told != nil {
				b.spec.Told(one.main, h)
			}
		}
		b.had[i].done = true
	}
}

// isIdle says whether a process has done nothing since it had the signal, and that of one that has, or has ended, no
// more need be asked: whoever is left of the tree of one that has ended hears of that.
func (b *below) isIdle(one *reached) bool {
	now, ok := effortOf(one.id)
	all, _ := now.since(one.before)
	one.done = !ok || all > idleShare
	return !one.done && asleep(one.id.PID) && (b.spec.AtWork == nil || !b.spec.AtWork(one.main))
}

// under returns who is to be sent the signal below a process: who speaks for the main process, if that is known and
// below it, else its children that it had when it was sent the signal itself. Below one that speaks itself nobody is: it
// is no wrapper.
func (b *below) under(s *sight, one reached) (speaker bool, who []Holder) {
	if b.spec.Speaker != nil && one.id == one.main.id {
		switch pid := b.spec.Speaker(one.main); {
		case pid == one.id.PID: // it is the program, and no wrapper
			return true, nil
		case s.isBelow(pid, one.id.PID):
			return true, []Holder{{Ident: s.all[pid].Ident, Name: s.all[pid].Name, Session: s.all[pid].Session, Why: "it speaks for the worker"}}
		}
	}
	var children []Holder
	for _, pid := range s.below[one.id.PID] {
		if e := s.all[pid]; e.alive() && slices.Contains(one.under, e.Ident) {
			children = append(children, Holder{Ident: e.Ident, Name: e.Name, Session: e.Session, Why: "a child of it"})
		}
	}
	slices.SortFunc(children, func(a, b Holder) int { return cmp.Compare(a.PID, b.PID) })
	return false, children
}

// childrenOf returns the children of a process.
func (s *sight) childrenOf(pid int) []Ident {
	var children []Ident
	for _, child := range s.below[pid] {
		children = append(children, s.all[child].Ident)
	}
	return children
}

// isBelow says whether a living process descends from another.
func (s *sight) isBelow(pid, above int) bool {
	if e, ok := s.all[pid]; !ok || !e.alive() {
		return false
	}
	for range len(s.all) {
		e, ok := s.all[pid]
		if !ok || pid <= 1 {
			return false
		}
		if e.Parent == above {
			return true
		}
		pid = e.Parent
	}
	return false
}
