package engine

import (
	"slices"

	"vigil/internal/restart"
	"vigil/internal/role"
)

// leftDetail says of a move that it was ended because its role is not part of the plan any more.
const leftDetail = "taken out of the plan by an operator"

// part is a role's part in a plan under way. Nothing of it is waited for when an operator wants something else of the
// role. It is guarded by Engine.mu, but for what waits on its channels.
type part struct {
	moves int           // under way
	left  bool          // no more of the plan's moves are made for it
	hurry chan struct{} // closed: what only lets time pass is over
	leave chan struct{} // closed: it is to leave as soon as no move is under way
}

func partsOf(plan restart.Plan) map[role.Name]*part {
	all := map[role.Name]*part{}
	for _, n := range plan.Roles {
		all[n] = &part{hurry: make(chan struct{}), leave: make(chan struct{})}
	}
	return all
}

// doNotWait ends what only lets time pass. The caller has Engine.mu.
func (p *part) doNotWait() {
	select {
	case <-p.hurry:
	default:
		close(p.hurry)
	}
}

// isLeaving says whether the role is to leave. The caller has Engine.mu.
func (p *part) isLeaving() bool {
	select {
	case <-p.leave:
		return true
	default:
		return false
	}
}

// enter begins a move. It reports false for a role that has left.
func (e *Engine) enter(r *run, name role.Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := r.part[name]
	if p.left || r.isUp && p.isLeaving() {
		p.left = true
		return false
	}
	p.moves++
	return true
}

// leave ends a move, and reports whether the role is to leave the plan; the loop sees to that now.
func (e *Engine) leave(r *run, name role.Name) bool {
	e.mu.Lock()
	p := r.part[name]
	p.moves--
	leaving := p.isLeaving()
	e.mu.Unlock()
	if leaving {
		e.poke(r)
	}
	return leaving
}

// poke has the loop look what has become possible, unless the plan is over anyway.
func (e *Engine) poke(r *run) {
	select {
	case e.inbox <- func() {}:
	case <-r.boundary.Done():
	}
}

// comesTo notes that the plan has come to a stage. From the first that brings roles up on, operators can take roles out.
func (e *Engine) comesTo(r *run, verb restart.Verb) {
	switch verb {
	case restart.BackOff, restart.Place, restart.Start, restart.WriteStep, restart.Run, restart.AwaitReady:
	default:
		return
	}
	e.mu.Lock()
	first := !r.isUp
	r.isUp = true
	wanted := slices.ContainsFunc(r.plan.Roles, func(n role.Name) bool { return r.part[n].isLeaving() })
	e.mu.Unlock()
	if first && wanted {
		e.poke(r)
	}
}

// hasLeft says whether the role is not part of the plan any more.
func (e *Engine) hasLeft(r *run, name role.Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p, ok := r.part[name]
	return ok && p.left
}

// isDeserted says whether all roles have left the plan.
func (e *Engine) isDeserted(r *run) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !slices.ContainsFunc(r.plan.Roles, func(n role.Name) bool { return !r.part[n].left })
}

// takeOut takes a role out of the plans that bring it up, and reports whether no plan has it any more. What ends no
// life and begins none is not waited for.
func (e *Engine) takeOut(name role.Name) bool {
	free := true
	for r := range e.running {
		if !slices.Contains(r.plan.Roles, name) {
			continue
		}
		if r.plan.Alone {
			r.cancel(errOverruled)
			free = false
			continue
		}
		e.mu.Lock()
		p := r.part[name]
		if !p.left && r.plan.Action != role.Stop {
			if !p.isLeaving() {
				close(p.leave)
			}
			p.doNotWait()
			p.left = r.isUp && p.moves == 0
		}
		free = free && p.left
		e.mu.Unlock()
	}
	return free
}

// hastens says whether a plan under way is about to begin the role, and has nothing of that plan wait: an operator's
// restart asks for nothing else.
func (e *Engine) hastens(name role.Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	found := false
	for r := range e.running {
		begins := slices.ContainsFunc(r.plan.Moves, func(m restart.Move) bool { return m.Verb == restart.Run && m.Role == name })
		if r.plan.Alone || !begins || r.part[name].left || r.part[name].isLeaving() || e.roles[name].begun || r.boundary.Err() != nil {
			continue
		}
		found = true
		for _, p := range r.part {
			p.doNotWait()
		}
	}
	return found
}
