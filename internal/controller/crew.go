package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vigil/api"
	"vigil/internal/launcher/local"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
	"vigil/internal/wire/roleapi"
	"vigil/internal/wire/rpc"
)

// leaveGrace is how long a service that holds nothing may take to end.
const leaveGrace = 10 * time.Second

// silentGrace is how long a service that does not answer, but may run, is given to take in what its workers
// have written.
const silentGrace = 5 * time.Second

// crew is the services of all roles: what the engine's moves act on. Moves of one role come one
// after the other, those of different roles side by side.
type crew struct {
	*Controller
	launcher *local.Launcher
	changed  chan struct{} // somebody's address or state has

	mu        sync.Mutex
	members   map[rpc.ServiceID]*member
	leased    map[role.Name][]int                  // ports of the role's current life
	ports     map[role.Name]map[int]map[string]int // of each rank, by name
	workers   map[rpc.ServiceID]map[int]met        // the newest of each rank that was told of
	told      map[rpc.ServiceID]map[int]role.Life  // the newest life of each rank that its service holds
	there     map[role.Life]bool                   // lives that a service has told again
	launching map[rpc.ServiceID]chan struct{}      // closed once the pid of a service that is being started is known
	stale     map[role.Name]bool                   // whose services know another definition of the role
	grace     time.Duration                        // of services when everything is closed
}

// member is one service process.
type member struct {
	id      rpc.ServiceID
	service *local.Service
	wanted  bool // we are ending it, or its death has been told
	ending  bool // it has said that it ends because of a signal
}

func newCrew(c *Controller) *crew {
	self := c.opts.Self
	if len(self) == 0 {
		exe, err := os.Executable()
		if err != nil {
			exe = os.Args[0]
		}
		self = []string{exe}
	}
	var w *crew
	w = &crew{
		Controller: c, changed: make(chan struct{}, 1),
		launcher: local.New(local.Options{Keeper: c.ground.keeper, Executable: append(slices.Clone(self), "service"), JobUID: c.uid,
			RuntimeDir: c.ground.runtime, LogDir: c.ground.logs, Log: c.log, Record: func(o local.Obligation) { w.owes(o) }}),
		grace:   leaveGrace,
		members: map[rpc.ServiceID]*member{}, workers: map[rpc.ServiceID]map[int]met{}, leased: map[role.Name][]int{}, ports: map[role.Name]map[int]map[string]int{},
		told: map[rpc.ServiceID]map[int]role.Life{}, launching: map[rpc.ServiceID]chan struct{}{}, there: map[role.Life]bool{}, stale: map[role.Name]bool{},
	}
	for _, n := range c.stale {
		w.stale[n] = true
	}
	for _, o := range c.ground.owed {
		w.launcher.Owe(o)
	}
	return w
}

// of returns the members that serve a role, by index.
func (w *crew) of(name role.Name) []*member {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*member
	for id, m := range w.members {
		if id.Role == name {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *member) int { return cmp.Compare(a.id.Index, b.id.Index) })
	return out
}

// each calls act for every service of the role at once.
func (w *crew) each(name role.Name, act func(*member) error) error {
	var group errgroup.Group
	for _, m := range w.of(name) {
		group.Go(func() error { return act(m) })
	}
	return group.Wait()
}

// ReadStep returns what the role's services answer of its step.
func (w *crew) ReadStep(ctx context.Context, name role.Name) (engine.Steps, error) {
	var mu sync.Mutex
	read := engine.Steps{Spoken: map[int]int64{}}
	answered := 0
	err := w.each(name, func(m *member) error {
		a, err := w.hub.Call(ctx, m.id, &api.ToService{Order: &api.ToService_GetStep{GetStep: &api.GetStep{}}})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if answered++; answered == 1 || a.Step < read.Step {
			read.Step = a.Step
		}
		for rank, step := range a.Spoken {
			read.Spoken[int(rank)] = step
		}
		return nil
	})
	if err == nil && answered == 0 {
		err = fmt.Errorf("%s has no service", name)
	}
	return read, err
}

