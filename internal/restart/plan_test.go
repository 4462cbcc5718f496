package restart_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// stages writes a plan as one line per stage: "stop_service critic advantages".
func stages(p restart.Plan) []string {
	var out []string
	for i, m := range p.Moves {
		if i == 0 || m.Stage != p.Moves[i-1].Stage {
			out = append(out, string(m.Verb))
		}
		out[len(out)-1] += " " + string(m.Role)
	}
	return out
}

// chain is a job in which data comes first, then critic and reward, then actor.
func chain() *job.Job {
	return &job.Job{Name: "chain", Lead: "actor", Roles: []job.Role{
		{Name: "actor", DependsOn: []role.Name{"critic"}}, {Name: "data"}, {Name: "critic", DependsOn: []role.Name{"data"}}, {Name: "reward"},
	}}
}

func policyOf(j *job.Job) restart.Policy { return restart.PolicyOf(j, restart.HealthCheckOn, 3, 0) }

// shows: R28 R29 R30
func TestARepairInPlaceGoesThroughItsMovesInOrder(t *testing.T) {
	plans := restart.InPlacePlans(policyOf(chain()), chain(), []role.Name{"reward"}, nil)
	if len(plans) != 1 {
		t.Fatalf("%d plans", len(plans))
	}
	want := []string{"fence reward", "read_step reward", "stop_heartbeats reward", "stop_service reward", "back_off reward", "place reward", "start reward", "write_step reward", "run reward"}
	if diff := cmp.Diff(want, stages(plans[0])); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
}

// shows: R56
func TestRolesThatHaveNothingToDoWithEachOtherGetPlansOfTheirOwn(t *testing.T) {
	j := chain()
	plans := restart.InPlacePlans(policyOf(j), j, []role.Name{"data", "critic", "reward"}, nil)
	var got [][]role.Name
	for _, p := range plans {
		got = append(got, p.Roles)
	}
	if diff := cmp.Diff([][]role.Name{{"data", "critic"}, {"reward"}}, got); diff != "" {
		t.Errorf("plans (-want +got):\n%s", diff)
	}
	j.Roles[3].Restart.Also = []role.Name{"data"}
	if plans := restart.InPlacePlans(policyOf(j), j, []role.Name{"data", "critic", "reward"}, nil); len(plans) != 1 {
		t.Errorf("%d plans for roles that take each other along", len(plans))
	}
}

func TestRolesThatHaveNotBegunAreBegunInTheirOrderWithTheRepair(t *testing.T) {
	plans := restart.InPlacePlans(policyOf(chain()), chain(), []role.Name{"data"}, []role.Name{"critic", "actor"})
	if len(plans) != 1 {
		t.Fatalf("%d plans", len(plans))
	}
	want := []string{"fence actor data critic", "read_step data", "stop_heartbeats data", "stop_service data", "back_off actor data critic", "place actor data critic",
		"start data", "write_step data", "run data", "await_ready data", "start critic", "write_step critic", "run critic", "await_ready critic", "start actor", "write_step actor", "run actor"}
	if diff := cmp.Diff(want, stages(plans[0])); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
}

// shows: R18 R19 R20 R21 R22 R23 R24
func TestAGlobalRestartEndsEverythingInReverseOrderAndBeginsItAgainInOrder(t *testing.T) {
	p := restart.GlobalPlan(chain(), []role.Name{"reward"})
	want := []string{"fence actor data critic reward", "read_step actor data critic reward", "stop_service actor", "stop_service critic", "stop_service data reward",
		"delete_service actor data critic reward", "release_placement actor data critic reward", "back_off actor data critic", "place actor data critic",
		"start data", "write_step data", "run data", "await_ready data", "start critic", "write_step critic", "run critic", "await_ready critic", "start actor", "write_step actor", "run actor"}
	if diff := cmp.Diff(want, stages(p)); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
	for _, m := range p.Moves {
		down := m.Verb == restart.StopService || m.Verb == restart.DeleteService || m.Verb == restart.Release
		if m.Teardown != down {
			t.Errorf("%s %s: the plan goes on if it fails: %v", m.Verb, m.Role, m.Teardown)
		}
	}
}

