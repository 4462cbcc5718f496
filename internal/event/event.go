// Package event holds what happened: one flat record per happening, and a log that keeps the newest
// and hands them to whoever follows. Journal, metrics, logs and pages all read the same records.
package event

import (
	"fmt"
	"strings"
	"time"

	"vigil/internal/role"
)

// Kind says what happened.
type Kind string

// The kinds.
const (
	JobStarted Kind = "job_started"
	JobEnded   Kind = "job_ended"

	Suspected Kind = "suspected" // a service missed a poll, or a guessed source went quiet
	Failure   Kind = "failed"    // a verdict
	Folded    Kind = "folded"    // a further failure of a life that is being repaired anyway
	Ignored   Kind = "ignored"   // a failure that a rule of the job file says to leave alone; told once per worker life and rule
	Decided   Kind = "decided"
	Moved     Kind = "moved" // one move of a plan, with its result
	PlanBegan Kind = "plan_began"
	PlanEnded Kind = "plan_ended"

	WorkerStarted     Kind = "worker_started"
	WorkerReady       Kind = "worker_ready"
	WorkerQuarantined Kind = "worker_quarantined" // ready, and not available before it is admitted
	WorkerFinished    Kind = "worker_finished"
	WorkerExited      Kind = "worker_exited"
	FirstStep         Kind = "first_step"     // first heartbeat of a role's life
	StepWentBack      Kind = "step_went_back" // a life began below the step that it was given
	StateBehind       Kind = "state_behind"   // the same, of a role whose work lives in checkpoints
	StepAhead         Kind = "step_ahead"     // a life began beyond the step that it was given
	StepsApart        Kind = "steps_apart"    // a run's first life began at another step than that of another role
	Checkpoint        Kind = "checkpoint"
	RoleReady         Kind = "role_ready"
	RoleFinished      Kind = "role_finished"

	ServiceJoined Kind = "service_joined"
	ServiceLeft   Kind = "service_left"
	Stale         Kind = "stale" // word of an earlier life, dropped
	Requested     Kind = "requested"
	Blind         Kind = "blind"     // the checker could not listen and credited everybody
	PhaseOdd      Kind = "phase_odd" // a phase was ended that is not open, or too many are; told once per worker life
	Starved       Kind = "starved"   // a silent worker wants to run and others have the CPUs; told once per silence
	Noticed       Kind = "noticed"   // what a person should know of a worker and what is no failure; told once
	Obligation    Kind = "obligation"
)

// Event is one thing that happened. Fields that do not apply are zero; Rank is role.NoRank then, so
// make one with New.
type Event struct {
	Seq         uint64        `json:"seq"`
	At          time.Time     `json:"at"`
	Kind        Kind          `json:"kind"`
	Role        role.Name     `json:"role,omitempty"`
	Incarnation int           `json:"incarnation,omitempty"`
	Rank        int           `json:"rank"` // role.NoRank (-1) when it concerns no single rank
	Incident    string        `json:"incident,omitempty"`
	Cause       role.Cause    `json:"cause,omitempty"`
	Action      role.Action   `json:"action,omitempty"`
	Rule        string        `json:"rule,omitempty"`
	Verb        string        `json:"verb,omitempty"`
	Roles       []role.Name   `json:"roles,omitempty"`
	Step        *int64        `json:"step,omitempty"`
	Took        time.Duration `json:"took_ns,omitempty"` // of a move or plan; of a failure, from its first sign to the verdict; 0: not known
	Detail      string        `json:"detail,omitempty"`
	Error       string        `json:"error,omitempty"`
	PID         int           `json:"pid,omitempty"`
	Log         string        `json:"log,omitempty"`       // of a failure: path of the log that tells more
	Attempt     int           `json:"attempt,omitempty"`   // of the worker life that it concerns, from 1; 0: it concerns none
	ExitCode    *int          `json:"exit_code,omitempty"` // of a failure: how the process ended; nil if it did not, or by a signal
	Signal      string        `json:"signal,omitempty"`    // the same: the signal that killed it, such as SIGKILL
}

// New returns an event that concerns no single rank.
func New(at time.Time, kind Kind) Event { return Event{At: at, Kind: kind, Rank: role.NoRank} }

// String returns the event as one line of words, without its time: "failed role=critic inc=1 cause=silent".
func (e Event) String() string {
	var b strings.Builder
	b.WriteString(string(e.Kind))
	word := func(key, value string) {
		if value == "" {
			return
		}
		if strings.ContainsAny(value, " \"=\n") {
			value = fmt.Sprintf("%q", value)
		}
		fmt.Fprintf(&b, " %s=%s", key, value)
	}
	if e.Action != "" {
		word("action", string(e.Action))
	}
	word("rule", e.Rule)
	word("verb", e.Verb)
	word("role", string(e.Role))
	if e.Incarnation != 0 {
		fmt.Fprintf(&b, " inc=%d", e.Incarnation)
	}
	if e.Rank != role.NoRank {
		fmt.Fprintf(&b, " rank=%d", e.Rank)
	}
	if e.Attempt > 1 {
		fmt.Fprintf(&b, " attempt=%d", e.Attempt)
	}
	if len(e.Roles) > 0 {
		names := make([]string, len(e.Roles))
		for i, n := range e.Roles {
			names[i] = string(n)
		}
		word("roles", strings.Join(names, ","))
	}
	word("cause", string(e.Cause))
	if e.Step != nil {
		fmt.Fprintf(&b, " step=%d", *e.Step)
	}
	word("detail", e.Detail)
	word("error", e.Error)
	return b.String()
}