// StopWorkers asks the role's services to stop their workers; one that was stopped itself is let run on
// for that. One that has been given up, does not answer, or cannot prove that nothing is left, is ended
// itself with everything of it; but for the last it is asked to end before it is killed. One that has been
// given up is replaced also where it answers again as soon as it is let run on: which of the two comes first
// is chance.
func (w *crew) StopWorkers(ctx context.Context, name role.Name, how engine.Stop) (held []string, err error) {
	var mu sync.Mutex
	err = w.each(name, func(m *member) error {
		if w.isGivenUp(m) && !w.isEnding(m) { // one that is ending stops its workers in order
			w.takeEvidence(ctx, m, how)
			return w.remove(ctx, m, silentGrace)
		}
		var here []string
		m.service.Continue()
		a, err := w.hub.Call(ctx, m.id, &api.ToService{Order: &api.ToService_Stop{Stop: &api.Stop{AfterFailure: how.Kind == engine.AfterFailure, Incident: how.Incident, Cause: string(how.Cause)}}})
		switch order := new(rpc.OrderError); {
		case err == nil:
			here = a.Held
		case errors.As(err, &order):
			here, err = order.Held, w.remove(ctx, m, 0)
		default:
			w.takeEvidence(ctx, m, how)
			err = w.remove(ctx, m, silentGrace)
		}
		mu.Lock()
		defer mu.Unlock()
		held = append(held, here...)
		return err
	})
	slices.Sort(held)
	w.kept.say(how.Incident, name)
	if err == nil {
		w.giveBack(name)
	}
	return held, err
}

// isGivenUp reports whether a service has been told to be lost.
func (w *crew) isGivenUp(m *member) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.wanted
}

// Lengthen gives the role's stops that are under way the grace of a wanted one.
func (w *crew) Lengthen(ctx context.Context, name role.Name) error {
	return w.each(name, func(m *member) error {
		_, err := w.hub.Call(ctx, m.id, &api.ToService{Order: &api.ToService_Lengthen{Lengthen: &api.Lengthen{}}})
		return err
	})
}

// remove ends a service and everything of it, with proof.
func (w *crew) remove(ctx context.Context, m *member, grace time.Duration) error {
	w.mu.Lock()
	m.wanted = true
	w.mu.Unlock()
	report, err := w.launcher.Stop(ctx, m.id.Role, m.id.Index, grace)
	w.hub.Forget(m.id, m.service.PID())
	w.mu.Lock()
	if w.members[m.id] == m {
		delete(w.members, m.id)
		delete(w.told, m.id)
	}
	w.mu.Unlock()
	w.forgetService(m.id) // what is left of it is an obligation
	if err != nil {
		held := &roleapi.HeldError{Role: m.id.Role}
		for _, l := range report.Left {
			held.Held = append(held.Held, l.String())
		}
		return errors.Join(err, held)
	}
	return nil
}

// Delete ends the role's services, but for those that may be kept because they answer.
func (w *crew) Delete(ctx context.Context, name role.Name, which engine.DeleteKind) error {
	return w.each(name, func(m *member) error {
		if which == engine.UnlessWell && w.opts.GlobalRestart == "keep" && !w.isEnding(m) && w.answers(ctx, m) && !w.isStale(name) {
			return nil
		}
		return w.remove(ctx, m, leaveGrace)
	})
}

// isStale reports whether the role has been defined anew since its services were started.
func (w *crew) isStale(name role.Name) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stale[name]
}

// answers reports whether the service has a session in which it answers.
func (w *crew) answers(ctx context.Context, m *member) bool {
	select {
	case <-m.service.Done():
		return false
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := w.hub.Call(ctx, m.id, &api.ToService{Order: &api.ToService_GetStep{GetStep: &api.GetStep{}}})
	return err == nil
}

// WriteStep sets the step of the role's idle services.
func (w *crew) WriteStep(ctx context.Context, name role.Name, step int64) error {
	return w.each(name, func(m *member) error {
		_, err := w.hub.Call(ctx, m.id, setStep(step))
		return err
	})
}

func setStep(step int64) *api.ToService {
	return &api.ToService{Order: &api.ToService_SetStep{SetStep: &api.SetStep{Step: step}}}
}

// hurry has close kill what is left instead of asking it.
func (w *crew) hurry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grace = 0
}

// close ends every service and what there is of the job on this machine.
func (w *crew) close(ctx context.Context) error {
	w.mu.Lock()
	grace := w.grace
	w.mu.Unlock()
	_, err := w.launcher.StopAll(ctx, grace)
	for _, n := range w.opts.Job.Names() {
		w.giveBack(n)
	}
	w.hub.Stop(ctx)
	return errors.Join(err, w.launcher.Close(ctx))
}
