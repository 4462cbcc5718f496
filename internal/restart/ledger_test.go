package restart_test

import (
	"math"
	"testing"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// history drives policy and ledger with one failure after the other, as the engine does.
type history struct {
	*testing.T
	*scene
	now time.Time
}

func newHistory(t *testing.T) *history {
	return &history{t, newScene(t, "critic"), noon}
}

// fails lets the roles fail at once of a cause and spends what the decision costs.
func (h *history) fails(cause role.Cause, roles ...role.Name) restart.Decision {
	h.Helper()
	var batch []role.Failure
	for _, n := range roles {
		batch = append(batch, role.Failure{Life: role.Life{Role: n, Incarnation: 1, Attempt: 1}, Cause: cause})
	}
	return h.failed(batch...)
}

func (h *history) failed(batch ...role.Failure) restart.Decision {
	d := restart.Decide(h.policy, h.ledger, h.standing, batch)
	h.ledger = h.ledger.Spend(h.policy, d, batch, h.standing, h.now)
	return d
}

func (h *history) want(d restart.Decision, action role.Action, rule restart.Rule) {
	h.Helper()
	if d.Action != action || d.Rule != rule {
		h.Errorf("decided %s by %s (%s), want %s by %s", d.Action, d.Rule, d.Why, action, rule)
	}
}

// shows: R14 R16 R17 R27 A04
func TestAGlobalRestartForgivesTheRolesAndIsCountedItself(t *testing.T) {
	h := newHistory(t)
	for round := range maxGlobal {
		h.want(h.fails(role.Exited, "critic"), role.InPlace, restart.RoleCanStay)
		h.want(h.fails(role.Exited, "critic"), role.InPlace, restart.RoleCanStay)
		if got := h.ledger.Roles["critic"].InPlace; got != 2 {
			t.Fatalf("critic has spent %d, want 2", got)
		}
		h.want(h.fails(role.Exited, "critic"), role.Global, restart.RoleBudgetSpent)
		if got := h.ledger.Roles["critic"].InPlace; got != 0 || h.ledger.Global != round+1 {
			t.Fatalf("after global restart %d: critic has spent %d, %d global", round+1, got, h.ledger.Global)
		}
	}
	h.fails(role.Exited, "critic")
	h.fails(role.Exited, "critic")
	d := h.fails(role.Exited, "critic")
	h.want(d, role.Stop, restart.GlobalBudgetSpent)
	if d.Exit != 1 || h.ledger.Global != maxGlobal {
		t.Errorf("exit %d after %d global restarts", d.Exit, h.ledger.Global)
	}
}

// shows: R3 R17
func TestWithNoGlobalRestartAllowedTheFirstOneNeededStopsTheJob(t *testing.T) {
	h := newHistory(t)
	h.policy.MaxGlobal = 0
	h.want(h.fails(role.Exited, "actor"), role.Stop, restart.GlobalBudgetSpent)
}

func TestARoleThatNeverEscalatesIsAlwaysRestartedInPlace(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) { r.EscalateAt = 0 })
	for range 100 {
		h.want(h.fails(role.Exited, "critic"), role.InPlace, restart.RoleCanStay)
	}
}

// shows: R51
func TestTwoFailuresAtOnceGiveTheMildestDecisionThatRepairsBoth(t *testing.T) {
	h := newHistory(t)
	d := h.fails(role.Silent, "critic", "advantages")
	h.want(d, role.InPlace, restart.RoleCanStay)
	if restart.Names(d.Roles) != "critic, advantages" {
		t.Errorf("touches %v", d.Roles)
	}
	if h.ledger.Roles["critic"].InPlace != 1 || h.ledger.Roles["advantages"].InPlace != 1 {
		t.Errorf("spent: %+v", h.ledger.Roles)
	}
	h.want(h.fails(role.Silent, "critic", "actor"), role.Global, restart.RoleNeedsGlobal)
	if h.ledger.Global != 1 {
		t.Errorf("%d global restarts counted, want one for both failures", h.ledger.Global)
	}
}

// shows: R55
func TestARoleThatIsOnlyTakenAlongIsNotCharged(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) { r.Also = []role.Name{"reward"} })
	reward := h.policy.Roles["reward"]
	reward.Also = []role.Name{"advantages", "critic"} // also those that the other takes along
	h.policy.Roles["reward"] = reward
	d := h.fails(role.Exited, "critic")
	if restart.Names(d.Roles) != "critic, advantages, reward" {
		t.Errorf("touches %v", d.Roles)
	}
	if len(h.ledger.Roles) != 1 || h.ledger.Roles["critic"].InPlace != 1 {
		t.Errorf("spent: %+v", h.ledger.Roles)
	}
}

