package restart_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// later lets time pass, and whoever is about to decide look.
func (h *history) later(d time.Duration) {
	h.now = h.now.Add(d)
	h.ledger = h.ledger.Aged(h.policy, h.standing, h.now)
}

func TestARestartBeforeTheWindowCountsNoMore(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) { r.Window = time.Hour })
	h.fails(role.Exited, "critic")
	h.later(30 * time.Minute)
	h.fails(role.Exited, "critic")
	h.later(30*time.Minute - time.Second)
	if n := h.ledger.Roles["critic"].InPlace; n != 2 {
		t.Errorf("%d restarts count a second before the window is over, want 2", n)
	}
	h.later(time.Second)
	if n := h.ledger.Roles["critic"].InPlace; n != 1 {
		t.Errorf("%d restarts count when it is, want 1", n)
	}
	h.want(h.fails(role.Exited, "critic"), role.InPlace, restart.RoleCanStay)
	h.want(h.fails(role.Exited, "critic"), role.Global, restart.RoleBudgetSpent)
	h.later(24 * time.Hour)
	if h.ledger.Global != 1 {
		t.Errorf("%d global restarts count: the lead role has no window", h.ledger.Global)
	}
}

func TestTheLeadRolesWindowBoundsTheGlobalRestarts(t *testing.T) {
	h := newHistory(t)
	lead := h.policy.Roles[h.policy.Lead]
	lead.Window = time.Hour
	h.policy.Roles[h.policy.Lead] = lead
	for range maxGlobal {
		h.want(h.fails(role.Exited, "actor"), role.Global, restart.RoleNeedsGlobal)
		h.later(20*time.Minute - time.Second)
	}
	h.want(h.fails(role.Exited, "actor"), role.Stop, restart.GlobalBudgetSpent)
	h.later(3 * time.Second)
	h.want(h.fails(role.Exited, "actor"), role.Global, restart.RoleNeedsGlobal)
	if h.ledger.Global != maxGlobal {
		t.Errorf("%d global restarts count, want %d", h.ledger.Global, maxGlobal)
	}
}

func TestTheWindowHoldsForAWorkerThatIsRestartedAloneToo(t *testing.T) {
	h := engines(t)
	h.role(func(r *restart.RolePolicy) { r.Window = time.Hour })
	for range 6 {
		h.want(h.dies(1), role.InPlace, restart.WorkerCanRestart)
		h.later(31 * time.Minute)
	}
	h.dies(1)
	h.want(h.dies(1), role.InPlace, restart.RoleCanStay)
	if len(h.ledger.Times.Workers) != 0 {
		t.Errorf("the restart of the role has not forgiven %v", h.ledger.Times.Workers)
	}
}

func TestAClockThatIsSetBackForgetsNothingAndBreaksNothing(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) { r.Window, r.ForgiveAfter = time.Hour, time.Minute })
	h.ledger = h.ledger.Began("critic", h.now)
	h.fails(role.Exited, "critic")
	h.ledger = h.ledger.Began("critic", h.now)
	h.standing["critic"] = restart.Standing{Step: 500, Rose: h.now.Add(-time.Hour)}
	h.later(-time.Hour)
	if s := h.ledger.Roles["critic"]; s.InPlace != 1 || s.Gained != 0 {
		t.Errorf("after an hour back: %+v", s)
	}
}

// life lets the role run for a while and reach a step at its end.
func (h *history) life(ran time.Duration, step int64) {
	h.ledger = h.ledger.Began("critic", h.now)
	h.standing["critic"] = restart.Standing{Step: step, Checkpoint: -1, Rose: h.now.Add(ran)}
	h.later(ran)
}

func TestNewProgressGivesARestartBack(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) { r.ForgiveAfter, r.EscalateAt = time.Hour, 10 })
	count := func(want int, when string) {
		t.Helper()
		if n := h.ledger.Roles["critic"].InPlace; n != want {
			t.Errorf("%s %d restarts count, want %d", when, n, want)
		}
	}
	h.life(10*time.Hour, 100)
	h.fails(role.Exited, "critic")
	h.fails(role.Exited, "critic")
	h.fails(role.Exited, "critic")
	count(3, "good times before the first restart are not saved up:")
	h.life(40*time.Minute, 200)
	count(3, "after 40 minutes")
	h.fails(role.Exited, "critic")
	h.life(time.Hour, 150)
	count(4, "after an hour of going over old ground")
	h.life(20*time.Minute, 300)
	count(3, "after 20 minutes more with new steps")
	h.standing["critic"] = restart.Standing{Step: 300, Checkpoint: -1, Rose: h.now}
	h.later(5 * time.Hour)
	count(3, "after standing still")
	h.life(2*time.Hour+time.Minute, 400)
	count(1, "after two hours")
}

