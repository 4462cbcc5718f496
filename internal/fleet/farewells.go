// Package fleet is what is known of a job's services and their workers, on whichever machine they run.
package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"vigil/internal/farewell"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// endSlack is how long the end of a service's workers may take beyond their grace.
const endSlack = 30 * time.Second

// pollEvery is how often it is looked whether a service that is ending its workers has ended.
const pollEvery = 50 * time.Millisecond

// Farewells reads the notes that services of a run have left while there was no controller. It is for one goroutine.
type Farewells struct {
	LogDir string // of the run
	Job    *job.Job
	Log    *slog.Logger
	// Saved is told what workers had saved when they were ended, before Read returns; nil: nobody is.
	Saved func(life role.Life, step int64)

	read []farewell.Note
}

// Read returns what the services of each role have left. A service that is still ending its workers is waited for, as
// long as that may take. A role is in the answer only if all of its services came to the end of it.
func (f *Farewells) Read(ctx context.Context) map[role.Name]engine.Farewell {
	notes := f.notes()
	if limit, waits := f.wait(notes); waits {
		f.Log.Info("waiting for services that are ending their workers, because they had no controller")
		ctx, cancel := context.WithTimeout(ctx, limit)
		awaitEnds(ctx, notes)
		cancel()
		notes = f.notes()
	}
	f.read = notes
	f.tellSaved()
	byRole := map[role.Name][]farewell.Note{}
	for _, n := range notes {
		byRole[n.Role] = append(byRole[n.Role], n)
	}
	out := map[role.Name]engine.Farewell{}
	for name, of := range byRole {
		if all, ok := sum(of); ok {
			out[name] = all
		}
	}
	return out
}

// tellSaved tells what workers had saved: there was no controller to hear of it.
func (f *Farewells) tellSaved() {
	for _, n := range f.read {
		for _, w := range n.Workers {
			if w.Saved != nil && f.Saved != nil {
				f.Saved(w.Life, *w.Saved)
			}
		}
	}
}

func (f *Farewells) notes() []farewell.Note {
	notes, err := farewell.Read(f.LogDir)
	if err != nil {
		f.Log.Warn("a service that ended its workers in order may be taken for lost", "error", err)
	}
	return notes
}

// wait returns how long services that are ending their workers may take, and whether there are any.
func (f *Farewells) wait(notes []farewell.Note) (limit time.Duration, any bool) {
	for _, n := range notes {
		if r, ok := f.Job.Role(n.Role); ok && isEnding(n) {
			limit, any = max(limit, r.Stop.Grace+endSlack), true
		}
	}
	return limit, any
}

func isEnding(n farewell.Note) bool {
	return !n.Ended && proc.Ident{PID: n.PID, StartTime: n.Start}.Alive()
}

// awaitEnds waits until no service is ending its workers, or ctx ends.
func awaitEnds(ctx context.Context, notes []farewell.Note) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for _, n := range notes {
		for isEnding(n) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// sum makes one farewell of the notes of a role's services; false if one of them has left none, is of another
// incarnation, or has not come to the end.
func sum(notes []farewell.Note) (engine.Farewell, bool) {
	first := notes[0]
	all := engine.Farewell{Incarnation: first.Incarnation, Why: first.Why, Step: first.Step, Unsaid: first.Unsaid, Finished: true}
	seen := map[int]bool{}
	for _, n := range notes {
		if !n.Ended || n.Incarnation != first.Incarnation || n.Services != first.Services {
			return all, false
		}
		seen[n.Index] = true
		switch { // a service whose workers say no steps does not know how far they are
		case all.Unsaid && !n.Unsaid:
			all.Step, all.Unsaid = n.Step, false
		case all.Unsaid == n.Unsaid:
			all.Step = min(all.Step, n.Step)
		}
		for _, w := range n.Workers {
			all.Finished = all.Finished && w.Finished
			if w.Failure != nil {
				all.Failures = append(all.Failures, *w.Failure)
			}
		}
	}
	return all, len(seen) == first.Services
}

// Remove removes the notes that were read. What cannot be removed is of an earlier incarnation from now on, and does
// no harm.
func (f *Farewells) Remove() {
	for _, n := range f.read {
		if err := farewell.Remove(f.LogDir, n.Role, n.Index); err != nil {
			f.Log.Debug(fmt.Sprintf("the farewell of service %s/%d stays", n.Role, n.Index), "error", err)
		}
	}
}
