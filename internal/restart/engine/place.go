package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vigil/internal/restart"
	"vigil/internal/role"
)

// placeAll places the roles of a stage. Those that must wait for what is blocked hold up only those that depend on
// them: they go on in a plan of their own. Where there is no other, the plan waits, as long as a start may take.
func (e *Engine) placeAll(ctx context.Context, r *run, stage []restart.Move) error {
	began := time.Now()
	for {
		blocked, err := e.placeEach(r, stage, began)
		if err != nil {
			return err
		}
		stage = slices.DeleteFunc(slices.Clone(stage), func(m restart.Move) bool { return blocked[m.Role] == nil || e.hasLeft(r, m.Role) })
		if len(stage) == 0 {
			return nil
		}
		if late := e.behind(r, stage); len(late) > 0 {
			return e.splitOff(ctx, r, late)
		}
		if err := e.awaitFree(r, stage, blocked, began); err != nil {
			return err
		}
	}
}

// placeEach tries to place each role, and returns which must wait.
func (e *Engine) placeEach(r *run, stage []restart.Move, began time.Time) (map[role.Name]*BlockedError, error) {
	var mu sync.Mutex
	blocked := map[role.Name]*BlockedError{}
	var group errgroup.Group
	for _, m := range stage {
		group.Go(func() error {
			if !e.enter(r, m.Role) {
				return nil
			}
			defer e.leave(r, m.Role)
			err := e.Places.Place(m.Role)
			if waits := new(BlockedError); errors.As(err, &waits) && time.Since(began) < e.startLimit(m.Role) {
				e.setWhy(m.Role, err.Error())
				mu.Lock()
				defer mu.Unlock()
				blocked[m.Role] = waits
				return nil
			}
			return e.moved(r, m, began, result{err: err})
		})
	}
	return blocked, group.Wait()
}

// startLimit is how long the start of a role may take.
func (e *Engine) startLimit(name role.Name) time.Duration {
	cfg, _ := e.Job.Role(name)
	return cmp.Or(cfg.Limits.Start, e.StartLimit)
}

// behind returns the roles that wait, with those of the plan that depend on them; none where that is every role that the
// plan has left to begin.
func (e *Engine) behind(r *run, waiting []restart.Move) []role.Name {
	var begins, late []role.Name
	for _, m := range r.plan.Moves {
		if m.Verb == restart.Run && !e.hasLeft(r, m.Role) {
			begins = append(begins, m.Role)
		}
	}
	for _, m := range waiting {
		late = append(late, m.Role)
	}
	for grown := true; grown; {
		grown = false
		for _, n := range begins {
			cfg, _ := e.Job.Role(n)
			if !slices.Contains(late, n) && slices.ContainsFunc(cfg.DependsOn, func(d role.Name) bool { return slices.Contains(late, d) }) {
				late, grown = append(late, n), true
			}
		}
	}
	if len(late) >= len(begins) {
		return nil
	}
	return late
}

// splitOff has the loop go on with roles in a plan of their own.
func (e *Engine) splitOff(ctx context.Context, r *run, late []role.Name) error {
	done := make(chan struct{})
	e.inbox <- func() {
		defer close(done)
		if r.boundary.Err() != nil || e.ending != nil || e.next != nil {
			return
		}
		late = slices.DeleteFunc(late, func(n role.Name) bool { return e.hasLeft(r, n) })
		if len(late) == 0 {
			return
		}
		e.mu.Lock()
		for _, n := range late {
			r.part[n].left = true
		}
		e.mu.Unlock()
		d := r.why.Decision
		d.Action, d.Roles = role.InPlace, late
		e.launch(ctx, restart.LatePlan(e.Job, late), &decided{Decision: d, incident: r.why.incident, was: r.why.cause()})
	}
	<-done
	return nil
}

// awaitFree waits until one of the roles may be placed, or is taken out of the plan.
func (e *Engine) awaitFree(r *run, waiting []restart.Move, blocked map[role.Name]*BlockedError, began time.Time) error {
	limit := e.startLimit(waiting[0].Role)
	wake, done := make(chan struct{}, 1), make(chan struct{})
	defer close(done)
	for _, m := range waiting {
		limit = min(limit, e.startLimit(m.Role))
		go func() {
			select {
			case <-blocked[m.Role].Freed:
			case <-r.part[m.Role].leave:
			case <-done:
				return
			}
			select {
			case wake <- struct{}{}:
			default:
			}
		}()
	}
	late := time.NewTimer(limit - time.Since(began))
	defer late.Stop()
	select {
	case <-wake:
	case <-late.C:
	case <-r.boundary.Done():
		return context.Cause(r.boundary)
	}
	return nil
}
