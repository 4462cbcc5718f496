package restart_test

import (
	"strings"
	"testing"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// rules has the failing role go by rules of its own, as a job file writes them.
func (h *history) rules(src string) {
	h.Helper()
	text := "name: x\nroles:\n  critic:\n    command: [\"true\"]\n    restart: {rules: " + src + "}\n"
	j, err := job.Parse("rules", []byte(text), "/")
	if err != nil {
		h.Fatal(err)
	}
	h.role(func(r *restart.RolePolicy) { r.Rules = j.Roles[0].Restart.Rules })
}

func critic(cause role.Cause, exit *role.Exit, detail string) role.Failure {
	return role.Failure{Life: role.Life{Role: "critic", Incarnation: 1, Rank: 0, Attempt: 1}, Cause: cause, Exit: exit, Detail: detail}
}

func TestTheFirstRuleWhoseConditionsAllHoldSettlesAFailure(t *testing.T) {
	h := newHistory(t)
	h.rules(`[{cause: exited, exit_code: [3, 4], action: stop}, {signal: [SIGSEGV, BUS], action: global}, {message: 'CUDA error: .*ECC', action: global}, {cause: exited, action: in_place}]`)
	for _, c := range []struct {
		failure role.Failure
		action  role.Action
		why     string
	}{
		{critic(role.Exited, &role.Exit{Code: 4}, "exit code 4"), role.Stop, "rule 1 of critic"},
		{critic(role.Exited, &role.Exit{Signal: "SIGSEGV"}, "SIGSEGV"), role.Global, "rule 2 of critic"},
		{critic(role.Exited, &role.Exit{Signal: "SIGBUS"}, "SIGBUS"), role.Global, "rule 2 of critic"},
		{critic(role.Exited, &role.Exit{Code: 1}, "CUDA error: uncorrectable ECC error"), role.Global, "rule 3 of critic"},
		{critic(role.Exited, &role.Exit{Code: 1, Tail: []string{"Traceback", "CUDA error: an ECC error", "bye"}}, "exit code 1"), role.Global, "rule 3 of critic"},
		{critic(role.Exited, &role.Exit{Signal: "SIGKILL"}, "SIGKILL"), role.InPlace, "rule 4 of critic (cause exited) says in_place"},
		{critic(role.Exited, &role.Exit{}, "exit code 0"), role.InPlace, "rule 4 of critic"},
	} {
		h.ledger = restart.NewLedger()
		d := h.failed(c.failure)
		h.want(d, c.action, restart.RoleRule)
		if !strings.HasPrefix(d.Why, c.why) {
			t.Errorf("%s: %s", c.failure.Detail, d.Why)
		}
		if d.Exit != map[role.Action]int{role.Stop: 1}[c.action] {
			t.Errorf("%s: exit %d", c.failure.Detail, d.Exit)
		}
	}
	h.want(h.failed(critic(role.Silent, nil, "no heartbeat for 121s")), role.InPlace, restart.RoleCanStay)
	h.want(h.fails(role.Exited, "reward"), role.InPlace, restart.RoleCanStay) // whose rules these are not
}

func TestFatalReportsOperatorsAndHealthCheckOffComeBeforeTheRules(t *testing.T) {
	h := newHistory(t)
	h.rules(`[{cause: reported, action: ignore}, {action: global}]`)
	fatal := critic(role.Reported, nil, "no such file")
	fatal.Fatal = true
	h.want(h.failed(fatal), role.Stop, restart.Fatal)
	h.want(h.fails(role.Operator, "critic"), role.InPlace, restart.OperatorAsked)
	h.policy.HealthCheck = false
	h.want(h.fails(role.Reported, "critic"), role.Stop, restart.HealthCheckOff)
}

func TestARuleThatSaysInPlaceHoldsBeyondTheBudgetAndIsCharged(t *testing.T) {
	h := newHistory(t)
	h.rules(`[{cause: exited, action: in_place}]`)
	for range 10 {
		h.want(h.fails(role.Exited, "critic"), role.InPlace, restart.RoleRule)
	}
	if n := h.ledger.Roles["critic"].InPlace; n != 10 {
		t.Errorf("%d restarts are charged, want 10", n)
	}
	h.want(h.fails(role.Silent, "critic"), role.Global, restart.RoleBudgetSpent)
}

func TestARuleThatSaysGlobalNeedsTheGlobalBudgetAndSpendsIt(t *testing.T) {
	h := newHistory(t)
	h.rules(`[{cause: stuck, action: global}]`)
	for i := range maxGlobal {
		h.want(h.fails(role.Stuck, "critic"), role.Global, restart.RoleRule)
		if h.ledger.Global != i+1 {
			t.Fatalf("%d global restarts counted after %d", h.ledger.Global, i+1)
		}
	}
	h.want(h.fails(role.Stuck, "critic"), role.Stop, restart.GlobalBudgetSpent)
}

// shows: A40
func TestLivesThatGainNoStepEndTheJobAlsoWhereARuleRestarts(t *testing.T) {
	for _, action := range []string{"in_place", "global"} {
		h := newHistory(t)
		h.rules(`[{cause: exited, action: ` + action + `}]`)
		h.policy.NoProgressLives = 2
		h.standing["critic"] = restart.Standing{Checkpoint: -1}
		h.ledger = h.ledger.Began("critic", h.now)
		h.want(h.fails(role.Exited, "critic"), role.Action(action), restart.RoleRule)
		d := h.fails(role.Exited, "critic")
		h.want(d, role.Stop, restart.NoProgress)
		if d.Exit != 93 || !strings.HasPrefix(d.Why, "rule 1 of critic") {
			t.Errorf("%+v", d)
		}
	}
}

func TestWhatIsIgnoredBesideAnotherFailureIsNotTouchedByItsRepair(t *testing.T) {
	h := newHistory(t)
	h.rules(`[{cause: reported, action: ignore}]`)
	d := h.failed(critic(role.Reported, nil, "shard 7 is late"), role.Failure{Life: role.Life{Role: "reward", Incarnation: 1, Attempt: 1}, Cause: role.Exited})
	h.want(d, role.InPlace, restart.RoleCanStay)
	if restart.Names(d.Roles) != "reward" || h.ledger.Roles["critic"] != (restart.Spent{}) {
		t.Errorf("touches %v, critic has spent %+v", d.Roles, h.ledger.Roles["critic"])
	}
}

func TestARuleThatSaysInPlaceRestartsAWorkerThatNeedsNoOthersAlone(t *testing.T) {
	h := engines(t)
	h.rules(`[{cause: exited, action: in_place}]`)
	for range 5 { // its budget is 3
		if d := h.dies(1); !d.Alone || d.Rank != 1 || d.Rule != restart.RoleRule {
			t.Fatalf("%+v", d)
		}
	}
	h.available(1)
	if d := h.dies(1); d.Alone || d.Action != role.InPlace || d.Rule != restart.RoleRule {
		t.Errorf("with one other available: %+v", d)
	}
}

func TestTwoWorkersThatFailAtOnceAreTheirRolesFailureAndHeldByItsBudget(t *testing.T) {
	h := engines(t)
	one := func(rank int) role.Failure {
		return role.Failure{Life: role.Life{Role: "critic", Incarnation: 1, Rank: rank, Attempt: 1}, Cause: role.Exited}
	}
	h.want(h.failed(one(0), one(1)), role.InPlace, restart.RoleCanStay)
	h.want(h.failed(one(0), one(1)), role.InPlace, restart.RoleCanStay)
	h.want(h.failed(one(0), one(1)), role.Global, restart.RoleBudgetSpent)
}

func TestTheTableIsExplainedLineByLineDownToTheOneThatSettles(t *testing.T) {
	h := newHistory(t)
	h.rules(`[{cause: stuck, action: stop}, {exit_code: 3, action: global}]`)
	h.ledger.Roles["critic"] = restart.Spent{InPlace: 2}
	explain := func(f role.Failure) []string {
		var out []string
		for _, l := range restart.Explain(h.policy, h.ledger, h.standing["critic"], f) {
			mark := "- "
			if l.Fits {
				mark = "* " + string(l.Action) + " "
			}
			out = append(out, mark+string(l.Rule)+": "+l.Why)
		}
		return out
	}
	want := `- fatal: it is not marked fatal
- operator_asked: no operator has asked for it
- health_check_off: health check is on
- role_rule: rule 1 of critic (cause stuck): the cause is exited
- role_rule: rule 2 of critic (exit_code 3): the exit code is 1
- worker_can_restart: restart.unit is role: the workers of critic cannot go on without each other
- no_progress: --no-progress-lives is 0: never
- role_must_stop: its on_failure is in_place
- role_needs_global: its on_failure is in_place
- role_state_too_old: it has no state that lives in checkpoints
* global role_budget_spent: this would be restart 3 of critic since the last global one`
	if got := strings.Join(explain(critic(role.Exited, &role.Exit{Code: 1}, "exit code 1")), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	h.ledger.Global = maxGlobal
	lines := explain(critic(role.Exited, &role.Exit{Code: 3}, "exit code 3"))
	if got := lines[len(lines)-1]; got != "* stop global_budget_spent: rule 2 of critic (exit_code 3) says global, and 3 of 3 global restarts are spent" {
		t.Errorf("with nothing left: %s", got)
	}
}
