package restart

import (
	"maps"
	"slices"

	"vigil/internal/job"
	"vigil/internal/role"
)

// Verb is what a move does.
type Verb string

// The verbs, in the order of a repair in place.
const (
	Fence         Verb = "fence"             // raise the incarnation: word of the old life is dropped
	BackOff       Verb = "back_off"          // wait before a role that keeps failing is begun again
	ReadStep      Verb = "read_step"         // ask the role's step, else take its last heartbeat's
	StopHeartbeat Verb = "stop_heartbeats"   // a planned stop is not a failure
	StopService   Verb = "stop_service"      // end the workers, prove that nothing is left
	DeleteService Verb = "delete_service"    // end the service too, unless it can be kept
	Release       Verb = "release_placement" // give the resources back
	Place         Verb = "place"             // keep or rebuild the placement group
	Start         Verb = "start"             // an idle service stands
	WriteStep     Verb = "write_step"        // the idle service is given the step and confirms it
	Run           Verb = "run"               // the workers run
	AwaitReady    Verb = "await_ready"       // others depend on it
)

// Move is one verb on one role. Moves of one stage may run side by side; a stage begins when the one
// before has ended.
type Move struct {
	Stage int
	Verb  Verb
	Role  role.Name
	// Teardown says that the plan goes on if the move fails.
	Teardown bool
}

// Plan is a list of moves.
type Plan struct {
	Action role.Action // InPlace, Global, Stop, or Begin
	Roles  []role.Name // every role it touches
	Moves  []Move

	Alone bool // its moves are about the worker Rank of its one role
	Rank  int  // where Alone
}

// Begin is the action of a plan that starts what has never run.
const Begin role.Action = "begin"

type builder struct {
	plan  Plan
	stage int
}

// all adds one stage with the verb on each role.
func (b *builder) all(verb Verb, roles []role.Name) {
	b.add(false, verb, roles)
}

// teardown adds one stage whose failures do not end the plan.
func (b *builder) teardown(verb Verb, roles []role.Name) {
	b.add(true, verb, roles)
}

func (b *builder) add(teardown bool, verb Verb, roles []role.Name) {
	for _, r := range roles {
		b.plan.Moves = append(b.plan.Moves, Move{Stage: b.stage, Verb: verb, Role: r, Teardown: teardown})
	}
	if len(roles) > 0 {
		b.stage++
	}
}

// begin adds the moves that bring the roles up, level by level; a role that another one of the set
// depends on is waited for.
func (b *builder) begin(j *job.Job, order depth, roles []role.Name) {
	for _, level := range order.levels(roles) {
		b.all(Start, level)
		b.all(WriteStep, level)
		b.all(Run, level)
		b.all(AwaitReady, needed(j, level, roles))
	}
}

// BeginPlan starts the roles for the first time.
func BeginPlan(j *job.Job, roles []role.Name) Plan {
	b := builder{plan: Plan{Action: Begin, Roles: roles}}
	b.all(Fence, roles)
	b.all(Place, roles)
	b.begin(j, depths(j), roles)
	return b.plan
}

// InPlacePlans repairs the roles where they are, and begins those that have not begun yet because an
// earlier plan ended before. Roles that have nothing to do with each other get plans of their own,
// which run side by side.
func InPlacePlans(p Policy, j *job.Job, roles, unbegun []role.Name) []Plan {
	var plans []Plan
	order, failed := depths(j), setOf(roles)
	for _, group := range components(p, j, roles, unbegun) {
		mend := in(group, failed)
		b := builder{plan: Plan{Action: role.InPlace, Roles: group}}
		b.all(Fence, group)
		b.all(ReadStep, mend)
		b.all(StopHeartbeat, mend)
		for _, level := range slices.Backward(order.levels(mend)) {
			b.all(StopService, level)
		}
		b.all(BackOff, group)
		b.all(Place, group)
		b.begin(j, order, group)
		plans = append(plans, b.plan)
	}
	return plans
}

// GlobalPlan ends every role and begins all but those of without again.
func GlobalPlan(j *job.Job, without []role.Name) Plan {
	all := j.Names()
	again := slices.DeleteFunc(slices.Clone(all), func(n role.Name) bool { return slices.Contains(without, n) })
	b := builder{plan: Plan{Action: role.Global, Roles: all}}
	b.all(Fence, all)
	b.all(ReadStep, all)
	b.tearDown(j, all)
	b.all(BackOff, again)
	b.all(Place, again)
	b.begin(j, depths(j), again)
	return b.plan
}