func TestALookInBetweenLosesNoTime(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) { r.ForgiveAfter = time.Hour })
	h.fails(role.Exited, "critic")
	h.ledger = h.ledger.Began("critic", h.now)
	for i := range 61 { // others fail every minute
		h.standing["critic"] = restart.Standing{Step: 100 + int64(i/2), Rose: h.now.Add(time.Minute)}
		h.later(time.Minute)
	}
	if n := h.ledger.Roles["critic"].InPlace; n != 0 {
		t.Errorf("%d restarts count after an hour of steps, want 0; %+v", n, h.ledger.Roles["critic"])
	}
}

func TestTheLeadRolesProgressGivesAGlobalRestartBackWhereNoneIsInPlace(t *testing.T) {
	h := newHistory(t)
	lead := h.policy.Roles["actor"]
	lead.ForgiveAfter = time.Hour
	h.policy.Roles["actor"] = lead
	h.fails(role.Exited, "actor")
	h.fails(role.Exited, "actor")
	h.ledger = h.ledger.Began("actor", h.now)
	h.standing["actor"] = restart.Standing{Step: 1000, Rose: h.now.Add(time.Hour)}
	h.later(time.Hour)
	if h.ledger.Global != 1 {
		t.Errorf("%d global restarts count, want 1", h.ledger.Global)
	}
}

// A controller that is started again reads its ledger as JSON: counts, windows, progress and the
// back-off go on as they were.
// shows: A50
func TestALedgerThatWasWrittenDownGoesOnWhereItWas(t *testing.T) {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) {
		r.Window, r.ForgiveAfter, r.EscalateAt = time.Hour, 40*time.Minute, 10
		r.BackOff = job.BackOff{Base: time.Second, Max: time.Minute, ResetAfter: time.Minute}
	})
	h.life(30*time.Minute, 200)
	for range 3 {
		h.fails(role.Exited, "critic")
	}
	h.fails(role.Exited, "actor")
	h.fails(role.Exited, "critic")
	h.fails(role.Exited, "critic")
	h.life(10*time.Minute, 300)
	h.ledger.Workers[restart.Worker{Role: "critic", Rank: 1}] = restart.SpentAlone{Restarts: 1, InARow: 2, Running: h.now}
	h.ledger.Times.Workers[restart.Worker{Role: "critic", Rank: 1}] = []time.Time{h.now}
	src, err := json.Marshal(h.ledger)
	if err != nil {
		t.Fatal(err)
	}
	var read restart.Ledger
	if err := json.Unmarshal(src, &read); err != nil {
		t.Fatal(err)
	}
	read = read.Clone()
	if diff := cmp.Diff(h.ledger, read); diff != "" {
		t.Fatalf("(-written +read):\n%s", diff)
	}
	if a, b := h.policy.Wait(h.ledger, "critic", 0.5), h.policy.Wait(read, "critic", 0.5); a != b || a == 0 {
		t.Errorf("it waits %s, would have waited %s", b, a)
	}
	for _, after := range []time.Duration{time.Minute, time.Hour} { // the back-off forgotten, the window over
		h.now = h.now.Add(after)
		if diff := cmp.Diff(h.ledger.Aged(h.policy, h.standing, h.now), read.Aged(h.policy, h.standing, h.now)); diff != "" {
			t.Errorf("after %s more (-written +read):\n%s", after, diff)
		}
	}
}

func TestALedgerOfAnEarlierVersionIsReadAndItsRestartsCount(t *testing.T) {
	var old restart.Ledger
	src := `{"Global":2,"Roles":{"critic":{"InPlace":2,"Hardware":1,"Preempted":0,"InARow":3,"Running":"2026-03-01T11:00:00Z","Idle":1,"BestStep":90,"EverBegan":true}},"Workers":{"critic/1":{"Restarts":1,"InARow":1,"Running":"0001-01-01T00:00:00Z"}}}`
	if err := json.Unmarshal([]byte(src), &old); err != nil {
		t.Fatal(err)
	}
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) { r.Window = time.Minute })
	h.ledger = old.Clone()
	h.later(24 * time.Hour)
	if h.ledger.Global != 2 || h.ledger.Roles["critic"].InPlace != 2 || h.ledger.Workers[restart.Worker{Role: "critic", Rank: 1}].Restarts != 1 {
		t.Errorf("%+v", h.ledger)
	}
	h.want(h.fails(role.Exited, "critic"), role.Global, restart.RoleBudgetSpent)
}
