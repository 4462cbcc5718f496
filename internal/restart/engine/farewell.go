package engine

import (
	"context"
	"fmt"
	"time"

	"vigil/internal/role"
)

// Farewell says how the services of a role have ended its workers while there was no controller to tell them to. That
// costs nothing: the role is begun again from the step at which it was ended. What had failed before that is a failure.
type Farewell struct {
	Incarnation int // of the workers
	Why         string
	Step        int64
	Unsaid      bool           // no worker has said a step: Step is the one that they were given
	Finished    bool           // every worker had ended well by itself before
	Failures    []role.Failure // of those that had failed before, in the order of their ranks
}

// Farewells are what services have left for a later controller. Of a role that is not among them, some service has
// left nothing, or did not come to the end of it.
type Farewells interface {
	// Read returns them, once services that are still ending their workers have done so, or ctx ends.
	Read(ctx context.Context) map[role.Name]Farewell
	// Remove is called once they are taken in for good.
	Remove()
}

// noFarewells are those of a crew whose services leave none.
type noFarewells struct{}

func (noFarewells) Read(context.Context) map[role.Name]Farewell { return nil }
func (noFarewells) Remove()                                     {}

// farewellOf returns the farewell to the lives of a role that are remembered, if there is one.
func farewellOf(n role.Name, was RoleMemory, left map[role.Name]Farewell) (Farewell, bool) {
	f, ok := left[n]
	return f, ok && was.Begun && !was.ByHand && !was.Finished && was.Incarnation == f.Incarnation
}

// awaitFarewells reads what services have left and waits for those that are ending their workers, but no longer once
// the job is to stop. It returns what the loop was told meanwhile, to be done when the job has been taken over.
func (e *Engine) awaitFarewells(ctx context.Context) (left map[role.Name]Farewell, meanwhile []func()) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read := make(chan map[role.Name]Farewell, 1)
	go func() { read <- e.Farewells.Read(ctx) }()
	stop := e.stopAsked
	for {
		select {
		case left = <-read:
			return left, meanwhile
		case act := <-e.inbox:
			meanwhile = append(meanwhile, act)
		case <-e.pings:
		case <-stop:
			cancel()
			stop = nil
		}
	}
}

// takeFarewells takes in which roles were ended in order: their workers are known to be gone, they are begun again
// from where they were, and nothing is charged for it. Those that had finished have finished. It returns what had
// failed before, by role.
func (e *Engine) takeFarewells(left map[role.Name]Farewell) map[role.Name][]role.Failure {
	failed := map[role.Name][]role.Failure{}
	var changed []role.Name
	for _, n := range e.Job.Names() {
		f, ok := farewellOf(n, e.Remembered.Roles[n], left)
		if !ok {
			continue
		}
		if f.Unsaid { // what it had saved may be beyond the step that it was given
			reached, _ := e.Health.Standing(n)
			f.Step = max(f.Step, reached)
		}
		e.mu.Lock()
		st := e.roles[n]
		if st.mayRun = false; !st.assigned { // else that comes before where they were
			st.step = f.Step
		}
		step := st.step
		switch {
		case f.Finished:
			st.state, st.why = role.Finished, "ended well"
		case len(f.Failures) == 0:
			st.why = fmt.Sprintf("its workers were ended in order at step %d, because %s", f.Step, f.Why)
		}
		e.mu.Unlock()
		e.Health.SetStep(n, step)
		if f.Finished {
			e.Health.StopWatching(n)
		}
		if len(f.Failures) > 0 {
			failed[n] = f.Failures
			continue
		}
		changed = append(changed, n)
	}
	if len(changed) > 0 {
		e.note(changed...)
		e.sayFarewells(changed, left)
	}
	return failed
}

// sayFarewells says in one line, for each reason, which roles are begun again without a charge.
func (e *Engine) sayFarewells(roles []role.Name, left map[role.Name]Farewell) {
	at := map[string][]string{}
	var order []string
	for _, n := range roles {
		f := left[n]
		if f.Finished {
			continue
		}
		if at[f.Why] == nil {
			order = append(order, f.Why)
		}
		at[f.Why] = append(at[f.Why], fmt.Sprintf("%s at step %d", n, e.state(n).step))
	}
	for _, why := range order {
		e.Log.Warn("workers were ended in order because "+why+": begun again, nothing is charged", "roles", at[why])
	}
}

// forgetFarewells has the farewells removed once what they said is recorded.
func (e *Engine) forgetFarewells(ctx context.Context, all []role.Name) {
	kept := e.Memory.Keep(Update{Roles: e.remember(all...)})
	ctx, cancel := context.WithTimeout(ctx, endMemoryLimit)
	go func() {
		defer cancel()
		if kept(ctx) == nil { // else the next controller reads them again
			e.Farewells.Remove()
		}
	}()
}

// lostMeanwhile takes in that nobody holds the workers of a role that was begun: what had failed of it, or that its
// service was lost. Where the machine went down, that is not the role's doing, and counts as if its node was taken away.
func (e *Engine) lostMeanwhile(n role.Name, was RoleMemory, failed []role.Failure) {
	if len(failed) == 0 {
		cause, detail := role.Unreachable, "its service was lost while there was no controller"
		if e.Remembered.Rebooted {
			cause, detail = role.Preempted, "the machine went down, and has booted since"
		}
		failed = []role.Failure{{Life: role.Life{Role: n, Incarnation: was.Incarnation, Rank: role.NoRank, Attempt: 1}, Cause: cause, Detail: detail, At: time.Now()}}
	}
	for _, f := range failed {
		if e.standsAlone(f) { // there is no service to restart it in: its role has failed
			f.Life.Rank, f.Detail = role.NoRank, fmt.Sprintf("rank %d: %s", f.Life.Rank, f.Detail)
		}
		e.take(f)
	}
}
