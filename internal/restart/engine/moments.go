package engine

import (
	"context"
	"slices"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// echo is how far the signs of one stop may lie apart. A scheduler that stops a job signals all of its processes, in
// any order: workers die and services end before the controller knows why.
const echo = time.Second

// lengthenLimit bounds the word to a service that its stop has more time.
const lengthenLimit = 5 * time.Second

// moments is what the last moments may have to be looked at again for, when it turns out that the job is being
// stopped. The loop owns it.
type moments struct {
	held  []*role.Failure // not judged yet
	spent []receipt
	done  int       // counts how often every role has ended well
	ended time.Time // when the end of the job was decided
}

// receipt is a charge that can be given back.
type receipt struct {
	at     time.Time
	before restart.Ledger
}

// meet takes in a failure. One that a stop of the job may be the reason for is not judged at once; when more of its
// role fails in a way that has another reason, it is judged with that.
func (e *Engine) meet(f role.Failure) {
	if e.ending == nil && (e.isDone() || f.ByStopSignal() && !f.Fatal) {
		e.holdBack(f)
		return
	}
	e.release(func(h *role.Failure) bool { return h.Life.Role == f.Life.Role })
	e.take(f)
}

// holdBack has a failure taken in a moment later.
func (e *Engine) holdBack(f role.Failure) {
	held := &f
	e.just.held = append(e.just.held, held)
	e.releaseLater(held)
}

// releaseLater takes a failure in a moment later, but nothing of a job that is done and about to end.
func (e *Engine) releaseLater(held *role.Failure) {
	time.AfterFunc(echo, func() {
		e.tell(func() {
			if e.isDone() {
				e.releaseLater(held)
				return
			}
			e.release(func(h *role.Failure) bool { return h == held })
		})
	})
}

// release takes failures in that were held back, in their order.
func (e *Engine) release(which func(*role.Failure) bool) {
	var due []*role.Failure
	e.just.held = slices.DeleteFunc(e.just.held, func(h *role.Failure) bool {
		if which(h) {
			due = append(due, h)
			return true
		}
		return false
	})
	for _, h := range due {
		e.take(*h)
	}
}

// allFinished reports whether every role that is awaited has ended well.
func (e *Engine) allFinished() bool {
	awaited := 0
	for _, n := range e.Job.Names() {
		if r, _ := e.Job.Role(n); r.Completion != job.Daemon {
			if e.state(n).state != role.Finished {
				return false
			}
			awaited++
		}
	}
	return awaited > 0
}

// isDone says whether every role that finishes has ended well, and the job has not ended yet.
func (e *Engine) isDone() bool { return e.just.done > 0 && e.ending == nil && e.allFinished() }

// endWell ends the job, unless it turns out in the next moment that its roles have ended because it is being stopped.
func (e *Engine) endWell() {
	e.just.done++
	this := e.just.done
	time.AfterFunc(echo, func() {
		e.tell(func() {
			if this == e.just.done && e.isDone() {
				e.Log.Info("every role that finishes has ended well")
				e.end(Outcome{Why: "every role that finishes has ended well"})
			}
		})
	})
}

// stopJob ends the job because somebody wants it to. What has happened in the moment before is taken for part of
// that: it costs nothing, and what was decided for it does not stand.
func (e *Engine) stopJob(o Outcome) {
	bySignal := o.Exit > 128
	if e.ending == nil || bySignal && e.isOverruled() {
		e.giveBack()
		if bySignal {
			e.unfinish()
		}
	}
	if bySignal && e.isOverruled() {
		e.overrule(o)
	}
	e.end(o)
	e.mu.Lock()
	e.wanted = true
	e.mu.Unlock()
	e.lengthen(e.Job.Names()...)
}

// isOverruled says whether the end that was decided is one that a stop of the job comes before: it was decided in the
// last moment, and not for an error that no restart helps against.
func (e *Engine) isOverruled() bool {
	return e.ending != nil && e.ending.Rule != "" && e.ending.Rule != restart.Fatal && time.Since(e.just.ended) <= echo
}

// overrule gives the end of the job, which has begun, another reason.
func (e *Engine) overrule(o Outcome) {
	e.ending = &o
	ends := []*decided{e.next}
	for r := range e.running {
		if r.plan.Action == role.Stop && r.done == nil {
			ends = append(ends, r.why)
		}
	}
	e.mu.Lock()
	for _, d := range ends {
		if d != nil {
			d.Exit, d.Rule, d.Why = o.Exit, o.Rule, o.Why
		}
	}
	e.mu.Unlock()
	for r := range e.running {
		if r.plan.Action == role.Stop && r.done == nil {
			e.Memory.Note(Update{Began: e.planMemory(r)})
		}
	}
}

// charged keeps what was spent before, in case it must be given back.
func (e *Engine) charged(before restart.Ledger) {
	now := time.Now()
	e.just.spent = slices.DeleteFunc(e.just.spent, func(r receipt) bool { return now.Sub(r.at) > echo })
	e.just.spent = append(e.just.spent, receipt{now, before})
}

// giveBack undoes what the last moment has cost.
func (e *Engine) giveBack() {
	now := time.Now()
	first := slices.IndexFunc(e.just.spent, func(r receipt) bool { return now.Sub(r.at) <= echo })
	if first < 0 {
		return
	}
	before := e.just.spent[first].before
	e.just.spent = nil
	e.charge(func(restart.Ledger) restart.Ledger { return before.Clone() })
	e.Memory.Note(Update{Ledger: e.unkept()}) // whoever stops the job may not wait for the plans under way
	for _, n := range e.Job.Names() {
		e.Health.SetRestarts(n, before.Roles[n].InPlace)
	}
	e.Log.Info("the restarts of the last second cost nothing: the job is being stopped")
}

// unfinish has the roles that ended well in the last moment begin again with the next controller: a program that
// saves its work when it is told to stop, and exits with 0, has not finished.
func (e *Engine) unfinish() {
	now := time.Now()
	var again []role.Name
	e.mu.Lock()
	for _, n := range e.Job.Names() {
		if st := e.roles[n]; st.state == role.Finished && now.Sub(st.finished) <= echo {
			st.state, st.why = role.Running, "its workers have ended as the job was being stopped"
			again = append(again, n)
		}
	}
	e.mu.Unlock()
	if len(again) > 0 {
		e.note(again...)
	}
}

// lengthen gives the stops of the roles that are under way the grace of a wanted one.
func (e *Engine) lengthen(names ...role.Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range names {
		if e.roles[n].hurried == 0 {
			continue
		}
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), lengthenLimit)
			defer cancel()
			if err := e.Crew.Lengthen(ctx, n); err != nil {
				e.Log.Warn("the stop of '"+string(n)+"' is not given more time", "error", err)
			}
		}()
	}
}
