package restart_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// spending are the causes that have a budget which runs out.
var spending = []role.Cause{role.Reported, role.Exited, role.Silent, role.Unreachable, role.NoStart, role.NotReady, role.Stuck, role.Hardware, role.Preempted, role.Unrepaired}

// drawJob draws roles that depend only on earlier ones, in any order of the file.
func drawJob(t *rapid.T) *job.Job {
	j := &job.Job{Name: "law", Lead: "r0"}
	n := rapid.IntRange(1, 6).Draw(t, "roles")
	for i := range n {
		r := job.Role{Name: role.Name(fmt.Sprintf("r%d", i)), Workers: rapid.IntRange(1, 3).Draw(t, "workers"), State: rapid.SampledFrom([]job.StateKind{job.Checkpointed, job.Stateless}).Draw(t, "state")}
		r.Restart = job.Restart{
			OnFailure:  rapid.SampledFrom([]role.Action{role.InPlace, role.InPlace, role.Global, role.Stop}).Draw(t, "on_failure"),
			EscalateAt: rapid.IntRange(1, 4).Draw(t, "escalate_at"),
			MaxRewind:  rapid.Int64Range(-1, 20).Draw(t, "max_rewind"),
			BackOff:    job.BackOff{Base: time.Second, Max: time.Minute, ResetAfter: time.Minute},
		}
		r.Restart.Rules = rapid.SliceOfN(rapid.Custom(drawRule), 0, 3).Draw(t, "rules")
		if rapid.Bool().Draw(t, "alone") {
			r.Restart.Unit, r.Restart.MinAvailable = job.UnitWorker, rapid.IntRange(0, r.Workers-1).Draw(t, "min_available")
		}
		for k := range n {
			name := role.Name(fmt.Sprintf("r%d", k))
			if k < i && rapid.IntRange(0, 2).Draw(t, "depends") == 0 {
				r.DependsOn = append(r.DependsOn, name)
			}
			if k != i && rapid.IntRange(0, 4).Draw(t, "also") == 0 {
				r.Restart.Also = append(r.Restart.Also, name)
			}
		}
		j.Roles = append(j.Roles, r)
	}
	j.Roles = rapid.Permutation(j.Roles).Draw(t, "order")
	return j
}

// drawRule draws one of a role's own rules.
func drawRule(t *rapid.T) job.RoleRule {
	r := job.RoleRule{Action: rapid.SampledFrom([]role.Action{role.InPlace, role.Global, role.Global, role.Stop, role.Ignore}).Draw(t, "action")}
	r.Causes = rapid.SliceOfN(rapid.SampledFrom([]role.Cause{role.Reported, role.Silent, role.Stuck}), 1, 2).Draw(t, "causes")
	return r
}

// without takes the rules with an action out of every role: with in_place and ignore a job may fail for
// ever, since that is what these say.
func without(j *job.Job, actions ...role.Action) {
	for i := range j.Roles {
		r := &j.Roles[i].Restart
		r.Rules = slices.DeleteFunc(r.Rules, func(one job.RoleRule) bool { return slices.Contains(actions, one.Action) })
	}
}

func drawPolicy(t *rapid.T, j *job.Job) restart.Policy {
	check := restart.HealthCheckOn
	if rapid.IntRange(0, 9).Draw(t, "health_check") == 0 {
		check = restart.HealthCheckIsOff
	}
	return restart.PolicyOf(j, check, rapid.IntRange(0, 3).Draw(t, "max_global"), rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "no_progress_lives"))
}

func drawBatch(t *rapid.T, p restart.Policy, causes []role.Cause) []role.Failure {
	var batch []role.Failure
	for _, n := range rapid.SliceOfNDistinct(rapid.SampledFrom(p.Order), 1, len(p.Order), rapid.ID[role.Name]).Draw(t, "failed") {
		batch = append(batch, role.Failure{Life: role.Life{Role: n, Incarnation: 1, Rank: rapid.IntRange(role.NoRank, 2).Draw(t, "rank"), Attempt: 1}, Cause: rapid.SampledFrom(causes).Draw(t, "cause"),
			Fatal: rapid.IntRange(0, 30).Draw(t, "fatal") == 0})
	}
	return batch
}

func drawStanding(t *rapid.T, p restart.Policy) map[role.Name]restart.Standing {
	at := map[role.Name]restart.Standing{}
	for _, n := range p.Order {
		at[n] = restart.Standing{Step: rapid.Int64Range(0, 40).Draw(t, "step"), Checkpoint: rapid.Int64Range(-1, 40).Draw(t, "checkpoint"), Available: rapid.IntRange(0, 2).Draw(t, "available")}
	}
	return at
}

