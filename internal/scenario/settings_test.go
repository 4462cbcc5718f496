package scenario

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"vigil/internal/job"
	"vigil/internal/role"
)

// change makes one setting; the role is nil for those of the policy.
type change func(w *world, r *job.Role)

// setting is one KEY=VALUE that a directive takes.
type setting struct {
	key   string
	value string // its form, as the reference shows it
	does  string
	read  func(s *story, value string) (change, error)
}

// settingsOf has the settings of each directive that takes KEY=VALUE.
var settingsOf = map[string][]setting{
	"policy": {
		number("max_global", "how many global restarts the job may have; 3 unless set", func(w *world, _ *job.Role, n int) { w.policy.MaxGlobal = n }),
		number("no_progress_lives", "after how many lives without a new step the job ends with 93; 0, never, unless set", func(w *world, _ *job.Role, n int) { w.policy.NoProgressLives = n }),
		word("health_check", "whether failures are repaired; on unless set", []string{"on", "off"}, func(w *world, _ *job.Role, v string) { w.policy.HealthCheck = v == "on" }),
	},
	"role": {
		word("on_failure", "what a failure of the role asks for", texts([]role.Action{role.InPlace, role.Global, role.Stop}), func(_ *world, r *job.Role, v string) { r.Restart.OnFailure = role.Action(v) }),
		another("also", "a role that is restarted with it; may be said again", func(_ *world, r *job.Role, n role.Name) { r.Restart.Also = append(r.Restart.Also, n) }),
		another("depends_on", "a role that must be ready before it starts; may be said again", func(_ *world, r *job.Role, n role.Name) { r.DependsOn = append(r.DependsOn, n) }),
		duration("heartbeat", "an explicit heartbeat timeout", func(_ *world, r *job.Role, d time.Duration) { r.Limits.Heartbeat = d }),
		duration("start", "the start limit; 30m unless set", func(_ *world, r *job.Role, d time.Duration) { r.Limits.Start = d }),
		{"phase", "PHASE:DURATION", "an explicit limit of a phase", readPhase},
		word("completion", "what the end of the role means", texts([]job.Completion{job.Finish, job.Daemon, job.Once}), func(_ *world, r *job.Role, v string) { r.Completion = job.Completion(v) }),
		word("state", "where its work lives", texts([]job.StateKind{job.Checkpointed, job.Stateless}), func(_ *world, r *job.Role, v string) { r.State = job.StateKind(v) }),
		word("unit", "what is restarted when one worker fails", texts([]job.Unit{job.UnitRole, job.UnitWorker}), func(_ *world, r *job.Role, v string) {
			r.Restart.Unit, r.Restart.MinAvailable = job.Unit(v), 1
		}),
		number("min_available", "how many workers must stay ready for one to be restarted alone", func(_ *world, r *job.Role, n int) { r.Restart.MinAvailable = n }),
		word("rejoin", "when a worker that was restarted alone counts again", texts([]job.Rejoin{job.RejoinAuto, job.RejoinManual}), func(_ *world, r *job.Role, v string) { r.Restart.Rejoin = job.Rejoin(v) }),
		number("escalate_at", "which restart in place becomes a global one; 3 unless set", func(_ *world, r *job.Role, n int) { r.Restart.EscalateAt = n }),
		{"rule", "ACTION[,CONDITION:VALUE]...", "a rule of its own; conditions are cause, exit_code, signal and message, values have no blanks", readRule},
		duration("window", "for how long a restart counts", func(_ *world, r *job.Role, d time.Duration) { r.Restart.Window = d }),
		duration("forgive_after", "after how long a time in good health its restarts are forgiven", func(_ *world, r *job.Role, d time.Duration) { r.Restart.ForgiveAfter = d }),
		number("max_rewind", "how many steps its checkpoint may be behind for a restart in place", func(_ *world, r *job.Role, n int) { r.Restart.MaxRewind = int64(n) }),
		duration("back_off", "the first back-off between restarts; 1s unless set", func(_ *world, r *job.Role, d time.Duration) { r.Restart.BackOff.Base = d }),
		word("ready", "the role has a ready probe, which succeeds at once or never", []string{"notify", "never"}, func(w *world, r *job.Role, v string) {
			r.Ready = &job.Probe{Notify: true}
			w.actors[r.Name].unready = v == "never"
		}),
		duration("every", "how long one step of its workers takes; 1s unless set", func(w *world, r *job.Role, d time.Duration) { w.actors[r.Name].every = d }),
		word("brief", "its workers finish before the order to run them is answered", []string{"yes", "no"}, func(w *world, r *job.Role, v string) { w.actors[r.Name].brief = v == "yes" }),
	},
}

