package restart

import (
	"maps"
	"time"

	"vigil/internal/job"
	"vigil/internal/role"
)

// Rule names the line of the policy that settled a decision. Log, metrics, API and tests share it.
type Rule string

// The rules.
const (
	RoleNeedsGlobal   Rule = "role_needs_global"
	RoleCanStay       Rule = "role_can_stay"
	WorkerCanRestart  Rule = "worker_can_restart"
	RoleBudgetSpent   Rule = "role_budget_spent"
	RoleStateTooOld   Rule = "role_state_too_old"
	RoleMustStop      Rule = "role_must_stop"
	GlobalBudgetSpent Rule = "global_budget_spent"
	Fatal             Rule = "fatal"
	NoProgress        Rule = "no_progress"
	HealthCheckOff    Rule = "health_check_off"
	OperatorAsked     Rule = "operator_asked"
	RoleRule          Rule = "role_rule" // one of the role's own, of restart.rules
)

// The exit codes of a job that the policy stops.
const (
	ExitFailed     = 1  // budget spent, fatal, or a failure with health check off
	ExitLater      = 75 // the machine does not let the job go on now, try again
	ExitNoProgress = 93 // do not requeue
)

// Budgets of the causes that have one of their own.
const (
	hardwareBudget  = 10
	preemptedBudget = 10
)

// Policy is what the job asks for.
type Policy struct {
	HealthCheck     bool // off: any failure stops the job
	MaxGlobal       int  // so many global restarts happen; the next one needed stops the job
	NoProgressLives int  // so many lives without a step gained stop the job; 0: any number
	Lead            role.Name
	Order           []role.Name // every role, in the order of the job file
	Roles           map[role.Name]RolePolicy
}

// RolePolicy is the part of one role.
type RolePolicy struct {
	job.Restart
	Stateful bool // its work lives in checkpoints
}

// PolicyOf returns the policy of a job under a controller's settings.
func PolicyOf(j *job.Job, healthCheck HealthCheck, maxGlobal, noProgressLives int) Policy {
	p := Policy{HealthCheck: healthCheck == HealthCheckOn, MaxGlobal: maxGlobal, NoProgressLives: noProgressLives, Lead: j.Lead, Order: j.Names(), Roles: map[role.Name]RolePolicy{}}
	for i := range j.Roles {
		r := &j.Roles[i]
		p.Roles[r.Name] = RolePolicy{Restart: r.Restart, Stateful: r.State == job.Checkpointed}
	}
	return p
}

// HealthCheck says whether anything is repaired at all.
type HealthCheck string

// The two settings of --use-health-check.
const (
	HealthCheckOn    HealthCheck = "on"
	HealthCheckIsOff HealthCheck = "off"
)

// Ledger is what has been spent on restarts. It is a value; Spend returns a new one.
type Ledger struct {
	Global  int
	Roles   map[role.Name]Spent
	Workers map[Worker]SpentAlone // since their role last began as a whole
	Times   Times                 // of restarts that a window bounds
}

// Spent is what one role has spent and how it has fared.
type Spent struct {
	InPlace   int // since the last global restart, and within the role's window
	Hardware  int
	Preempted int

	InARow    int       // restarts since the role was last well for its reset_after
	Running   time.Time // when its newest life began to run; zero while it does not
	Idle      int       // lives in a row that gained no step
	BestStep  int64     // highest step that a life has reached
	EverBegan bool

	Gained   time.Duration `json:",omitzero"` // that it ran with new progress and has had nothing back for
	GainedTo int64         `json:",omitzero"` // highest step that a look has found
	Looked   time.Time     `json:",omitzero"` // when that step was reached
}

// NewLedger returns a ledger in which nothing is spent.
func NewLedger() Ledger {
	return Ledger{Roles: map[role.Name]Spent{}, Workers: map[Worker]SpentAlone{}, Times: Times{}.clone()}
}

