package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

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

// setStep tells the role's services, but for one that knows, the step that was set. If the workers of all of them have
// taken it, the life that runs goes on from it; otherwise the next one begins from it.
func (w *crew) setStep(ctx context.Context, set engine.Set, name role.Name, step int64, but rpc.ServiceID, taken bool) (pending bool, err error) {
	life := w.engine.Status(name)
	var mu sync.Mutex
	services := 0
	_ = w.each(name, func(m *member) error {
		here := true
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
	if !life.Begun {
		w.store.SetStep(name, step)
		w.keeping.SetStep(name)
		return true, nil
	}
	if services == 0 || !taken {
		return true, nil
	}
	w.store.SetStep(name, step)
	w.keeping.SetStep(name)
	recorded, ok := w.engine.TookStep(set, life.Incarnation)
	if !ok {
		return true, nil // that life is over, or it was set anew
	}
	return false, w.recorded(ctx, name, recorded)
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
