package engine

import (
	"context"
	"fmt"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// nextStep is the owner of the step that a role's next life begins from. A fence makes it what the role had
// reached, the reads before a stop make it exact. Once it is assigned, by a global restart or by an operator,
// neither changes it until a life has begun from it.
type nextStep struct {
	step      int64        // while a life runs, the one that it began from
	assigned  bool         // and no life has begun from it
	sets      int          // counts how often an operator has set it
	setAt     time.Time    // when that was last
	setNumber uint64       // of the set that came by a service's own door last; see StepSet
	had       map[int]bool // workers that were restarted alone, and begun from an assigned step
}

// recall makes it what an earlier controller has kept. When a step was set is known by the time of day only: by a clock
// that was set back since, it was now.
func (s *nextStep) recall(was RoleMemory) {
	*s = nextStep{step: was.Step, assigned: was.Assigned, setAt: was.SetAt, setNumber: was.SetNumber}
	if now := time.Now(); s.setAt.After(now) {
		s.setAt = now
	}
	for _, rank := range was.Had {
		if s.had == nil {
			s.had = map[int]bool{}
		}
		s.had[rank] = true
	}
}

// Steps is what the services of a role know of its step.
type Steps struct {
	Step   int64         // the least over the services: of an idle one the step that it was given
	Spoken map[int]int64 // by rank, of those that have said one in the life that runs, or ran last
}

func (e *Engine) fence(name role.Name) result {
	inc := e.Health.Fence(name)
	step, _ := e.Health.Standing(name)
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.roles[name]
	if !st.assigned {
		st.step = step
	}
	st.incarnation, st.begun, st.attempts = inc, false, map[int]int{}
	return result{}
}

// readStep asks the role's services for its step; that one does not answer is no failure. What health has
// heard by other ways counts as well.
func (e *Engine) readStep(ctx context.Context, name role.Name) result {
	var read Steps
	asked := bounded(ctx, readStepLimit, func(ctx context.Context) (err error) { read, err = e.Crew.ReadStep(ctx, name); return err })
	reached := e.Health.Reached(name, read.Spoken)
	e.mu.Lock()
	defer e.mu.Unlock()
	st, detail := e.roles[name], ""
	switch {
	case st.assigned:
		detail = "assigned to its next life"
	case asked.err != nil:
		detail = "from its last heartbeat"
	}
	if !st.assigned {
		st.step = reached
	}
	step := st.step
	return result{step: &step, detail: detail}
}

// assign works out the step of a global restart, once: every role that the plan begins is begun from it, whatever is
// said meanwhile and whoever comes to begin it. It returns what waits until that is durable.
func (e *Engine) assign(r *run) func(context.Context) error {
	step := e.commonStep()
	e.mu.Lock()
	if lead := e.roles[e.Job.Lead]; r.why.resume != nil && !lead.assigned {
		step = *r.why.resume // as the controller before has worked it out
	}
	r.resume = &step
	for _, m := range r.plan.Moves {
		if m.Verb == restart.Run {
			e.roles[m.Role].step, e.roles[m.Role].assigned = step, true
		}
	}
	e.mu.Unlock()
	return e.Memory.Keep(Update{Roles: e.remember(r.plan.Roles...), Began: e.planMemory(r)})
}

// commonStep is the step that all roles are begun from together: the newest one that every stateful role has saved,
// or without any the lead role's. One that is assigned to the lead role comes before both.
func (e *Engine) commonStep() int64 {
	lead := e.state(e.Job.Lead)
	if lead.assigned {
		return lead.step
	}
	common, found := int64(0), false
	for i := range e.Job.Roles {
		if e.Job.Roles[i].State != job.Checkpointed {
			continue
		}
		_, saved := e.Health.Standing(e.Job.Roles[i].Name)
		if saved < 0 {
			return lead.step
		}
		if st := e.state(e.Job.Roles[i].Name); st.assigned {
			saved = min(saved, st.step) // what lies beyond is given up
		}
		if !found || saved < common {
			common, found = saved, true
		}
	}
	if found {
		return common
	}
	return lead.step
}

// LeadStep is the step that the lead role's next life is given, as things stand.
func (e *Engine) LeadStep() int64 { return e.state(e.Job.Lead).step }

// writeStep gives the idle service the step and wants it confirmed.
func (e *Engine) writeStep(ctx context.Context, name role.Name) result {
	step := e.state(name).step
	res := bounded(ctx, writeStepLimit, func(ctx context.Context) error {
		if err := e.Crew.WriteStep(ctx, name, step); err != nil {
			return err
		}
		back, err := e.Crew.ReadStep(ctx, name)
		if err == nil && back.Step != step {
			err = fmt.Errorf("wrote step %d, the service answers %d", step, back.Step)
		}
		return err
	})
	res.step = &step
	return res
}

// StepSet is a step that an operator has set.
type StepSet struct {
	Step   int64
	At     time.Time
	Number uint64 // of a set that came by a service's own door, which may tell of it more than once; else 0
}

// Set is a step that was assigned by SetStep, for TookStep.
type Set struct {
	name role.Name
	sets int
}

// SetStep assigns a step to the role's next life: whatever is said or decided meanwhile, but for the step of a global
// restart, that life begins from it. A restart that is under way takes it too, if it has not got so far. wait returns
// when that is durable. ok is false for one that is known already, or older than the last, and for an unknown role.
func (e *Engine) SetStep(name role.Name, s StepSet) (set Set, wait func(context.Context) error, ok bool) {
	e.mu.Lock()
	st, ok := e.roles[name]
	if ok && (s.Number != 0 && s.Number == st.setNumber || s.At.Before(st.setAt)) {
		ok = false
	}
	if !ok {
		e.mu.Unlock()
		return Set{}, nil, false
	}
	st.step, st.assigned, st.setAt, st.had = s.Step, true, s.At, nil
	if s.Number != 0 {
		st.setNumber = s.Number
	}
	st.sets++
	set = Set{name, st.sets}
	e.mu.Unlock()
	return set, e.Memory.Keep(Update{Roles: e.remember(name)}), true
}

// TookStep says that the workers of an incarnation have taken the step that was set: it is assigned to no later life
// then. ok is false where it was set anew since, or that incarnation is over.
func (e *Engine) TookStep(set Set, incarnation int) (wait func(context.Context) error, ok bool) {
	e.mu.Lock()
	st := e.roles[set.name]
	ok = st.sets == set.sets && st.incarnation == incarnation
	if ok {
		st.assigned = false
	}
	e.mu.Unlock()
	if !ok {
		return nil, false
	}
	return e.Memory.Keep(Update{Roles: e.remember(set.name)}), true
}

// workerStep is the step that one worker is begun from: its own, or once the one that is assigned to its role.
func (e *Engine) workerStep(w restart.Worker) int64 {
	own := e.Health.WorkerStep(w.Role, w.Rank)
	e.mu.Lock()
	defer e.mu.Unlock()
	if st := e.roles[w.Role]; st.assigned && !st.had[w.Rank] {
		return st.step
	}
	return own
}

// workerHad notes that a worker was begun from step. When each has been begun from the one that is assigned to their
// role, none is any more.
func (e *Engine) workerHad(w restart.Worker, step int64) {
	cfg, _ := e.Job.Role(w.Role)
	e.mu.Lock()
	st := e.roles[w.Role]
	had := st.assigned && st.step == step
	if had {
		if st.had == nil {
			st.had = map[int]bool{}
		}
		st.had[w.Rank] = true
		if len(st.had) == cfg.Workers {
			st.assigned, st.had = false, nil
		}
	}
	e.mu.Unlock()
	if had {
		e.note(w.Role)
	}
}