// Clone returns a ledger that shares nothing with this one.
func (l Ledger) Clone() Ledger {
	return Ledger{Global: l.Global, Roles: maps.Clone(l.Roles), Workers: maps.Clone(l.Workers), Times: l.Times.clone()}
}

// Began returns the ledger after a role's workers have begun to run.
func (l Ledger) Began(name role.Name, now time.Time) Ledger {
	l = l.Clone()
	s := l.Roles[name]
	s.Running, s.EverBegan = now, true
	l.Roles[name] = s
	return l
}

// Spend returns the ledger after a decision about failures. A global restart forgives the roles'
// in-place counts and is counted itself if one of the failures that need it has no other budget; in
// place, each role that failed is charged, those that are only taken along are not. What an operator
// asked for, a taken port and what is ignored spend nothing (a taken port counts for back-off and progress), hardware and preemption spend budgets of
// their own while these last.
func (l Ledger) Spend(p Policy, d Decision, failures []role.Failure, standing map[role.Name]Standing, now time.Time) Ledger {
	before := l
	l = l.Clone()
	switch {
	case d.Action == role.Stop || d.Action == role.Ignore:
		return l
	case d.Alone:
		return l.spendAlone(p, failures[0], now)
	}
	for _, name := range d.Roles {
		l.forgiveWorkers(name)
	}
	paid := map[role.Name]bool{}
	spends := false
	for _, f := range failures {
		name := f.Life.Role
		v := p.judge(before, standing[name], f, companyOf(failures))
		if paid[name] || f.Cause == role.Operator || v.action == role.Ignore {
			continue
		}
		paid[name] = true
		s := l.failed(p, name, standing[name], now)
		switch {
		case f.Cause == role.PortTaken: // it waits like any other, so that nobody is restarted without a pause for ever
		case f.Cause == role.Hardware && s.Hardware < hardwareBudget:
			s.Hardware++
		case f.Cause == role.Preempted && s.Preempted < preemptedBudget:
			s.Preempted++
		default:
			spends = spends || v.action == role.Global
			if d.Action == role.InPlace {
				s.InPlace++
				rp := p.Roles[name]
				l.Times.Roles[name] = charged(l.Times.Roles[name], rp.Window, rp.EscalateAt, now)
			}
		}
		l.Roles[name] = s
	}
	if d.Action == role.Global {
		if spends {
			l.Global++
			l.Times.Global = charged(l.Times.Global, p.Roles[p.Lead].Window, p.MaxGlobal, now)
		}
		for name, s := range l.Roles {
			s.InPlace, s.Running = 0, time.Time{}
			delete(l.Times.Roles, name)
			l.Roles[name] = s
		}
	}
	return l
}

// failed returns what is known of a role after its life ended as it stood.
func (l Ledger) failed(p Policy, name role.Name, at Standing, now time.Time) Spent {
	s := l.Roles[name]
	if !s.Running.IsZero() && now.Sub(s.Running) >= p.Roles[name].BackOff.ResetAfter {
		s.InARow = 0
	}
	s.InARow++
	s.Running = time.Time{}
	s.Idle, s.BestStep = p.idle(s, at), max(s.BestStep, at.Step)
	return s
}

// Wait returns how long to wait before a role that has just been charged is begun again: nothing
// for the first restart in a row, then base, doubling up to max. jitter, from 0 to 1, takes up to a
// fifth off, so that many roles do not begin at one instant.
func (p Policy) Wait(l Ledger, name role.Name, jitter float64) time.Duration {
	return p.wait(name, l.Roles[name].InARow, jitter)
}

func (p Policy) wait(name role.Name, n int, jitter float64) time.Duration {
	b := p.Roles[name].BackOff
	if n < 2 || b.Base <= 0 {
		return 0
	}
	d := b.Base
	for range min(n-2, 62) {
		if d >= b.Max/2 {
			d = b.Max
			break
		}
		d *= 2
	}
	d = min(d, b.Max)
	return d - time.Duration(jitter*float64(d)/5)
}