func TestHardwareAndPreemptionSpendBudgetsOfTheirOwnWhileTheseLast(t *testing.T) {
	for _, cause := range []role.Cause{role.Hardware, role.Preempted} {
		t.Run(string(cause), func(t *testing.T) {
			h := newHistory(t)
			h.policy.MaxGlobal = 1
			for range 10 {
				h.want(h.fails(cause, "actor"), role.Global, restart.RoleNeedsGlobal)
				h.want(h.fails(cause, "critic"), role.InPlace, restart.RoleCanStay)
			}
			if h.ledger.Global != 0 || h.ledger.Roles["critic"].InPlace != 0 {
				t.Fatalf("spent: %+v", h.ledger)
			}
			h.want(h.fails(cause, "actor"), role.Global, restart.RoleNeedsGlobal)
			h.want(h.fails(cause, "actor"), role.Stop, restart.GlobalBudgetSpent)
			h.fails(cause, "critic")
			if h.ledger.Roles["critic"].InPlace != 1 {
				t.Errorf("the eleventh spent %+v, want it to count like any other", h.ledger.Roles["critic"])
			}
		})
	}
}

func TestAFailureThatOnlyGoesAlongWithAGlobalRestartDoesNotMakeItCount(t *testing.T) {
	h := newHistory(t)
	h.policy.MaxGlobal = 0
	ill := role.Failure{Life: role.Life{Role: "actor", Incarnation: 1}, Cause: role.Hardware}
	beside := role.Failure{Life: role.Life{Role: "critic", Incarnation: 1}, Cause: role.Exited}
	h.want(h.failed(ill, beside), role.Global, restart.RoleNeedsGlobal)
	if h.ledger.Global != 0 {
		t.Errorf("%d global restarts counted of %d allowed", h.ledger.Global, h.policy.MaxGlobal)
	}
}

func TestWhatAnOperatorAsksForAndATakenPortSpendNothing(t *testing.T) {
	for _, cause := range []role.Cause{role.Operator, role.PortTaken} {
		h := newHistory(t)
		for range 20 {
			if d := h.fails(cause, "critic"); d.Action != role.InPlace {
				t.Fatalf("%s: %s (%s)", cause, d.Action, d.Why)
			}
		}
		s := h.ledger.Roles["critic"]
		if inARow := s.InARow; cause == role.PortTaken && inARow != 20 {
			t.Errorf("%s: %d in a row", cause, inARow)
		}
		if s.InPlace != 0 || h.ledger.Global != 0 || cause == role.Operator && s != (restart.Spent{}) {
			t.Errorf("%s spent %+v", cause, s)
		}
	}
}

func TestARealFailureBesideAnOperatorsWishIsCharged(t *testing.T) {
	h := newHistory(t)
	asked := role.Failure{Life: role.Life{Role: "critic"}, Cause: role.Operator}
	died := role.Failure{Life: role.Life{Role: "critic", Incarnation: 1}, Cause: role.Exited}
	h.failed(asked, died)
	if got := h.ledger.Roles["critic"].InPlace; got != 1 {
		t.Errorf("spent %d, want 1", got)
	}
}

// shows: A40
func TestLivesThatGainNoStepAreCountedAndAStepGainedForgivesThem(t *testing.T) {
	h := newHistory(t)
	h.policy.NoProgressLives = 3
	h.role(func(r *restart.RolePolicy) { r.EscalateAt = 0 })
	life := func(step int64) restart.Decision {
		h.ledger = h.ledger.Began("critic", h.now)
		h.now = h.now.Add(time.Second)
		h.standing["critic"] = restart.Standing{Step: step, Checkpoint: -1}
		return h.fails(role.Exited, "critic")
	}
	life(10)
	life(10)
	h.want(life(10), role.InPlace, restart.RoleCanStay)
	h.want(life(11), role.InPlace, restart.RoleCanStay)
	life(11)
	h.want(life(5), role.InPlace, restart.RoleCanStay)
	d := life(11)
	h.want(d, role.Stop, restart.NoProgress)
	if d.Exit != 93 {
		t.Errorf("exit %d, want 93", d.Exit)
	}
}

