package rpc

import (
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"vigil/api"
	"vigil/internal/role"
)

func TestHeartbeatsAreBatchedTheFirstAtOnceAndTheNewestStands(t *testing.T) {
	o := newOutbox()
	now := time.Unix(1000, 0)
	o.beat(&api.Beat{Life: WireLife(life(1, 0)), HasStep: true, Step: 1}, now)
	batch, _ := o.take(now)
	if len(batch) != 1 {
		t.Fatalf("the first heartbeat waits: %v", batch)
	}
	for step := range int64(5) {
		o.beat(&api.Beat{Life: WireLife(life(1, 0)), HasStep: true, Step: step + 2}, now.Add(time.Millisecond))
	}
	o.beat(&api.Beat{Life: WireLife(life(1, 0)), AgeMs: 5}, now.Add(10*time.Millisecond))
	o.beat(&api.Beat{Life: WireLife(life(1, 1)), HasStep: true, Step: 2}, now.Add(10*time.Millisecond))
	batch, wait := o.take(now.Add(20 * time.Millisecond))
	if len(batch) != 0 || wait != 30*time.Millisecond {
		t.Fatalf("20 ms after the last batch: %v, wait %v", batch, wait)
	}
	batch, _ = o.take(now.Add(50 * time.Millisecond))
	if len(batch) != 1 || len(batch[0].word.GetBeats().Beats) != 2 {
		t.Fatalf("50 ms after the last batch: %v", batch)
	}
	for _, b := range batch[0].word.GetBeats().Beats {
		if b.Life.Rank == 0 && (b.Step != 6 || b.AgeMs != 45) {
			t.Errorf("rank 0 says step %d, %d ms ago; want step 6, 45 ms ago", b.Step, b.AgeMs)
		}
	}
}

func TestWordsWaitInOrderWithTheirAgeAndTheOldestGoFirst(t *testing.T) {
	o := newOutbox()
	now := time.Unix(1000, 0)
	for i := range maxQueued + 3 {
		o.word(&api.FromService{Word: &api.FromService_Checkpoint{Checkpoint: &api.Checkpoint{Step: int64(i)}}}, now)
	}
	batch, _ := o.take(now)
	if len(batch) != maxQueued || batch[0].word.GetCheckpoint().Step != 3 || o.lost() != 3 || o.lost() != 0 {
		t.Errorf("%d words kept, the first is %v", len(batch), batch[0].word)
	}
	later := now.Add(10 * time.Minute)
	if age := batch[0].aged(later).GetCheckpoint().AgeMs; age != 600_000 {
		t.Errorf("the age is %d ms, want 600000", age)
	}
	o.sent(batch[0], later)
	o.word(failure("next"), later)
	o.broke(batch[1:2], later)
	batch, _ = o.take(later)
	if len(batch) != 3 || batch[0].word.GetCheckpoint().GetStep() != 3 || batch[1].word.GetCheckpoint().GetStep() != 4 {
		t.Errorf("after a break: %v; want what was sent just before, what was not sent, what came since", batch)
	}
	o.sent(batch[2], later)
	o.broke(nil, later.Add(sayAgain+time.Second))
	if !o.empty() {
		t.Error("what was sent long ago is said again")
	}
}

func TestPhasesAreDroppedBeforeFailuresAndSaidAgainAfterABreak(t *testing.T) {
	o := newOutbox()
	now := time.Unix(1000, 0)
	o.word(failure("first"), now)
	for range 2 * maxQueued {
		o.word(&api.FromService{Word: &api.FromService_Phase{Phase: &api.Phase{Name: "step", Begin: true}}}, now)
	}
	batch, _ := o.take(now)
	if len(batch) != maxQueued || batch[0].word.GetFailure() == nil {
		t.Errorf("%d words kept, the first is %v", len(batch), batch[0].word)
	}
	o.sent(batch[1], now)
	o.broke(nil, now)
	batch, _ = o.take(now)
	if len(batch) != 1 || batch[0].aged(now.Add(time.Second)).GetPhase().GetAgeMs() != 1000 {
		t.Errorf("after a break: %v", batch)
	}
}

