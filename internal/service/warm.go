package service

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/warm"
)

// openWarm makes the fork server of a role that has modules preloaded; nil for others. It is started with
// the first worker.
func (s *Service) openWarm() *warm.Server {
	if len(s.opts.Role.Preload) == 0 || s.user != nil {
		return nil
	}
	o := warm.Options{
		Preload: s.opts.Role.Preload, PerLife: perLife(&s.opts.Role), Limit: cmp.Or(s.opts.Role.Limits.Start, preloadTime), Log: s.log.With("part", "warm start"),
		Mark:   fmt.Sprintf("%s/%s/fork", s.opts.JobUID, s.id.Role),
		Output: filepath.Join(s.opts.LogDir, string(s.id.Role), fmt.Sprintf("preload.%d.log", s.id.Index)),
		Notice: s.startsCold,
	}
	if s.keeper.Cgroups() {
		o.Leaf = fmt.Sprintf("vigil-%s/%s.%d/fork", s.opts.JobUID, s.id.Role, s.id.Index)
	}
	w := warm.New(s.keeper, o)
	s.atEnd(func() {
		if err := w.Close(); err != nil {
			s.log.Warn("the fork server is not ended", "err", err)
		}
	})
	return w
}

// preloadTime is how long modules may take to be imported where the role has no limit for its start.
const preloadTime = 10 * time.Minute

// perLife names the variables of a role that differ between the lives of its workers.
func perLife(r *job.Role) []string {
	names := []string{"VIGIL_CONTROLLER_URL"}
	for name, value := range r.Env {
		if strings.Contains(value, "${port.") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// startsCold says why workers are executed although the role has modules preloaded.
func (s *Service) startsCold(why string) {
	s.mu.Lock()
	var one *worker
	for _, w := range s.lives {
		if one == nil || w.life.Rank < one.life.Rank {
			one = w
		}
	}
	s.mu.Unlock()
	if one == nil {
		one = &worker{life: role.Life{Job: s.opts.JobUID, Role: s.id.Role, Incarnation: s.opts.Incarnation, Attempt: 1}}
	}
	s.notice(one, why)
}

// spawn starts a process of a worker: by a fork where the role has modules preloaded and nothing speaks
// against it, else by executing its program. No budget is spent on a fork that cannot be had.
func (s *Service) spawn(spec proc.Spec) (*proc.Process, error) {
	if s.user != nil && len(s.opts.Role.Preload) > 0 {
		s.sayCold.Do(func() {
			s.startsCold("workers start without the fork server: it does not run as another user (user: " + s.opts.Role.User + ")")
		})
	}
	if s.warm != nil {
		if p, err := s.warm.Fork(context.Background(), spec); err == nil {
			return p, nil
		}
	}
	return s.keeper.Start(spec)
}