func TestACheckpointWithinTheRewindIsGoodEnough(t *testing.T) {
	for _, c := range []struct {
		step, checkpoint int64
		want             restart.Rule
	}{{100, 90, restart.RoleCanStay}, {100, 89, restart.RoleStateTooOld}, {10, -1, restart.RoleCanStay}, {11, -1, restart.RoleStateTooOld}, {0, -1, restart.RoleCanStay}} {
		h := newHistory(t)
		h.role(func(r *restart.RolePolicy) { r.Stateful, r.MaxRewind = true, 10 })
		h.standing["critic"] = restart.Standing{Step: c.step, Checkpoint: c.checkpoint}
		if d := h.fails(role.Exited, "critic"); d.Rule != c.want {
			t.Errorf("step %d, checkpoint %d: %s, want %s", c.step, c.checkpoint, d.Rule, c.want)
		}
	}
}

// shows: A50
func TestTheBackOffDoublesFromItsBaseToItsMaximum(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) {
		r.EscalateAt, r.BackOff = 0, job.BackOff{Base: time.Second, Max: time.Minute, ResetAfter: time.Minute}
	})
	for i, seconds := range []int{0, 1, 2, 4, 8, 16, 32, 60, 60, 60} {
		want := time.Duration(seconds) * time.Second
		h.fails(role.Exited, "critic")
		if got := h.policy.Wait(h.ledger, "critic", 0); got != want {
			t.Errorf("before restart %d in a row: %s, want %s", i+1, got, want)
		}
	}
}

// shows: A50
func TestTheBackOffIsForgottenAfterARunOfGoodBehaviour(t *testing.T) {
	h := newHistory(t)
	life := func(ran time.Duration) time.Duration {
		h.ledger = h.ledger.Began("critic", h.now)
		h.now = h.now.Add(ran)
		h.fails(role.Exited, "critic")
		return h.policy.Wait(h.ledger, "critic", 0)
	}
	h.role(func(r *restart.RolePolicy) { r.EscalateAt = 0 })
	life(time.Second)
	life(time.Second)
	if got := life(59 * time.Second); got != 2*time.Second {
		t.Errorf("after 59 s of good behaviour it waits %s, want 2s", got)
	}
	if got := life(time.Minute); got != 0 {
		t.Errorf("after a minute of good behaviour it waits %s, want nothing", got)
	}
	h.fails(role.Unrepaired, "critic") // its workers have not run since: nothing to forget
	if got := h.policy.Wait(h.ledger, "critic", 0); got != time.Second {
		t.Errorf("after a repair that failed it waits %s, want 1s", got)
	}
}

// shows: A50
func TestChanceTakesAtMostAFifthOffTheBackOff(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) {
		r.BackOff = job.BackOff{Base: 10 * time.Second, Max: time.Minute, ResetAfter: time.Minute}
	})
	h.fails(role.Exited, "critic")
	h.fails(role.Exited, "critic")
	for jitter, want := range map[float64]time.Duration{0: 10 * time.Second, 0.5: 9 * time.Second, 1: 8 * time.Second} {
		if got := h.policy.Wait(h.ledger, "critic", jitter); got != want {
			t.Errorf("jitter %v: %s, want %s", jitter, got, want)
		}
	}
}

func TestTheBackOffNeverOverflows(t *testing.T) {
	h := newHistory(t)
	for _, longest := range []time.Duration{time.Second, time.Hour, math.MaxInt64} {
		h.role(func(r *restart.RolePolicy) { r.BackOff = job.BackOff{Base: 3 * time.Nanosecond, Max: longest} })
		before := time.Duration(0)
		for _, n := range []int{1, 2, 3, 30, 62, 63, 64, 65, 1000, math.MaxInt} {
			h.ledger.Roles["critic"] = restart.Spent{InARow: n}
			got := h.policy.Wait(h.ledger, "critic", 0)
			if got < before || got > longest {
				t.Errorf("restart %d in a row waits %s after %s, at most %s", n, got, before, longest)
			}
			before = got
		}
	}
	h.role(func(r *restart.RolePolicy) { r.BackOff = job.BackOff{} })
	if got := h.policy.Wait(h.ledger, "critic", 1); got != 0 {
		t.Errorf("without a back-off it waits %s", got)
	}
}

func TestSpendingChangesTheNewLedgerOnly(t *testing.T) {
	h := newHistory(t)
	h.fails(role.Exited, "critic")
	before := h.ledger
	h.fails(role.Exited, "critic", "actor")
	if before.Global != 0 || before.Roles["critic"].InPlace != 1 || len(before.Roles) != 1 {
		t.Errorf("the old ledger has become %+v", before)
	}
}
