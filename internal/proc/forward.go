package proc

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
)

// Forward sends a process a signal that is meant as word, not to end it: only if it has a handler for it. Where it has
// none, as a shell that waits for its program, those below it have it that do; below one that has it nobody else. It
// returns who was sent it: with nobody the signal would only have ended what runs there. SIGCONT needs no handler.
func (k *Keeper) Forward(p *Process, sig unix.Signal) []Holder {
	if sig == unix.SIGCONT || catches(p.id.PID, sig) {
		if p.Signal(sig) != nil {
			return nil
		}
		return []Holder{{Ident: p.id, Session: p.id.PID, Name: p.name, Mark: p.mark}}
	}
	s := k.look()
	var told []Holder
	queue := slices.Clone(s.below[p.id.PID])
	for len(queue) > 0 {
		pid := queue[0]
		queue = queue[1:]
		e := s.all[pid]
		if !e.alive() || s.above[pid] {
			continue
		}
		if !catches(pid, sig) {
			queue = append(queue, s.below[pid]...)
			continue
		}
		if signal(e.Ident, sig) == nil {
			told = append(told, Holder{Ident: e.Ident, Session: e.Session, Name: e.Name, Mark: p.mark})
		}
	}
	slices.SortFunc(told, func(a, b Holder) int { return cmp.Compare(a.PID, b.PID) })
	return told
}
