package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"vigil/internal/health"
	"vigil/internal/journal"
	"vigil/internal/role"
	"vigil/internal/wire/roleapi"
)

// roles answers the role endpoints.
type roles struct{ *Controller }

// Known returns the roles of the job.
func (r roles) Known() []role.Name { return r.opts.Job.Names() }

// Step returns the role's step.
func (r roles) Step(_ context.Context, name role.Name) (int64, error) {
	rec, err := r.store.Record(name)
	return rec.CurrentStep, err
}

// SetStep sets the role's step.
func (r roles) SetStep(ctx context.Context, name role.Name, step int64) (pending bool, err error) {
	return r.crew.SetStep(ctx, name, step)
}

// StopService stops the role by hand. A client that goes away does not undo it.
func (r roles) StopService(ctx context.Context, name role.Name) error {
	r.asked(name, "stop_service")
	done := make(chan error, 1)
	go func() { done <- r.engine.StopRole(context.WithoutCancel(ctx), name) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// MarkUnhealthy reports the role unhealthy.
func (r roles) MarkUnhealthy(_ context.Context, name role.Name) error {
	r.asked(name, "mark_unhealthy_for_testing")
	r.store.Report(role.Failure{Life: role.Life{Role: name, Rank: role.NoRank}, Cause: role.Reported, Detail: "marked unhealthy for testing"})
	return nil
}

// life returns the life that a word is of: the one it names, or the current one of its rank.
func (r roles) life(name role.Name, rank int, life string) (role.Life, error) {
	if life != "" {
		return role.ParseLife(life)
	}
	rec, err := r.store.Record(name)
	if err != nil {
		return role.Life{}, err
	}
	if rank < 0 || rank >= len(rec.Ranks) {
		return role.Life{}, roleapi.NewProblem(http.StatusBadRequest, fmt.Sprintf("role %s has no rank %d; its ranks are 0 to %d", name, rank, len(rec.Ranks)-1))
	}
	return rec.Ranks[rank].Life, nil
}

// Heartbeat takes a worker's word.
func (r roles) Heartbeat(_ context.Context, name role.Name, w roleapi.Word) error {
	life, err := r.life(name, w.Rank, w.Life)
	if err != nil {
		return err
	}
	if r.store.Beat(life, w.Step, time.Now()) == health.HeardStale {
		return roleapi.ErrStale
	}
	return nil
}

// ReportError takes a report.
func (r roles) ReportError(_ context.Context, name role.Name, rep roleapi.Report) error {
	life, err := r.life(name, rep.Rank, rep.Life)
	if err != nil {
		return err
	}
	if r.store.Report(role.Failure{Life: life, Cause: role.Reported, Detail: rep.Text, Fatal: rep.Fatal}) == health.HeardStale {
		return roleapi.ErrStale
	}
	return nil
}

// PauseWatch holds back the verdict on silence of the role or of one worker.
func (r roles) PauseWatch(ctx context.Context, name role.Name, rank int, d time.Duration) error {
	whose, err := r.worker(name, rank)
	if err != nil {
		return err
	}
	r.asked(name, "pause_watch"+whose+" for "+d.String())
	kept := r.keeping.Pause(name, rank, d, time.Now())
	r.crew.touchAfter(d)
	r.awaitRecord(ctx, kept)
	return nil
}

// ResumeWatch ends a pause of the role or of one worker.
func (r roles) ResumeWatch(ctx context.Context, name role.Name, rank int) error {
	whose, err := r.worker(name, rank)
	if err != nil {
		return err
	}
	r.asked(name, "resume_watch"+whose)
	kept := r.keeping.Resume(name, rank)
	r.crew.touch()
	r.awaitRecord(ctx, kept)
	return nil
}

// recordWithin bounds how long what an operator has asked for waits to be recorded, so that the next controller knows
// of it.
const recordWithin = 2 * time.Second

// awaitRecord waits until something is recorded. A disk that takes nothing keeps no operator from what he asks for: the
// journal says that itself.
func (r roles) awaitRecord(ctx context.Context, kept *journal.Commit) {
	ctx, cancel := context.WithTimeout(ctx, recordWithin)
	defer cancel()
	_ = kept.Wait(ctx)
}

// Admit ends the quarantine of a worker.
func (r roles) Admit(ctx context.Context, name role.Name, rank int, life string) error {
	whose, err := r.worker(name, rank)
	if err != nil {
		return err
	}
	if rec, err := r.store.Record(name); err != nil || life != "" && rec.Ranks[rank].Life.String() != life {
		return errors.Join(err, fmt.Errorf("admit life %s: %w", life, roleapi.ErrStale))
	}
	r.asked(name, "admit"+whose)
	err = r.store.Admit(name, rank)
	if not := new(health.NotReadyError); errors.As(err, &not) {
		return roleapi.NewProblem(http.StatusConflict, not.Error())
	}
	r.crew.touch()
	if err == nil {
		r.awaitRecord(ctx, r.ground.journal.Write())
	}
	return err
}

// worker says in words which worker of the role is meant; nothing for role.NoRank.
func (r roles) worker(name role.Name, rank int) (string, error) {
	if rank == role.NoRank {
		return "", nil
	}
	if of, ok := r.opts.Job.Role(name); ok && rank >= of.Workers {
		return "", roleapi.NewProblem(http.StatusBadRequest, fmt.Sprintf("role %s has no worker %d; its workers are 0 to %d", name, rank, of.Workers-1))
	}
	return fmt.Sprintf(" of worker %d", rank), nil
}
