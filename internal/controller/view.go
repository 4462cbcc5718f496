package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/metrics"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// view answers /api/v1/ and the probes.
type view struct{ *Controller }

// asked records what somebody asked for, and names the operation.
func (c *Controller) asked(name role.Name, what string) string {
	c.mu.Lock()
	c.ops++
	id := "op-" + strconv.Itoa(c.ops)
	c.mu.Unlock()
	e := event.New(time.Now(), event.Requested)
	e.Role, e.Detail = name, id+": "+what
	c.events.Record(e)
	return id
}

// Job returns the job as a whole.
func (v view) Job() httpapi.Job {
	c := v.Controller
	lead, _ := c.store.Record(c.opts.Job.Lead)
	j := httpapi.Job{
		Name: c.opts.Job.Name, UID: c.uid, LeadRole: c.opts.Job.Lead, CurrentStep: lead.CurrentStep, HealthCheck: c.opts.UseHealthCheck,
		GlobalRestarts: c.engine.Ledger().Global, MaxGlobalRestarts: c.opts.MaxGlobalRestart, Started: c.began, PID: os.Getpid(), Epoch: v.ground.epoch,
		Version: c.opts.Version, Obligations: []string{},
	}
	for _, o := range c.crew.launcher.Obligations() {
		j.Obligations = append(j.Obligations, o.String())
	}
	refused, _ := c.ground.journal.Refused()
	j.Obligations = append(j.Obligations, refused...)
	j.State, j.Why = v.state()
	if trouble, is := c.ground.journal.Trouble(); is {
		j.Why = strings.TrimPrefix(j.Why+"; "+trouble, "; ")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outcome != nil {
		code := c.outcome.Exit
		j.Ended, j.ExitCode, j.Why = &c.ended, &code, c.outcome.Why
	}
	return j
}

// state says what the job is doing, and why where that is not plain.
func (v view) state() (state, why string) {
	v.mu.Lock()
	state = v.Controller.state
	v.mu.Unlock()
	if state != "" {
		return state, ""
	}
	state = "running"
	for _, n := range v.opts.Job.Names() {
		switch st := v.engine.Status(n); st.State {
		case role.Repairing, role.BackOff:
			return "repairing", string(n) + ": " + st.Why
		case role.Pending, role.Starting:
			state, why = "starting", string(n)+": "+st.Why
		default: // does not change what the job does
		}
	}
	return state, why
}

// Roles returns all roles.
func (v view) Roles() []httpapi.Role {
	recs, _ := v.store.Records()
	out := make([]httpapi.Role, len(recs))
	for i, rec := range recs {
		out[i] = v.role(rec)
	}
	return out
}

// Role returns one role.
func (v view) Role(name role.Name) (httpapi.Role, bool) {
	rec, err := v.store.Record(name)
	if err != nil {
		return httpapi.Role{}, false
	}
	return v.role(rec), true
}

func (v view) role(rec health.Record) httpapi.Role {
	r := httpapi.Role{
		Name: rec.Name, Healthy: rec.Healthy, LastHeartbeat: rec.LastHeartbeat, CurrentStep: rec.CurrentStep, GivenStep: rec.Given, StepOff: rec.Off, TaskRunning: rec.TaskRunning,
		RestartCount: rec.RestartCount, Incarnation: rec.Incarnation, Watched: rec.Watched, Workers: []httpapi.Worker{},
	}
	if rec.Error != "" {
		r.Error = &rec.Error
	}
	r.State, r.Why = v.stateOf(rec)
	for _, k := range rec.Ranks {
		w := httpapi.Worker{Rank: k.Rank, PID: k.PID, Life: k.Life.String(), State: stateShown(rec, k)}
		if k.Spoken {
			step, age := k.Step, k.Age.Seconds()
			w.Step, w.HeartbeatAgeSeconds = &step, &age
		}
		w.Phases = phases(k.Phases)
		r.Workers = append(r.Workers, w)
	}
	return r
}

// phases returns the open phases of a worker, outermost first.
func phases(open []health.OpenPhase) []httpapi.Phase {
	out := []httpapi.Phase{}
	for _, o := range open {
		p := httpapi.Phase{Name: o.Name, AgeSeconds: o.Age.Seconds()}
		if o.Limit > 0 {
			limit := o.Limit.Seconds()
			p.LimitSeconds = &limit
		}
		out = append(out, p)
	}
	return out
}

// stateOf joins what the engine does with a role and what health knows of it. The sentence is empty
// only for a role that is plainly well.
func (v view) stateOf(rec health.Record) (role.State, string) {
	st := v.engine.Status(rec.Name)
	switch {
	case st.State == role.Running && !rec.Healthy:
		return st.State, rec.Error
	case st.State == role.Running && rec.Ready && rec.Available < len(rec.Ranks) && v.canDoWithout(rec):
		return st.State, fmt.Sprintf("%d of its %d workers are available, others wait to be admitted or are paused", rec.Available, len(rec.Ranks))
	case st.State == role.Running && !rec.Ready && !rec.Finished && v.canDoWithout(rec):
		return st.State, cmp.Or(st.Why, fmt.Sprintf("%d of its %d workers are available", rec.Available, len(rec.Ranks)))
	case st.State == role.Running && !rec.Ready && !rec.Finished:
		return role.Starting, "not all its workers are ready" + unready(rec)
	case st.State == role.Running && rec.Paused:
		return st.State, "watching is paused"
	case st.State == role.Running && rec.Doubt != "":
		return st.State, rec.Doubt
	case st.State == role.Running && rec.Off != "":
		return st.State, "it began off its step: " + rec.Off
	case st.State == role.Running && !rec.Spoken:
		return st.State, "watched by " + rec.Watched
	default:
		return st.State, st.Why
	}
}

// unready says what the ready probe of the first rank that is not ready met; empty where that is not known.
func unready(rec health.Record) string {
	for _, k := range rec.Ranks {
		if k.State == role.WorkerStarting && k.Unready != "" {
			return fmt.Sprintf(": rank %d: %s", k.Rank, k.Unready)
		}
	}
	return ""
}

// stateShown is a worker's state as its peers see it.
func stateShown(rec health.Record, k health.RankRecord) role.WorkerState {
	if (rec.Paused || k.Paused) && k.State == role.WorkerReady {
		return role.WorkerPaused
	}
	return k.State
}

// canDoWithout reports whether the role's workers are restarted alone and enough of them are available.
func (v view) canDoWithout(rec health.Record) bool {
	r, ok := v.opts.Job.Role(rec.Name)
	return ok && r.Restart.Unit == job.UnitWorker && rec.Available >= max(r.Restart.MinAvailable, 1)
}

// Workers returns where the role's workers are.
func (v view) Workers(name role.Name) ([]httpapi.Peer, bool) {
	if _, ok := v.opts.Job.Role(name); !ok {
		return nil, false
	}
	return v.crew.peersOf(name), true
}

// Incidents returns what is remembered, newest first.
func (v view) Incidents() []httpapi.Incident {
	out := []httpapi.Incident{}
	for _, i := range v.history.Incidents() {
		shown := incident(i)
		shown.Collective = v.kept.said.get(i.ID)
		out = append(out, shown)
	}
	return append(out, v.kept.before()...)
}

// Incident returns one of them.
func (v view) Incident(id string) (httpapi.Incident, bool) {
	return v.kept.one(id)
}

func incident(i event.Incident) httpapi.Incident {
	at := func(t time.Time) *time.Time {
		if t.IsZero() {
			return nil
		}
		return &t
	}
	return httpapi.Incident{
		ID: i.ID, Role: i.Role, Rank: i.Rank, Incarnation: i.Incarnation, Cause: i.Cause, Detail: i.Detail, Log: i.Log, Action: i.Action, Rule: i.Rule, Why: i.Why,
		Roles: i.Roles, Open: i.Open(), Detected: i.Detected, Decided: at(i.Decided), Stopped: at(i.Stopped), Clean: at(i.Clean), Started: at(i.Started),
		FirstStep: at(i.FirstStep), Held: i.Held, Error: i.Error, Events: i.Events,
	}
}

// Since returns the events after a cursor.
func (v view) Since(cursor uint64) ([]event.Event, <-chan struct{}) { return v.events.Since(cursor) }

// PlacementGroups returns every group.
func (v view) PlacementGroups() []httpapi.PlacementGroup {
	out := []httpapi.PlacementGroup{}
	for _, g := range v.places.groups() {
		p := httpapi.PlacementGroup{Name: g.Name, Roles: g.Roles, Strategy: string(g.Strategy), State: string(g.State), Why: g.Why, Live: g.Live, Needed: g.Needed, Bundles: []httpapi.Bundle{}}
		for _, b := range g.Bundles {
			p.Bundles = append(p.Bundles, httpapi.Bundle{Rank: b.Rank, Node: b.Node, Devices: b.Devices, CPUs: b.CPUs, Memory: b.Memory, Well: b.Node != ""})
		}
		out = append(out, p)
	}
	return out
}

// Goodput returns what the time went into so far.
func (v view) Goodput() httpapi.Goodput {
	r := v.account.Report(time.Now())
	out := httpapi.Goodput{Since: r.Since, Seconds: r.Total.Seconds(), ProductiveSeconds: r.Productive.Seconds(), StartSeconds: r.Start.Seconds(), Ratio: r.Ratio(),
		Lost: []httpapi.Lost{}, Roles: []httpapi.RoleGoodput{}}
	for _, l := range r.Lost {
		out.Lost = append(out.Lost, httpapi.Lost{Cause: l.Cause, Incidents: l.Incidents, Seconds: l.Time.Seconds()})
	}
	for _, n := range r.Roles {
		out.Roles = append(out.Roles, httpapi.RoleGoodput{Name: n.Name, ProductiveSeconds: n.Productive.Seconds(), Lives: n.Lives, StepsRedone: n.Redone})
	}
	return out
}

// Policy returns what is in force.
func (v view) Policy() httpapi.Policy { return PolicyOf(&v.opts) }

// Restart begins the restart of a role.
func (v view) Restart(_ context.Context, name role.Name) (string, error) {
	if err := v.engine.Restart(name); err != nil {
		return "", fmt.Errorf("%w: %w", httpapi.ErrConflict, err)
	}
	return v.asked(name, "restart"), nil
}

// StopJob begins the orderly stop of the job; it ends with exit 0, since that is what was asked for.
func (v view) StopJob(context.Context) (string, error) {
	v.mu.Lock()
	if v.Controller.state == "" {
		v.Controller.state = "stopping"
	}
	v.mu.Unlock()
	id := v.asked("", "stop the job")
	v.engine.StopJob("stopped by an operator", 0)
	return id, nil
}

// Healthy says whether the checker keeps up.
func (v view) Healthy() error {
	if late := v.checker.Lateness(); late > 30*time.Second {
		return fmt.Errorf("the health checker is %s late", late.Round(time.Second))
	}
	return nil
}

// Ready says whether every role has begun.
func (v view) Ready() error {
	for _, n := range v.opts.Job.Names() {
		st := v.engine.Status(n)
		if st.State == role.Pending || st.State == role.Starting && !st.Begun {
			return errors.New(string(n) + " has not begun")
		}
	}
	return nil
}

// source is the controller as the metrics see it.
type source struct{ *Controller }

// Snapshot returns how things stand.
func (s source) Snapshot() metrics.Snapshot {
	recs, _ := s.store.Records()
	out := metrics.Snapshot{
		GlobalRestarts: s.engine.Ledger().Global, MaxGlobalRestarts: s.opts.MaxGlobalRestart,
		CheckerLateness: s.checker.Lateness(), LongestAct: s.engine.LongestAct(), Obligations: len(s.crew.launcher.Obligations()),
	}
	_, out.JournalTrouble = s.ground.journal.Trouble()
	refused, writes := s.ground.journal.Refused()
	out.Obligations += len(refused)
	out.JournalRefused = writes
	trouble, restored := s.footing.look()
	out.Folders = append(out.Folders, metrics.Folder{Name: "runtime", Trouble: trouble, Restored: restored})
	trouble, restored = s.ground.folder.look()
	out.Folders = append(out.Folders, metrics.Folder{Name: "state", Trouble: trouble, Restored: restored + s.ground.journal.Restored()})
	for _, rec := range recs {
		r := metrics.Role{Name: rec.Name, Healthy: rec.Healthy, Step: rec.CurrentStep, HeartbeatAge: time.Since(rec.LastHeartbeat), Incarnation: rec.Incarnation}
		for _, k := range rec.Ranks {
			w := metrics.Worker{Rank: k.Rank, State: k.State}
			if k.Spoken {
				step, age := k.Step, k.Age
				w.Step, w.HeartbeatAge = &step, &age
			}
			r.Workers = append(r.Workers, w)
		}
		out.Roles = append(out.Roles, r)
	}
	for _, g := range s.places.groups() {
		for _, n := range g.Roles {
			out.Bundles = append(out.Bundles, metrics.Bundles{Role: n, State: string(g.State), Count: g.Needed})
		}
	}
	return out
}
