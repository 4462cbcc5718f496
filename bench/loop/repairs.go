package main

import (
	"errors"
	"path/filepath"

	"vigil/bench/result"
	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/role"
)

// repairs measures how long whole restarts of the built-in job take: from the failure to workers that
// run.
func (b *bench) repairs() error {
	j := job.Builtin(b.program)
	j.Name = "bench-repairs"
	for i := range j.Roles {
		j.Roles[i].Restart.BackOff = job.BackOff{}
	}
	c, err := startController(b.program, filepath.Join(b.folder, "repairs"), j, []string{"VIGIL_EXAMPLE_DIR=" + filepath.Join(b.folder, "checkpoints")})
	if err != nil {
		return err
	}
	var inPlace, global result.Samples
	if _, err = c.until(everyRoleSpoke(len(j.Roles))); err == nil {
		err = b.restartOften(c, len(j.Roles), &inPlace, &global)
	}
	b.report.Measured("in-place restart of critic, built-in job", inPlace, nil, nil)
	b.report.Measured("global restart, built-in job (5 roles, 7 workers)", global, nil, nil)
	return errors.Join(err, c.stop())
}

func (b *bench) restartOften(c *controller, roles int, inPlace, global *result.Samples) error {
	for range b.restarts {
		if err := c.post("/api/v1/roles/critic/restart", ""); err != nil {
			return err
		}
		if err := wall(c, everyRoleSpoke(1), inPlace); err != nil {
			return err
		}
		if err := c.post("/actor/report_error", `{"message":"the loss is not a number"}`); err != nil {
			return err
		}
		if err := wall(c, everyRoleSpoke(roles), global); err != nil {
			return err
		}
	}
	return nil
}

// wall reads the events of one repair until the roles speak again.
func wall(c *controller, well func(event.Event) bool, s *result.Samples) error {
	events, err := c.until(well)
	if err != nil {
		return err
	}
	failed, err1 := find(events, kind(event.Failure))
	ended, err2 := find(events, kind(event.PlanEnded))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	*s = append(*s, ended.At.Sub(failed.At))
	return nil
}

// everyRoleSpoke is the first step of the last of so many roles, after the end of a plan.
func everyRoleSpoke(n int) func(event.Event) bool {
	spoke, planned := map[role.Name]bool{}, false
	return func(ev event.Event) bool {
		switch ev.Kind {
		case event.FirstStep:
			spoke[ev.Role] = true
		case event.PlanEnded:
			planned = true
		default: // not asked for
		}
		return planned && len(spoke) >= n
	}
}