// failForEver lets the roles of a job fail until it is stopped. It returns how many global restarts
// there were beyond those that a budget of their own paid for.
func failForEver(t *rapid.T) {
	j := drawJob(t)
	without(j, role.InPlace, role.Ignore)
	p, l, now := drawPolicy(t, j), restart.NewLedger(), noon
	// The most that budgets allow: every role's in-place restarts for every global one, and its own budgets.
	bound := 0
	for i := range j.Roles {
		whole := (p.MaxGlobal+1)*j.Roles[i].Restart.EscalateAt + 20
		bound += whole * (1 + 3*j.Roles[i].Restart.EscalateAt) // in each of its lives, three workers alone
	}
	bound += p.MaxGlobal + 1
	bound *= 2 // a global restart that its own budget pays forgives too
	for i := 0; ; i++ {
		if i > bound*len(j.Roles)*21 {
			t.Fatalf("the job still runs after %d restarts; ledger %+v", i, l)
		}
		for _, n := range p.Order {
			l = l.Began(n, now)
		}
		now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
		at, batch := drawStanding(t, p), drawBatch(t, p, spending)
		d := restart.Decide(p, l, at, batch)
		if d.Action == role.Stop {
			if d.Exit == 0 || d.Why == "" {
				t.Fatalf("a stop without exit code or reason: %+v", d)
			}
			return
		}
		l = l.Spend(p, d, batch, at, now)
		if l.Global > p.MaxGlobal {
			t.Fatalf("%d global restarts counted, at most %d allowed", l.Global, p.MaxGlobal)
		}
		for w, s := range l.Workers {
			if s.Restarts >= p.Roles[w.Role].EscalateAt {
				t.Fatalf("%v was restarted alone %d times, more than its budget", w, s.Restarts)
			}
			if d := p.WaitAlone(l, w, 0.5); d < 0 || d > p.Roles[w.Role].BackOff.Max {
				t.Fatalf("%v waits %s", w, d)
			}
		}
		for n, s := range l.Roles {
			if s.Hardware > 10 || s.Preempted > 10 || s.InPlace >= p.Roles[n].EscalateAt {
				t.Fatalf("%s has spent %+v, more than its budgets", n, s)
			}
			if w := p.Wait(l, n, 0.5); w < 0 || w > p.Roles[n].BackOff.Max {
				t.Fatalf("%s waits %s", n, w)
			}
		}
	}
}

// shows: A04
func TestEveryJobWhoseRolesKeepFailingEndsWithinItsBudgets(t *testing.T) {
	rapid.Check(t, failForEver)
}

func FuzzAJobWhoseRolesKeepFailingEnds(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(failForEver))
}

// shows: R51 R55
func TestADecisionIsTheMildestThatRepairsAllAndTouchesWhatGoesAlong(t *testing.T) {
	strength := []role.Action{role.Ignore, role.InPlace, role.Global, role.Stop}
	rapid.Check(t, func(t *rapid.T) {
		j := drawJob(t)
		p, l := drawPolicy(t, j), restart.NewLedger()
		l.Global = rapid.IntRange(0, p.MaxGlobal).Draw(t, "global")
		for _, n := range p.Order {
			l.Roles[n] = restart.Spent{InPlace: rapid.IntRange(0, 4).Draw(t, "in_place"), Hardware: rapid.IntRange(0, 10).Draw(t, "hardware")}
		}
		at, batch := drawStanding(t, p), drawBatch(t, p, role.Causes())
		d := restart.Decide(p, l, at, batch)
		if diff := cmp.Diff(d, restart.Decide(p, l, at, batch)); diff != "" {
			t.Fatalf("the same question has two answers:\n%s", diff)
		}
		if d.Alone {
			if len(batch) != 1 || !slices.Equal(d.Roles, []role.Name{batch[0].Life.Role}) || d.Rank != batch[0].Life.Rank {
				t.Fatalf("%v is restarted alone for %v", d, batch)
			}
			return
		}
		strongest := 0
		for _, f := range batch {
			alone := restart.Decide(p, l, at, []role.Failure{f})
			if len(batch) > 1 { // what others have failed with is no worker's alone
				alone = restart.Decide(p, l, at, []role.Failure{f, f})
			}
			strongest = max(strongest, slices.Index(strength, alone.Action))
			if alone.Action != role.Ignore && !slices.Contains(d.Roles, f.Life.Role) {
				t.Fatalf("%s failed and is not touched: %+v", f.Life.Role, d)
			}
		}
		if d.Action != strength[strongest] {
			t.Fatalf("decided %s, the strongest single answer is %s", d.Action, strength[strongest])
		}
		for _, n := range d.Roles {
			for _, also := range p.Roles[n].Also {
				if !slices.Contains(d.Roles, also) {
					t.Fatalf("%s is touched and takes %s along, which is not: %v", n, also, d.Roles)
				}
			}
		}
		if want := keep(p.Order, d.Roles); !slices.Equal(want, d.Roles) {
			t.Fatalf("roles %v are not in the order of the job, each once", d.Roles)
		}
		if (d.Action == role.Global || d.Action == role.Stop) && !slices.Equal(d.Roles, p.Order) {
			t.Fatalf("%s touches %v only", d.Action, d.Roles)
		}
	})
}

