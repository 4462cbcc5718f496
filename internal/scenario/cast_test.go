package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"vigil/internal/job"
	"vigil/internal/role"
)

// cast makes the job of the roles named, NAME or NAME:WORKERS, with the defaults of a job file.
func (w *world) cast(names []string) {
	for i, n := range names {
		n, count, _ := strings.Cut(n, ":")
		workers, err := strconv.Atoi(count)
		if err != nil {
			workers = 1
		}
		name := role.Name(n)
		r := job.Role{Name: name, Workers: workers, Completion: job.Finish, State: job.Stateless,
			Stop:     job.StopPolicy{Signal: "TERM", Grace: 30 * time.Second, GraceOnFailure: 3 * time.Second},
			Limits:   job.Limits{Start: 30 * time.Minute, Floor: 120 * time.Second},
			Progress: job.Progress{Expect: job.OnceSeen},
			Restart:  job.Restart{OnFailure: role.InPlace, EscalateAt: 3, MaxRewind: -1, BackOff: job.BackOff{Base: time.Second, Max: time.Minute, ResetAfter: time.Minute}}}
		if n == "actor" || n == "rollout" || n == "actor_fwd" {
			r.Restart.OnFailure = role.Global
		}
		w.job.Roles = append(w.job.Roles, r)
		w.actors[name] = &player{index: i, every: time.Second, slow: map[string]time.Duration{}, hung: map[int]bool{}, startsAt: -1}
	}
	w.job.Lead = w.job.Roles[0].Name
	if _, ok := w.job.Role("actor"); ok {
		w.job.Lead = "actor"
	}
}

func (w *world) settings(words []string) error {
	for _, s := range words {
		key, value, _ := strings.Cut(s, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "health_check":
			w.policy.HealthCheck = value == "on"
		case "max_global":
			w.policy.MaxGlobal = n
		case "no_progress_lives":
			w.policy.NoProgressLives = n
		default:
			return fmt.Errorf("no setting %q", key)
		}
	}
	return nil
}

func (w *world) roleSettings(name role.Name, words []string) error {
	r, ok := w.job.Role(name)
	if !ok {
		return fmt.Errorf("no role %q", name)
	}
	for _, s := range words {
		key, value, _ := strings.Cut(s, "=")
		n, _ := strconv.Atoi(value)
		d, _ := time.ParseDuration(value)
		switch key {
		case "on_failure":
			r.Restart.OnFailure = role.Action(value)
		case "also":
			r.Restart.Also = append(r.Restart.Also, role.Name(value))
		case "depends_on":
			r.DependsOn = append(r.DependsOn, role.Name(value))
		case "heartbeat":
			r.Limits.Heartbeat = d
		case "start":
			r.Limits.Start = d
		case "every":
			w.actors[name].every = d
		case "brief":
			w.actors[name].brief = value == "yes"
		case "phase": // phase=NAME:D
			n, limit, _ := strings.Cut(value, ":")
			d, err := time.ParseDuration(limit)
			if err != nil {
				return err
			}
			if r.Limits.Phases == nil {
				r.Limits.Phases = map[string]time.Duration{}
			}
			r.Limits.Phases[n] = d
		case "completion":
			r.Completion = job.Completion(value)
		case "state":
			r.State = job.StateKind(value)
		case "unit":
			r.Restart.Unit, r.Restart.MinAvailable = job.Unit(value), 1
		case "min_available":
			r.Restart.MinAvailable = n
		case "rejoin":
			r.Restart.Rejoin = job.Rejoin(value)
		case "escalate_at":
			r.Restart.EscalateAt = n
		case "rule":
			rule, err := readRule(value)
			if err != nil {
				return err
			}
			r.Restart.Rules = append(r.Restart.Rules, rule)
		case "window":
			r.Restart.Window = d
		case "forgive_after":
			r.Restart.ForgiveAfter = d
		case "max_rewind":
			r.Restart.MaxRewind = int64(n)
		case "back_off":
			r.Restart.BackOff.Base = d
		case "ready":
			r.Ready = &job.Probe{Notify: true}
			w.actors[name].unready = value == "never"
		default:
			return fmt.Errorf("no setting %q", key)
		}
	}
	return nil
}
