package restart_test

import (
	"strings"
	"testing"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// engines is a history of a role whose four workers need no others.
func engines(t *testing.T) *history {
	h := newHistory(t)
	h.role(func(r *restart.RolePolicy) {
		r.Unit, r.MinAvailable, r.EscalateAt = job.UnitWorker, 2, 3
		r.BackOff = job.BackOff{Base: time.Second, Max: time.Minute, ResetAfter: time.Minute}
	})
	h.standing["critic"] = restart.Standing{Step: 100, Checkpoint: -1, Available: 3}
	return h
}

// dies lets one worker of the role die.
func (h *history) dies(rank int) restart.Decision {
	return h.failed(role.Failure{Life: role.Life{Role: "critic", Incarnation: 1, Rank: rank, Attempt: 1}, Cause: role.Exited})
}

func (h *history) available(n int) { h.standing["critic"] = restart.Standing{Available: n} }

func TestAWorkerAloneIsRestartedWhileEnoughOfTheOthersAreAvailable(t *testing.T) {
	h := engines(t)
	d := h.dies(2)
	h.want(d, role.InPlace, restart.WorkerCanRestart)
	if !d.Alone || d.Rank != 2 || h.ledger.Roles["critic"] != (restart.Spent{}) {
		t.Errorf("decided %+v, the role has spent %+v", d, h.ledger.Roles["critic"])
	}
	h.available(2)
	h.want(h.dies(1), role.InPlace, restart.WorkerCanRestart)
	h.available(1)
	d = h.dies(0)
	h.want(d, role.InPlace, restart.RoleCanStay)
	if d.Alone || !strings.HasPrefix(d.Why, "critic rank 0 cannot be restarted alone: 1 other is available, restart.min_available is 2; ") {
		t.Errorf("decided %+v", d)
	}
	if h.ledger.Roles["critic"].InPlace != 1 || len(h.ledger.Workers) != 0 {
		t.Errorf("after the role's restart: %+v", h.ledger)
	}
}

func TestTheRestartOfOneWorkerBeyondItsBudgetIsTheRoles(t *testing.T) {
	h := engines(t)
	for range 2 {
		h.want(h.dies(0), role.InPlace, restart.WorkerCanRestart)
		h.want(h.dies(1), role.InPlace, restart.WorkerCanRestart)
	}
	d := h.dies(1)
	h.want(d, role.InPlace, restart.RoleCanStay)
	if !strings.Contains(d.Why, "restart 3 of critic rank 1 alone") {
		t.Errorf("why: %s", d.Why)
	}
	h.want(h.dies(0), role.InPlace, restart.WorkerCanRestart) // forgiven
	h.role(func(r *restart.RolePolicy) { r.EscalateAt = 0 })
	for range 20 {
		h.want(h.dies(0), role.InPlace, restart.WorkerCanRestart)
	}
}

func TestWhatConcernsMoreThanOneWorkerIsTheRolesFailure(t *testing.T) {
	for _, f := range []role.Failure{
		{Life: role.Life{Role: "critic", Rank: role.NoRank}, Cause: role.Exited},
		{Life: role.Life{Role: "critic", Rank: 1}, Cause: role.Hardware},
		{Life: role.Life{Role: "critic", Rank: 1}, Cause: role.Preempted},
		{Life: role.Life{Role: "critic", Rank: role.NoRank}, Cause: role.Unrepaired},
	} {
		h := engines(t)
		f.Life.Incarnation = 1
		if d := h.failed(f); d.Alone || d.Rule != restart.RoleCanStay {
			t.Errorf("%s of rank %d: %+v", f.Cause, f.Life.Rank, d)
		}
	}
	h := engines(t)
	fatal := role.Failure{Life: role.Life{Role: "critic", Incarnation: 1, Rank: 1}, Cause: role.Reported, Fatal: true}
	h.want(h.failed(fatal), role.Stop, restart.Fatal)
}

func TestAWorkerThatKeepsFailingAloneWaitsLongerAndItsPeersDoNot(t *testing.T) {
	h := engines(t)
	h.role(func(r *restart.RolePolicy) { r.EscalateAt = 0 })
	wait := func(rank int) time.Duration {
		h.dies(rank)
		d := h.policy.WaitAlone(h.ledger, restart.Worker{Role: "critic", Rank: rank}, 0)
		h.ledger = h.ledger.BeganAlone(restart.Worker{Role: "critic", Rank: rank}, h.now)
		return d
	}
	for i, want := range []time.Duration{0, time.Second, 2 * time.Second} {
		if got := wait(0); got != want {
			t.Errorf("restart %d waits %s, want %s", i+1, got, want)
		}
	}
	if got := wait(1); got != 0 {
		t.Errorf("its peer waits %s", got)
	}
	h.now = h.now.Add(time.Minute)
	if got := wait(0); got != 0 {
		t.Errorf("after a minute of good behaviour it waits %s", got)
	}
}

func TestAPlanForOneWorkerLeavesServiceAndPlaceAlone(t *testing.T) {
	p := restart.WorkerPlan(restart.Worker{Role: "critic", Rank: 3})
	if !p.Alone || p.Rank != 3 || p.Action != role.InPlace {
		t.Errorf("plan %+v", p)
	}
	var verbs []string
	for _, m := range p.Moves {
		verbs = append(verbs, string(m.Verb))
	}
	if got := strings.Join(verbs, " "); got != "fence stop_service back_off run" {
		t.Errorf("moves %s", got)
	}
}
