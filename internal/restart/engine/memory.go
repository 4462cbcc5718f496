package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"vigil/internal/restart"
	"vigil/internal/role"
)

// Memory keeps what a later controller of the same job must know. What is decided is durable before it
// is acted on: a plan's moves wait for Keep.
type Memory interface {
	// Keep takes an update, in the order of the calls, and returns what waits until it is durable, or
	// until its ctx ends. It goes on trying meanwhile, and afterwards.
	Keep(u Update) func(ctx context.Context) error
	// Note makes an update durable soon, in the order of the calls, and does not wait.
	Note(u Update)
	// Trouble says what keeps updates from being made durable, and whether anything does.
	Trouble() (string, bool)
}

// Update is a change of what is remembered. What is zero in it has not changed.
type Update struct {
	Ledger    *restart.Ledger
	Incidents int // so many there were
	Roles     map[role.Name]RoleMemory
	Began     *PlanMemory // or one of which there is more to remember
	Ended     int         // id of a plan that has ended, or that Began goes on with
}

// RoleMemory is what is remembered of a role.
type RoleMemory struct {
	Incarnation int         `json:"incarnation"`        // the last that was fenced
	Attempts    map[int]int `json:"attempts,omitempty"` // of workers that were restarted alone, by rank
	Begun       bool        `json:"begun,omitempty"`    // its workers were told to run
	ByHand      bool        `json:"by_hand,omitempty"`  // stopped by an operator
	Finished    bool        `json:"finished,omitempty"` // ended well
	Step        int64       `json:"step"`               // that its next life begins from
	Assigned    bool        `json:"assigned,omitempty"` // whatever is said meanwhile, and no life has begun from it
	Had         []int       `json:"had,omitempty"`      // ranks that were restarted alone and begun from it
	SetAt       time.Time   `json:"set_at,omitzero"`    // when an operator has set a step last
	SetNumber   uint64      `json:"set_number,omitempty"`
}

// PlanMemory is what is remembered of a plan until it has ended.
type PlanMemory struct {
	ID       int          `json:"id"`
	Action   role.Action  `json:"action"`
	Roles    []role.Name  `json:"roles"`
	Alone    bool         `json:"alone,omitempty"` // of its one role only the worker Rank
	Rank     int          `json:"rank,omitempty"`
	Incident string       `json:"incident,omitempty"`
	Rule     restart.Rule `json:"rule,omitempty"`
	Why      string       `json:"why,omitempty"`
	Cause    role.Cause   `json:"cause,omitempty"`
	Exit     int          `json:"exit,omitempty"` // of the job, when the action is stop
	ByHand   bool         `json:"by_hand,omitempty"`
	Resume   *int64       `json:"resume,omitempty"` // of a global plan: the step that its roles are begun from
	Failed   []role.Name  `json:"failed,omitempty"` // of its roles: they wait before they are begun again
	// Until is when each wait ends that has begun.
	Until map[role.Name]time.Time `json:"until,omitempty"`
}

// Remembered is everything that an earlier controller of the job has kept.
type Remembered struct {
	Ledger    restart.Ledger
	Incidents int
	Roles     map[role.Name]RoleMemory
	Plans     []PlanMemory // that had not ended, in the order in which they began
	Failures  []role.Failure
	Rebooted  bool // the machine has booted since: nothing of the run lives on it
}

// noMemory is the memory of a job that nobody takes over.
type noMemory struct{}

func (noMemory) Keep(Update) func(context.Context) error {
	return func(context.Context) error { return nil }
}
func (noMemory) Note(Update)             {}
func (noMemory) Trouble() (string, bool) { return "", false }

// remember returns what there is to remember of the roles.
func (e *Engine) remember(roles ...role.Name) map[role.Name]RoleMemory {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[role.Name]RoleMemory{}
	for _, n := range roles {
		st := e.roles[n]
		out[n] = RoleMemory{Incarnation: st.incarnation, Attempts: maps.Clone(st.attempts), Begun: st.begun, ByHand: st.byHand,
			Finished: st.state == role.Finished, Step: st.step, Assigned: st.assigned, Had: slices.Sorted(maps.Keys(st.had)), SetAt: st.setAt, SetNumber: st.setNumber}
	}
	return out
}

// note remembers the roles as they stand.
func (e *Engine) note(roles ...role.Name) { e.Memory.Note(Update{Roles: e.remember(roles...)}) }

// planBegins returns what must be durable before a plan's first move.
func (e *Engine) planBegins(r *run) Update {
	e.lastPlan++
	r.id = e.lastPlan
	u := Update{Ledger: e.unkept(), Incidents: e.incidents, Roles: e.remember(r.plan.Roles...), Began: e.planMemory(r), Ended: r.why.replaces}
	r.why.replaces = 0 // the first plan that goes on with an earlier one stands for it
	return u
}

// endMemoryLimit is how long the end of a job waits for its memory.
const endMemoryLimit = 2 * time.Second

// keepPatience is after how long a plan that waits for its memory says so.
const keepPatience = time.Second

// keep waits until the plan's begin is durable. No decision is carried out that could not be recorded, but for the
// end of the job.
func (e *Engine) keep(r *run, kept func(context.Context) error) error {
	ctx := r.boundary
	if r.plan.Action == role.Stop {
		limited, cancel := context.WithTimeout(ctx, endMemoryLimit)
		defer cancel()
		if err := kept(limited); err != nil {
			e.Log.Error("the end of the job is not recorded", "error", err)
		}
		return nil
	}
	waiting := time.AfterFunc(keepPatience, func() {
		if trouble, is := e.Memory.Trouble(); is {
			for _, n := range r.plan.Roles {
				e.setWhy(n, "nothing is done before it is recorded: "+trouble)
			}
		}
	})
	defer waiting.Stop()
	if err := kept(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("record the plan: %w", err)
	}
	return nil
}

// planEnded remembers how a plan has left its roles. One that ends the job for good is remembered until the
// whole run is forgotten: whoever comes before that ends the job too.
func (e *Engine) planEnded(r *run) {
	u := Update{Incidents: e.incidents, Roles: e.remember(r.plan.Roles...)}
	if m := e.planMemory(r); !m.endsJob() {
		u.Ended = r.id
	}
	if e.next == nil { // else the ledger has the cost of a plan that is not recorded yet
		u.Ledger = e.unkept()
	}
	e.Memory.Note(u)
}

// endsJob says whether the plan ends the job for good: one that was stopped by a signal, or for lack of something, goes on.
func (p *PlanMemory) endsJob() bool {
	return p.Action == role.Stop && !p.ByHand && p.Exit < 128 && p.Exit != restart.ExitLater
}

// planMemory is what is remembered of a plan that is under way.
func (e *Engine) planMemory(r *run) *PlanMemory {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &PlanMemory{ID: r.id, Action: r.plan.Action, Roles: slices.Clone(r.plan.Roles), Alone: r.plan.Alone, Rank: r.plan.Rank,
		Incident: r.why.incident, Rule: r.why.Rule, Why: r.why.Why, Cause: r.why.cause(), Exit: r.why.Exit, ByHand: r.done != nil, Resume: r.resume,
		Failed: slices.Sorted(maps.Keys(r.failed)), Until: maps.Clone(r.until)}
}
