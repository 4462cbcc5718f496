package restart_test

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// scene is what one line of the decision table is tried with.
type scene struct {
	policy   restart.Policy
	ledger   restart.Ledger
	standing map[role.Name]restart.Standing
	failure  role.Failure
}

const maxGlobal = 3

// names are the roles of the seed's job, and one that nobody knows.
var names = []role.Name{"actor", "rollout", "critic", "actor_fwd", "advantages", "reward"}

// defaultJob is the roles as a job file makes them that says nothing of restarts.
func defaultJob(t testing.TB, roles ...role.Name) *job.Job {
	t.Helper()
	src := "name: table\nroles:\n"
	for _, n := range roles {
		src += "  " + string(n) + ": {command: [\"true\"]}\n"
	}
	j, err := job.Parse("table", []byte(src), "/")
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func newScene(t testing.TB, failed role.Name) *scene {
	p := restart.PolicyOf(defaultJob(t, names...), restart.HealthCheckOn, maxGlobal, 0)
	return &scene{policy: p, ledger: restart.NewLedger(), standing: map[role.Name]restart.Standing{failed: {Step: 100, Checkpoint: -1}},
		failure: role.Failure{Life: role.Life{Role: failed, Incarnation: 1, Attempt: 1}, Cause: role.Exited, Detail: "exit code 3"}}
}

// role changes the policy of the role that fails.
func (s *scene) role(change func(*restart.RolePolicy)) {
	rp := s.policy.Roles[s.failure.Life.Role]
	change(&rp)
	s.policy.Roles[s.failure.Life.Role] = rp
}

// rule has the role answer every report by the action.
func (s *scene) rule(action role.Action) {
	s.failure.Cause, s.failure.Exit = role.Reported, nil
	s.role(func(r *restart.RolePolicy) {
		r.Rules = []job.RoleRule{{Causes: []role.Cause{role.Exited}, Action: role.Stop}, {Causes: []role.Cause{role.Reported}, Action: action}}
	})
}

// failed says what the words of the table's first column stand for: the roles that are tried, and
// what makes them what the words say.
var failed = map[string]struct {
	roles []role.Name
	set   func(*scene)
}{
	"actor, rollout, actor_fwd":                       {[]role.Name{"actor", "rollout", "actor_fwd"}, nil},
	"any other role":                                  {[]role.Name{"critic", "advantages", "reward"}, nil},
	"a report marked fatal":                           {names, func(s *scene) { s.failure.Cause, s.failure.Fatal = role.Reported, true }},
	"a role that an operator asked to restart":        {names, func(s *scene) { s.failure.Cause = role.Operator }},
	"any, with health check off":                      {names, func(s *scene) { s.policy.HealthCheck = false }},
	"a role with `on_failure: stop`":                  {names, func(s *scene) { s.role(func(r *restart.RolePolicy) { r.OnFailure = role.Stop }) }},
	"what a rule of `restart.rules` says to stop for": {names, func(s *scene) { s.rule(role.Stop) }},
	"what a rule says to ignore":                      {names, func(s *scene) { s.rule(role.Ignore) }},
	"what a rule says to restart in place for":        {names, func(s *scene) { s.rule(role.InPlace) }},
	"what a rule says to restart globally for":        {names, func(s *scene) { s.rule(role.Global) }},
	"a worker of a role with `restart.unit: worker`, with enough others available": {names, func(s *scene) {
		s.role(func(r *restart.RolePolicy) { r.Unit, r.MinAvailable, r.OnFailure = job.UnitWorker, 1, role.Stop })
		s.standing[s.failure.Life.Role] = restart.Standing{Available: 1}
	}},
	"a role that gained no step over `--no-progress-lives N` lives": {names, func(s *scene) {
		s.policy.NoProgressLives = 2
		spent := s.ledger.Roles[s.failure.Life.Role]
		spent.EverBegan, spent.Idle, spent.BestStep = true, 1, 100
		s.ledger.Roles[s.failure.Life.Role] = spent
	}},
	"a stateful role whose checkpoint is further back than `restart.max_rewind`": {[]role.Name{"critic", "reward"}, func(s *scene) {
		s.role(func(r *restart.RolePolicy) { r.Stateful, r.MaxRewind = true, 10 })
		s.standing[s.failure.Life.Role] = restart.Standing{Step: 100, Checkpoint: 89}
	}},
}

// counts are the numbers that the words of the second and third column stand for.
func counts(t *testing.T, words string) []int {
	switch words {
	case "any":
		return []int{0, 1, 2, maxGlobal}
	case "0 or 1":
		return []int{0, 1}
	case "< max":
		return []int{0, maxGlobal - 1}
	case "= max":
		return []int{maxGlobal}
	}
	n, err := strconv.Atoi(words)
	if err != nil {
		t.Fatalf("the table says %q, which this test does not know", words)
	}
	return []int{n}
}

// readTable returns the rows of the table in the documentation.
func readTable(t *testing.T) [][]string {
	src, err := os.ReadFile("../../docs/reference/decision-table.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(src)) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	if len(rows) < 3 {
		t.Fatal("the documentation has no decision table")
	}
	return rows[2:]
}

// shows: R11 R12 R13 R14 R15 R16 R17 R1 A40
func TestThePolicyDecidesWhatEveryLineOfTheDocumentedTableSays(t *testing.T) {
	action := map[string]role.Action{"ignore": role.Ignore, "in place": role.InPlace, "global": role.Global, "stop": role.Stop}
	tried := map[restart.Rule]bool{}
	for _, row := range readTable(t) {
		t.Run(strings.Join(row, "; "), func(t *testing.T) {
			if len(row) != 6 {
				t.Fatalf("the line has %d cells", len(row))
			}
			what, ok := failed[row[0]]
			if !ok {
				t.Fatalf("the table says %q, which this test does not know", row[0])
			}
			want := restart.Decision{Action: action[row[3]], Rule: restart.Rule(strings.Trim(row[5], "`"))}
			if row[4] != "" {
				want.Exit = counts(t, row[4])[0]
			}
			tried[want.Rule] = true
			for _, name := range what.roles {
				for _, inPlace := range counts(t, row[1]) {
					for _, global := range counts(t, row[2]) {
						s := newScene(t, name)
						s.ledger.Global = global
						s.ledger.Roles[name] = restart.Spent{InPlace: inPlace}
						if what.set != nil {
							what.set(s)
						}
						got := restart.Decide(s.policy, s.ledger, s.standing, []role.Failure{s.failure})
						if got.Action != want.Action || got.Rule != want.Rule || got.Exit != want.Exit || got.Why == "" {
							t.Errorf("%s with %d in place and %d global: %s by %s, exit %d (%s)", name, inPlace, global, got.Action, got.Rule, got.Exit, got.Why)
						}
						touched := s.policy.Order
						switch want.Action {
						case role.InPlace:
							touched = []role.Name{name}
						case role.Ignore:
							touched = nil
						case role.Global, role.Stop: // all
						}
						if !slices.Equal(got.Roles, touched) {
							t.Errorf("%s: touches %v, want %v", name, got.Roles, touched)
						}
					}
				}
			}
		})
	}
	for _, r := range []restart.Rule{restart.RoleNeedsGlobal, restart.RoleCanStay, restart.RoleBudgetSpent, restart.RoleStateTooOld, restart.RoleMustStop,
		restart.GlobalBudgetSpent, restart.Fatal, restart.NoProgress, restart.HealthCheckOff, restart.OperatorAsked, restart.WorkerCanRestart, restart.RoleRule} {
		if !tried[r] {
			t.Errorf("the documented table has no line for the rule %s", r)
		}
	}
	if len(tried) != 12 {
		t.Errorf("rules of the table: %v", slices.Sorted(maps.Keys(tried)))
	}
}
