package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"vigil/internal/restart"
	"vigil/internal/role"
)

// wish is an operator's stop of one role, held until no plan touches it.
type wish struct {
	name     role.Name
	done     chan error
	replaces int // id of the plan of an earlier controller that was carrying it out; 0: none
}

// StopJob ends the job in order with the exit code given; one above 128 is that of a signal.
func (e *Engine) StopJob(why string, exit int) {
	e.stopOnce.Do(func() { close(e.stopAsked) })
	e.tell(func() { e.stopJob(Outcome{Exit: exit, Why: why}) })
}

// Restart restarts a role in place, with those that its restart.also names; a role that was stopped
// by hand or has finished is begun again. It spends no budget. A stop of the role that still waits is
// given up.
func (e *Engine) Restart(name role.Name) error {
	if _, ok := e.Job.Role(name); !ok {
		return fmt.Errorf("restart %s: no such role", name)
	}
	ok := e.tell(func() {
		e.mu.Lock()
		e.roles[name].byHand = false
		e.mu.Unlock()
		e.wishes = slices.DeleteFunc(e.wishes, func(w wish) bool {
			if w.name == name {
				w.done <- fmt.Errorf("stop %s: given up for a restart", name)
			}
			if w.name == name && w.replaces > 0 {
				e.Memory.Note(Update{Ended: w.replaces})
			}
			return w.name == name
		})
		if e.hastens(name) {
			return
		}
		e.take(role.Failure{Life: role.Life{Role: name, Rank: role.NoRank}, Cause: role.Operator, Detail: "restart asked for", At: time.Now()})
	})
	if !ok {
		return fmt.Errorf("restart %s: the job has ended", name)
	}
	return nil
}

// StopRole stops a role by hand and returns when nothing of its workers is left. It waits for a
// repair of the role that is under way; when ctx ends the stop is carried out all the same. The job waits
// until the role is restarted.
func (e *Engine) StopRole(ctx context.Context, name role.Name) error {
	if _, ok := e.Job.Role(name); !ok {
		return fmt.Errorf("stop %s: no such role", name)
	}
	done := make(chan error, 1)
	if !e.tell(func() { e.wishes = append(e.wishes, wish{name: name, done: done}) }) {
		return fmt.Errorf("stop %s: the job has ended", name)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-e.gone:
		return fmt.Errorf("stop %s: the job has ended", name)
	}
}

// grant carries out the wishes whose roles are free.
func (e *Engine) grant(ctx context.Context) {
	var held []wish
	for _, w := range e.wishes {
		if !e.takeOut(w.name) {
			e.lengthen(w.name)
			held = append(held, w)
			continue
		}
		e.launch(ctx, restart.StopRolePlan(w.name), &decided{done: w.done, replaces: w.replaces})
	}
	e.wishes = held
}

// gather begins the roles that a plan left behind because another role of it failed, where that one was
// then stopped by hand and so is not repaired. It spends nothing.
func (e *Engine) gather(ctx context.Context) {
	if !e.strays || len(e.running) > 0 || len(e.pending) > 0 {
		return
	}
	e.strays = false
	e.mend(ctx, nil, &decided{Decision: restart.Decision{Action: role.InPlace, Why: "left behind by a plan whose other role was stopped by hand"}})
}
