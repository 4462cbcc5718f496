package restart_test

import (
	"testing"
	"time"

	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// diary writes down what a policy decides about failures of critic, one a minute, as a run would.
func (h *history) diary(failures ...role.Failure) []restart.Past {
	var past []restart.Past
	for _, f := range failures {
		h.now = h.now.Add(time.Minute)
		f.At = h.now.Add(-time.Second)
		h.ledger = h.ledger.Began("critic", h.now.Add(-50*time.Second))
		d := h.failed(f)
		past = append(past, restart.Past{Failure: f, Step: 100, Decided: h.now, Action: d.Action, Rule: d.Rule, Started: h.now.Add(time.Second)})
	}
	return past
}

func TestTheSamePolicyDecidesARunOfThePastAsItWasDecidedThen(t *testing.T) {
	h := newHistory(t)
	died := critic(role.Exited, &role.Exit{Code: 1}, "exit code 1")
	past := h.diary(died, died, critic(role.Hardware, nil, "Xid 79"), died, died, died)
	for i, r := range restart.Replay(h.policy, past) {
		if r.Differs() || r.Over || len(r.Past) != 1 {
			t.Errorf("%d: %+v, then %s by %s", i, r.Now, r.Past[0].Action, r.Past[0].Rule)
		}
	}
}

func TestAnotherPolicyDecidesOtherwiseAndAStopIsSeen(t *testing.T) {
	h := newHistory(t)
	died := critic(role.Exited, &role.Exit{Code: 3}, "exit code 3")
	past := h.diary(critic(role.Silent, nil, "no heartbeat"), died, died)
	h.role(func(r *restart.RolePolicy) { r.Rules = []job.RoleRule{{Exits: []int{3}, Action: role.Stop}} })
	got := restart.Replay(h.policy, past)
	if got[0].Differs() || !got[1].Differs() || got[1].Now.Rule != restart.RoleRule || got[1].Over || !got[2].Over {
		t.Errorf("%+v", got)
	}
}

func TestFailuresThatWereDecidedTogetherAreReplayedTogetherAndInTheirOrder(t *testing.T) {
	h := newHistory(t)
	one, other := critic(role.Exited, nil, "one"), critic(role.Exited, nil, "other")
	other.Life.Role = "actor"
	together, late := noon.Add(time.Hour), noon.Add(2*time.Hour)
	got := restart.Replay(h.policy, []restart.Past{{ID: "3", Failure: one, Decided: late}, {ID: "1", Failure: one, Decided: together}, {ID: "2", Failure: other, Decided: together}})
	if len(got) != 2 || len(got[0].Past) != 2 || got[0].Now.Action != role.Global || got[1].Past[0].ID != "3" {
		t.Errorf("%+v", got)
	}
}

func TestAReplayCountsLivesWithoutProgress(t *testing.T) {
	h := newHistory(t)
	died := critic(role.Exited, nil, "exit code 1")
	past := h.diary(died, died, died)
	for i := range past {
		past[i].Step = 0
	}
	h.policy.NoProgressLives = 2
	got := restart.Replay(h.policy, past)
	if got[0].Now.Rule != restart.RoleCanStay || got[1].Now.Rule != restart.NoProgress {
		t.Errorf("%+v", got)
	}
	h.policy.NoProgressLives = 1
	if got := restart.Replay(h.policy, past); got[0].Now.Rule != restart.NoProgress {
		t.Errorf("the first life is not counted: %+v", got[0])
	}
}