// LatePlan begins roles that an earlier plan has ended and could not place with the others.
func LatePlan(j *job.Job, roles []role.Name) Plan {
	b := builder{plan: Plan{Action: role.InPlace, Roles: keep(j.Names(), roles)}}
	b.all(Place, b.plan.Roles)
	b.begin(j, depths(j), b.plan.Roles)
	return b.plan
}

// StopPlan ends every role, in reverse order of start, side by side within a level.
func StopPlan(j *job.Job) Plan {
	all := j.Names()
	b := builder{plan: Plan{Action: role.Stop, Roles: all}}
	b.all(Fence, all)
	b.tearDown(j, all)
	return b.plan
}

// StopRolePlan ends the workers of one role and keeps its service and resources.
func StopRolePlan(name role.Name) Plan {
	b := builder{plan: Plan{Action: role.Stop, Roles: []role.Name{name}}}
	b.all(ReadStep, b.plan.Roles)
	b.all(StopHeartbeat, b.plan.Roles)
	b.all(StopService, b.plan.Roles)
	return b.plan
}

func (b *builder) tearDown(j *job.Job, all []role.Name) {
	for _, level := range slices.Backward(depths(j).levels(all)) {
		b.teardown(StopService, level)
	}
	b.teardown(DeleteService, all)
	b.teardown(Release, all)
}

// depth is the level of each role in the order of start (job.Levels).
type depth map[role.Name]int

func depths(j *job.Job) depth {
	d := depth{}
	for i, level := range j.Levels() {
		for _, n := range level {
			d[n] = i
		}
	}
	return d
}

// levels returns the job's levels with only the roles given, which are in the order of the job.
func (d depth) levels(roles []role.Name) [][]role.Name {
	at := map[int][]role.Name{}
	for _, n := range roles {
		at[d[n]] = append(at[d[n]], n)
	}
	out := make([][]role.Name, 0, len(at))
	for _, i := range slices.Sorted(maps.Keys(at)) {
		out = append(out, at[i])
	}
	return out
}

// needed returns those of level that another of roles depends on.
func needed(j *job.Job, level, roles []role.Name) []role.Name {
	dependsOn := map[role.Name]bool{}
	for _, n := range roles {
		r, _ := j.Role(n)
		for _, d := range r.DependsOn {
			dependsOn[d] = true
		}
	}
	return in(level, dependsOn)
}

// keep returns those of list that are in set, in the order of list.
func keep(list, set []role.Name) []role.Name {
	if len(set) == 0 {
		return nil
	}
	return in(list, setOf(set))
}

func setOf(names []role.Name) map[role.Name]bool {
	set := make(map[role.Name]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return set
}

func in(list []role.Name, set map[role.Name]bool) []role.Name {
	var out []role.Name
	for _, n := range list {
		if set[n] {
			out = append(out, n)
		}
	}
	return out
}

// components splits the roles into sets that do not take each other along and do not depend on each
// other. Roles that have not begun are all in the first, since their order counts.
func components(p Policy, j *job.Job, roles, unbegun []role.Name) [][]role.Name {
	if len(unbegun) > 0 {
		return [][]role.Name{keep(j.Names(), append(slices.Clone(roles), unbegun...))}
	}
	group := map[role.Name]role.Name{}
	var root func(n role.Name) role.Name
	root = func(n role.Name) role.Name {
		if group[n] == n {
			return n
		}
		return root(group[n])
	}
	for _, n := range roles {
		group[n] = n
	}
	join := func(n role.Name, others []role.Name) {
		for _, o := range others {
			if _, ok := group[o]; ok {
				group[root(o)] = root(n)
			}
		}
	}
	for _, n := range roles {
		r, _ := j.Role(n)
		join(n, r.DependsOn)
		join(n, p.Roles[n].Also)
	}
	var out [][]role.Name
	index := map[role.Name]int{}
	for _, n := range keep(j.Names(), roles) {
		i, ok := index[root(n)]
		if !ok {
			i = len(out)
			index[root(n)] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], n)
	}
	return out
}
