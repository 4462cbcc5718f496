package controller

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"vigil/internal/health"
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

// PauseWatch holds back the verdict on silence.
func (r roles) PauseWatch(_ context.Context, name role.Name, d time.Duration) error {
	r.asked(name, "pause_watch for "+d.String())
	r.store.Pause(name, d)
	r.crew.touch()
	return nil
}

// ResumeWatch ends a pause.
func (r roles) ResumeWatch(_ context.Context, name role.Name) error {
	r.asked(name, "resume_watch")
	r.store.Resume(name)
	r.crew.touch()
	return nil
}
