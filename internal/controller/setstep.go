package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"vigil/api"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// setStepTime is how long a step that is set waits to be recorded before it is answered.
const setStepTime = 5 * time.Second

// SetStep sets the step of a role as an operator asks. The engine has it, and the journal, before a service is told.
// pending: it is taken at the next start.
func (w *crew) SetStep(ctx context.Context, name role.Name, step int64) (pending bool, err error) {
	set, recorded, ok := w.engine.SetStep(name, engine.StepSet{Step: step, At: time.Now()})
	if !ok {
		return false, fmt.Errorf("set step of %s: it was set anew meanwhile", name)
	}
	if err := w.recorded(ctx, name, recorded); err != nil {
		return true, err
	}
	return w.setStep(ctx, set, name, step, rpc.ServiceID{}, true)
}

// setStep tells the role's services, but for one that knows, the step that was set. taken says whether the workers of
// that one have taken it.
func (w *crew) setStep(ctx context.Context, set engine.Set, name role.Name, step int64, but rpc.ServiceID, taken bool) (pending bool, err error) {
	life := w.engine.Status(name)
	var mu sync.Mutex
	services := 0
	_ = w.each(name, func(m *member) error {
		here := taken
		if m.id != but {
			a, err := w.hub.Call(ctx, m.id, setStep(step))
			here = err == nil && !a.Pending
		}
		mu.Lock()
		defer mu.Unlock()
		services++
		taken = taken && here
		return nil
	})
	pending, recorded := w.settleStep(set, name, step, life.Incarnation, life.Begun && services > 0 && taken)
	return pending, w.recorded(ctx, name, recorded)
}

// settleStep has health and the engine know what became of a step that was set. If the workers of all services have
// taken it, the life that runs goes on from it; otherwise the next one begins from it.
func (w *crew) settleStep(set engine.Set, name role.Name, step int64, incarnation int, taken bool) (pending bool, recorded func(context.Context) error) {
	recorded = func(context.Context) error { return nil }
	now := w.engine.Status(name)
	taken = taken && now.Incarnation == incarnation
	if !taken && now.Begun {
		return true, recorded
	}
	w.store.SetStep(name, step)
	w.keeping.SetStep(name)
	if taken {
		if wait, ok := w.engine.TookStep(set, incarnation); ok {
			return false, wait
		}
	}
	return true, recorded
}

// heardStepSet takes in a step that was set at a service's own endpoint: it is the role's, as if it had been set here.
// What health must know before it hears more of the service it knows when this returns.
func (w *crew) heardStepSet(id rpc.ServiceID, s rpc.StepSet) {
	set, recorded, fresh := w.engine.SetStep(id.Role, engine.StepSet{Step: s.Step, At: s.At, Number: s.Number})
	only := len(w.of(id.Role)) < 2
	settled := recorded
	if fresh && only {
		_, settled = w.settleStep(set, id.Role, s.Step, s.Incarnation, s.Taken)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*setStepTime)
		defer cancel()
		var err error
		if fresh {
			w.log.Info("step of '"+string(id.Role)+"' set at its service "+id.String(), "step", s.Step)
			err = w.recorded(ctx, id.Role, recorded)
			switch {
			case err != nil:
			case only:
				err = w.recorded(ctx, id.Role, settled)
			default:
				_, err = w.setStep(ctx, set, id.Role, s.Step, id, s.Taken)
			}
		}
		if err == nil {
			_, err = w.hub.Call(ctx, id, &api.ToService{Order: &api.ToService_StepKept{StepKept: &api.StepKept{Number: s.Number}}})
		}
		if err != nil {
			w.log.Warn("step set at service "+id.String()+" will be told again", "step", s.Step, "error", err)
		}
	}()
}

// recorded waits until a step that was set is in the journal.
func (w *crew) recorded(ctx context.Context, name role.Name, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, setStepTime, fmt.Errorf("the journal has not taken it for %s", setStepTime))
	defer cancel()
	if err := wait(ctx); err != nil {
		return fmt.Errorf("set step of %s: it holds while this controller lives, and is not recorded: %w", name, err)
	}
	return nil
}