func TestANewSessionDropsStatesAndAnswersOfTheOld(t *testing.T) {
	o := newOutbox()
	now := time.Unix(1000, 0)
	o.word(&api.FromService{Word: &api.FromService_Worker{Worker: &api.WorkerState{}}}, now)
	o.word(failure("kept"), now)
	o.word(&api.FromService{Word: &api.FromService_Answer{Answer: &api.Answer{}}}, now)
	o.fresh()
	if batch, _ := o.take(now); len(batch) != 1 || batch[0].word.GetFailure().GetDetail() != "kept" {
		t.Errorf("kept %v", batch)
	}
}

func TestTwoWordsOfOneExitCanBeCleanedWhileTheOtherIsSent(t *testing.T) {
	exit := &role.Exit{Code: 1, Tail: []string{"a\xffb"}}
	first, second := WireExit(exit), WireExit(exit)
	clean(first)
	if exit.Tail[0] != "a\xffb" || second.Tail[0] != "a\xffb" {
		t.Errorf("cleaning one word changed %q and %q", exit.Tail, second.Tail)
	}
}

func TestAFailureSurvivesTheWire(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, f := range []role.Failure{
		{Life: life(3, 2), Cause: role.Exited, Detail: "SIGKILL", At: now.Add(-time.Second), Log: "/x/rank2.log",
			Exit: &role.Exit{Signal: "SIGKILL", PID: 7, Sender: "oom-killer", Tail: []string{"a", "b"}}},
		{Life: role.Life{Job: testJob, Role: "critic", Incarnation: 3, Rank: role.NoRank}, Cause: role.PortTaken, Fatal: true, At: now},
		{Life: life(1, 0), Cause: role.Exited, At: now, Exit: &role.Exit{Code: 3, PID: 8}},
	} {
		got, err := readFailure(testJob, "critic", WireFailure(f, now).GetFailure(), now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(f, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestWhatTheWireCannotMeanIsRefusedOrBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	if f, err := readFailure(testJob, "critic", &api.Failure{Life: &api.Life{}, Cause: "gremlins"}, now); err != nil || f.Cause != role.Reported {
		t.Errorf("an unknown cause is read as %v, %v", f.Cause, err)
	}
	if _, err := readFailure(testJob, "critic", &api.Failure{}, now); err == nil {
		t.Error("a failure without a life is taken")
	}
	if _, err := readLife(testJob, "critic", &api.Life{Incarnation: math.MaxUint64}); err == nil {
		t.Error("an incarnation beyond all bounds is taken")
	}
	if _, err := readWorker(testJob, "critic", &api.WorkerState{Life: &api.Life{}, State: "dancing"}); err == nil {
		t.Error("a worker state that is none is taken")
	}
	if _, err := readWorker(testJob, "critic", nil); err == nil {
		t.Error("no worker state is taken")
	}
	if got := before(now, -5); got != now {
		t.Errorf("a negative age gives %v", got)
	}
	if got := before(now, math.MaxInt64); got != now.Add(-24*time.Hour) {
		t.Errorf("an endless age gives %v", got)
	}
	if got := readExit(&api.Exit{Signal: 199}); got.Signal != "signal 199" {
		t.Errorf("an unknown signal is %q", got.Signal)
	}
	if got := readExit(&api.Exit{Signal: int32(syscall.SIGTERM)}); got.Signal != "SIGTERM" {
		t.Errorf("SIGTERM is %q", got.Signal)
	}
}

func TestEveryTextIsMadeValid(t *testing.T) {
	w := &api.FromService{Word: &api.FromService_Hello{Hello: &api.Hello{Workers: []*api.WorkerState{{
		Status: "a\xffb", Exit: &api.Exit{Sender: "\xfe", Tail: []string{"ok", strings.Repeat("\xc3", 3)}},
	}}}}}
	if _, err := proto.Marshal(w); err == nil {
		t.Fatal("the word is fine already")
	}
	clean(w)
	if _, err := proto.Marshal(w); err != nil {
		t.Error(err)
	}
	if got := w.GetHello().Workers[0].Status; got != "a\ufffdb" {
		t.Errorf("status is %q", got)
	}
}