// keep returns those of list that are in set.
func keep(list, set []role.Name) []role.Name {
	return slices.DeleteFunc(slices.Clone(list), func(n role.Name) bool { return !slices.Contains(set, n) })
}

func TestWhatIsIgnoredTouchesNothingAndSpendsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJob(t)
		for i := range j.Roles {
			j.Roles[i].Restart.Rules = []job.RoleRule{{Causes: []role.Cause{role.Stuck}, Action: role.Stop}, {Causes: []role.Cause{role.Reported}, Action: role.Ignore}}
		}
		p, l := drawPolicy(t, j), restart.NewLedger()
		p.HealthCheck = true
		l.Global = p.MaxGlobal
		for _, n := range p.Order {
			l.Roles[n] = restart.Spent{InPlace: rapid.IntRange(0, 4).Draw(t, "in_place"), Idle: 3, EverBegan: true}
		}
		at, batch := drawStanding(t, p), drawBatch(t, p, []role.Cause{role.Reported})
		for i := range batch {
			batch[i].Fatal = false
			if _, ignored := restart.Ignored(p, l, at[batch[i].Life.Role], batch[i]); !ignored {
				t.Fatalf("%v is not ignored", batch[i])
			}
		}
		d := restart.Decide(p, l, at, batch)
		if d.Action != role.Ignore || len(d.Roles) != 0 || d.Exit != 0 || d.Alone || d.Rule != restart.RoleRule {
			t.Fatalf("%v: %+v", batch, d)
		}
		if diff := cmp.Diff(l, l.Spend(p, d, batch, at, noon)); diff != "" {
			t.Fatalf("it has spent (-before +after):\n%s", diff)
		}
	})
}

// A window gives budgets back with time; within any window no more is spent than without one.
func TestWithinAWindowNoMoreIsSpentThanItsBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		j := drawJob(t)
		without(j, role.InPlace, role.Ignore)
		const window = 10 * time.Minute
		for i := range j.Roles {
			j.Roles[i].Restart.Window = window
		}
		p, l, now := drawPolicy(t, j), restart.NewLedger(), noon
		var global []time.Time
		inPlace := map[role.Name][]time.Time{}
		for range rapid.IntRange(1, 60).Draw(t, "failures") {
			now = now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "seconds")) * time.Second)
			at, batch := drawStanding(t, p), drawBatch(t, p, []role.Cause{role.Exited, role.Reported})
			l = l.Aged(p, at, now)
			d := restart.Decide(p, l, at, batch)
			l = l.Spend(p, d, batch, at, now)
			if d.Action == role.Stop {
				continue // another would end here: what it would spend next is looked at too
			}
			recent := func(times []time.Time) int {
				return len(slices.DeleteFunc(slices.Clone(times), func(at time.Time) bool { return now.Sub(at) >= window }))
			}
			if d.Action == role.Global {
				global, inPlace = append(global, now), map[role.Name][]time.Time{}
			}
			if n := recent(global); n > p.MaxGlobal || n != l.Global || n != len(l.Times.Global) {
				t.Fatalf("%d global restarts within the window, %d counted, %d allowed", n, l.Global, p.MaxGlobal)
			}
			if d.Action != role.InPlace || d.Alone {
				continue
			}
			for _, f := range batch {
				inPlace[f.Life.Role] = append(inPlace[f.Life.Role], now)
				if n := recent(inPlace[f.Life.Role]); n >= p.Roles[f.Life.Role].EscalateAt || n != l.Roles[f.Life.Role].InPlace {
					t.Fatalf("%d restarts of %s within the window, %d counted", n, f.Life.Role, l.Roles[f.Life.Role].InPlace)
				}
			}
		}
	})
}