func TestAStopByHandKeepsServiceAndResources(t *testing.T) {
	want := []string{"read_step critic", "stop_heartbeats critic", "stop_service critic"}
	if diff := cmp.Diff(want, stages(restart.StopRolePlan("critic"))); diff != "" {
		t.Errorf("moves (-want +got):\n%s", diff)
	}
}

// order is where each verb on each role stands in a plan.
type order map[string]int

func orderOf(t *rapid.T, p restart.Plan) order {
	o := order{}
	for i, m := range p.Moves {
		key := fmt.Sprintf("%s %s", m.Verb, m.Role)
		if _, twice := o[key]; twice {
			t.Fatalf("%s is made twice", key)
		}
		if i > 0 && m.Stage != p.Moves[i-1].Stage && m.Stage != p.Moves[i-1].Stage+1 {
			t.Fatalf("stages do not follow each other: %d after %d", m.Stage, p.Moves[i-1].Stage)
		}
		if !slices.Contains(p.Roles, m.Role) {
			t.Fatalf("%s is moved and not named by the plan", m.Role)
		}
		o[key] = m.Stage
	}
	return o
}

// before checks that the first move, if the second is made, comes in an earlier stage.
func (o order) before(t *rapid.T, first, second string) {
	b, made := o[second]
	if !made {
		return
	}
	if a, ok := o[first]; !ok || a >= b {
		t.Fatalf("%q does not come before %q in %v", first, second, o)
	}
}

// ordered checks what is true of every plan. Roles of fresh have no old life.
func ordered(t *rapid.T, j *job.Job, p restart.Plan, fresh []role.Name) {
	o := orderOf(t, p)
	for _, n := range p.Roles {
		r, _ := j.Role(n)
		if !slices.Contains(fresh, n) {
			o.before(t, "fence "+string(n), "stop_service "+string(n))
			o.before(t, "stop_service "+string(n), "place "+string(n))
		}
		chain := strings.Fields("fence place start write_step run await_ready")
		for i := range chain[1:] {
			o.before(t, chain[i]+" "+string(n), chain[i+1]+" "+string(n))
		}
		for _, d := range r.DependsOn {
			if _, begun := o["start "+string(d)]; begun {
				o.before(t, "await_ready "+string(d), "start "+string(n))
			}
			if _, stopped := o["stop_service "+string(n)]; stopped {
				o.before(t, "stop_service "+string(n), "stop_service "+string(d))
			}
		}
	}
}

// shows: R18 R55 R56
func TestEveryPlanFencesThenStopsThenStartsInTheOrderOfTheJob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJob(t)
		p := policyOf(j)
		some := func(label string) []role.Name {
			return keep(p.Order, rapid.SliceOfDistinct(rapid.SampledFrom(p.Order), rapid.ID[role.Name]).Draw(t, label))
		}
		ordered(t, j, restart.BeginPlan(j, p.Order), p.Order)
		without := some("without")
		global := restart.GlobalPlan(j, without)
		ordered(t, j, global, nil)
		for _, n := range p.Order {
			if _, begun := orderOf(t, global)["run "+string(n)]; begun == slices.Contains(without, n) {
				t.Fatalf("%s begun again: %v", n, begun)
			}
		}
		ordered(t, j, restart.StopPlan(j), nil)

		roles := some("roles")
		if len(roles) == 0 {
			return
		}
		fresh := slices.DeleteFunc(some("fresh"), func(n role.Name) bool { return slices.Contains(roles, n) })
		var touched []role.Name
		for _, plan := range restart.InPlacePlans(p, j, roles, fresh) {
			ordered(t, j, plan, fresh)
			touched = append(touched, plan.Roles...)
		}
		want := keep(p.Order, append(slices.Clone(roles), fresh...))
		slices.Sort(touched)
		slices.Sort(want)
		if !slices.Equal(touched, want) {
			t.Fatalf("plans touch %v, want each of %v once", touched, want)
		}
	})
}
