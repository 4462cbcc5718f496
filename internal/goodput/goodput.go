// Package goodput adds up how much of a job's time went into training, and where the rest went.
//
// A role is productive from the moment that its life gets on until something goes wrong with it: from
// its first step if it says steps, else from the moment that all its workers are ready, to the first
// sign of its failure (for silence, when that began), or to its planned stop. The job is productive
// while every role is that has not finished. The rest is start until the job was productive for the
// first time, and lost after that, counted for the cause of the failure that made it so. A role whose
// workers stand alone goes on while single ones of them are restarted.
//
// The package folds events and reads no clock. Account is a hook of event.Log.
package goodput

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// Report is what the time went into, as of one moment.
type Report struct {
	Since      time.Time
	Total      time.Duration
	Productive time.Duration
	Start      time.Duration // before the job was productive for the first time
	Lost       []Loss        // by cause, most first
	Roles      []RoleReport  // in the order in which they began
}

// Ratio is the productive part of the total, from 0 to 1; 0 before any time has passed.
func (r Report) Ratio() float64 {
	if r.Total <= 0 {
		return 0
	}
	return float64(r.Productive) / float64(r.Total)
}

// Loss is the time that the failures of one cause have cost the job.
type Loss struct {
	Cause     role.Cause // empty for planned stops
	Incidents int
	Time      time.Duration
}

// RoleReport is one role's part.
type RoleReport struct {
	Name       role.Name
	Productive time.Duration
	Lives      int
	Redone     int64 // steps that were done again because a life began below where the one before was
}

// account is what is known of one role.
type account struct {
	name       role.Name
	up         bool
	finished   bool
	since      time.Time // of up or down
	productive time.Duration
	speaks     bool // has said a step in some life
	lives      int
	step       int64 // at the end of the life before; -1: not known
	redone     int64

	alone bool       // its workers stand alone
	cause role.Cause // of the newest failure of one of them
}

// Account adds events up. Its methods may be called from any goroutine.
type Account struct {
	mu    sync.Mutex
	began time.Time
	ended time.Time
	order []role.Name
	roles map[role.Name]*account

	whole      bool      // every unfinished role is up
	changed    time.Time // of whole
	productive time.Duration
	start      time.Duration
	everWhole  bool
	lost       map[role.Cause]*Loss
	blame      role.Cause // of not being whole
}

// New returns an account for the roles of a job, that began at the time given. The workers of those of
// alone are restarted one by one.
func New(began time.Time, roles []role.Name, alone ...role.Name) *Account {
	a := &Account{began: began, changed: began, order: slices.Clone(roles), roles: map[role.Name]*account{}, lost: map[role.Cause]*Loss{}}
	for _, n := range roles {
		a.roles[n] = &account{name: n, since: began, step: -1, alone: slices.Contains(alone, n)}
	}
	return a
}

// Observe takes in what happened.
func (a *Account) Observe(e event.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.roles[e.Role]
	switch {
	case e.Kind == event.JobEnded:
		a.ended = e.At
		a.settle(e.At)
	case r == nil:
	case e.Kind == event.Failure:
		if e.Cause != role.Operator {
			a.loss(e.Cause).Incidents++
		}
		if r.alone && e.Rank != role.NoRank {
			r.cause = e.Cause
			return
		}
		a.down(r, e.At.Add(-e.Took), e.Cause)
	case e.Kind == event.Moved && e.Rank != role.NoRank: // the role goes on
	case e.Kind == event.Moved && (e.Verb == "stop_heartbeats" || e.Verb == "stop_service"):
		a.down(r, e.At.Add(-e.Took), cmp.Or(r.cause, a.blame))
	case e.Kind == event.Decided && e.Rank != role.NoRank:
		r.cause = ""
	case e.Kind == event.Moved && e.Verb == "read_step" && e.Step != nil:
		r.step = *e.Step
	case e.Kind == event.Moved && e.Verb == "run" && e.Error == "":
		r.lives++
		r.finished, r.cause = false, ""
	case e.Kind == event.FirstStep:
		r.speaks = true
		if e.Step != nil && r.step >= *e.Step && e.Attempt <= 1 {
			r.redone += r.step - *e.Step + 1
		}
		a.raise(r, e.At)
	case e.Kind == event.RoleReady && !r.speaks:
		a.raise(r, e.At)
	case e.Kind == event.RoleFinished:
		a.down(r, e.At, "")
		r.finished = true
		a.settle(e.At)
	}
}

// raise marks a role productive.
func (a *Account) raise(r *account, at time.Time) {
	if !r.up {
		r.up, r.since = true, at
		a.settle(at)
	}
}

// down marks a role not productive, from a time that may lie back.
func (a *Account) down(r *account, at time.Time, cause role.Cause) {
	if !r.up {
		return
	}
	if at.Before(r.since) {
		at = r.since
	}
	r.productive += at.Sub(r.since)
	r.up, r.since = false, at
	a.settleFrom(at, cause)
}

// settle closes the span up to now and opens the next.
func (a *Account) settle(at time.Time) { a.settleFrom(at, a.blame) }

func (a *Account) settleFrom(at time.Time, cause role.Cause) {
	whole := a.ended.IsZero()
	for _, r := range a.roles {
		whole = whole && (r.up || r.finished)
	}
	if whole == a.whole && a.ended.IsZero() {
		return
	}
	if at.Before(a.changed) {
		at = a.changed
	}
	a.close(at)
	a.whole, a.changed, a.blame = whole, at, cause
	a.everWhole = a.everWhole || whole
}

// close adds the open span, up to at, to where it belongs.
func (a *Account) close(at time.Time) {
	span := at.Sub(a.changed)
	switch {
	case a.whole:
		a.productive += span
	case !a.everWhole:
		a.start += span
	default:
		a.loss(a.blame).Time += span
	}
}

func (a *Account) loss(cause role.Cause) *Loss {
	l, ok := a.lost[cause]
	if !ok {
		l = &Loss{Cause: cause}
		a.lost[cause] = l
	}
	return l
}

// Report returns what has been added up until now; after the job's end, until that.
func (a *Account) Report(now time.Time) Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended.IsZero() {
		now = a.ended
	}
	r := Report{Since: a.began, Total: max(0, now.Sub(a.began)), Productive: a.productive, Start: a.start}
	open := time.Duration(0)
	if a.ended.IsZero() {
		open = max(0, now.Sub(a.changed))
	}
	blamed := false
	for _, l := range a.lost {
		c := *l
		if !a.whole && a.everWhole && c.Cause == a.blame {
			c.Time += open
			blamed = true
		}
		r.Lost = append(r.Lost, c)
	}
	switch {
	case a.whole:
		r.Productive += open
	case !a.everWhole:
		r.Start += open
	case !blamed && open > 0:
		r.Lost = append(r.Lost, Loss{Cause: a.blame, Time: open})
	}
	slices.SortFunc(r.Lost, func(x, y Loss) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(x.Cause, y.Cause))
	})
	for _, n := range a.order {
		at := a.roles[n]
		p := at.productive
		if at.up {
			p += max(0, now.Sub(at.since))
		}
		r.Roles = append(r.Roles, RoleReport{Name: n, Productive: p, Lives: at.lives, Redone: at.redone})
	}
	return r
}