func number(key, does string, set func(*world, *job.Role, int)) setting {
	return setting{key, "N", does, func(_ *story, value string) (change, error) {
		n, err := strconv.Atoi(value)
		if err != nil {
			return nil, fmt.Errorf("%q is no number", value)
		}
		return func(w *world, r *job.Role) { set(w, r, n) }, nil
	}}
}

func duration(key, does string, set func(*world, *job.Role, time.Duration)) setting {
	return setting{key, "DURATION", does, func(_ *story, value string) (change, error) {
		d, err := time.ParseDuration(value)
		if err != nil {
			return nil, fmt.Errorf("%q is no duration such as 90s or 1m30s", value)
		}
		return func(w *world, r *job.Role) { set(w, r, d) }, nil
	}}
}

func word(key, does string, known []string, set func(*world, *job.Role, string)) setting {
	return setting{key, strings.Join(known, " or "), does, func(_ *story, value string) (change, error) {
		if err := oneOf("it", value, known); err != nil {
			return nil, err
		}
		return func(w *world, r *job.Role) { set(w, r, value) }, nil
	}}
}

func another(key, does string, set func(*world, *job.Role, role.Name)) setting {
	return setting{key, "ROLE", does, func(s *story, value string) (change, error) {
		if _, ok := s.workers[role.Name(value)]; !ok {
			return nil, fmt.Errorf("there is no role %q%s", value, meant(value, s.roles()))
		}
		return func(w *world, r *job.Role) { set(w, r, role.Name(value)) }, nil
	}}
}

func readPhase(_ *story, value string) (change, error) {
	name, limit, _ := strings.Cut(value, ":")
	d, err := time.ParseDuration(limit)
	if err != nil || name == "" {
		return nil, fmt.Errorf("%q is not PHASE:DURATION", value)
	}
	return func(_ *world, r *job.Role) {
		if r.Limits.Phases == nil {
			r.Limits.Phases = map[string]time.Duration{}
		}
		r.Limits.Phases[name] = d
	}, nil
}

// readRule reads a role's own rule, such as stop,exit_code:3.
func readRule(_ *story, value string) (change, error) {
	action, conditions, _ := strings.Cut(value, ",")
	rule := job.RoleRule{Action: role.Action(action)}
	wrong := []error{oneOf("the action", action, texts([]role.Action{role.InPlace, role.Global, role.Stop, role.Ignore}))}
	for w := range strings.SplitSeq(conditions, ",") {
		key, value, _ := strings.Cut(w, ":")
		switch key {
		case "": // a rule without conditions
		case "cause":
			wrong = append(wrong, oneOf("the cause", value, texts(role.Causes())))
			rule.Causes = append(rule.Causes, role.Cause(value))
		case "exit_code":
			n, err := strconv.Atoi(value)
			wrong = append(wrong, err)
			rule.Exits = append(rule.Exits, n)
		case "signal":
			rule.Signals = append(rule.Signals, value)
		case "message":
			rule.Message = value
		default:
			wrong = append(wrong, oneOf("a condition", key, []string{"cause", "exit_code", "signal", "message"}))
		}
	}
	return func(_ *world, r *job.Role) { r.Restart.Rules = append(r.Restart.Rules, rule) }, errors.Join(wrong...)
}

// cast makes the job of the roles named, NAME or NAME:WORKERS, with the defaults of a job file.
func (w *world) cast(names []string) {
	for i, n := range names {
		n, count, counted := strings.Cut(n, ":")
		workers := 1
		if counted {
			workers, _ = strconv.Atoi(count) // it was read already
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
