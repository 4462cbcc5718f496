package rpc

import (
	"math"
	"slices"
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

func TestWordsWaitInOrderWithTheirAge(t *testing.T) {
	o := newOutbox()
	now := time.Unix(1000, 0)
	o.word(failure("first"), now)
	o.word(checkpointOf(0, 4), now)
	batch, _ := o.take(now)
	later := now.Add(10 * time.Minute)
	for i, want := range []int64{600_000, 600_000} {
		w := batch[i].aged(later)
		if got := max(w.GetFailure().GetAgeMs(), w.GetCheckpoint().GetAgeMs()); got < want || got > want+1000 {
			t.Errorf("word %d is told with an age of %d ms, want %d", i, got, want)
		}
	}
	if batch[1].word.GetCheckpoint().AgeMs != 0 {
		t.Error("the word itself was changed")
	}
	o.word(failure("next"), later)
	o.broke(batch[1:])
	batch, _ = o.take(later)
	if len(batch) != 2 || batch[0].word.GetCheckpoint().GetStep() != 4 || batch[1].word.GetFailure().GetDetail() != "next" {
		t.Errorf("after a break: %v; want what was not sent, then what came since", batch)
	}
	if !o.empty() {
		t.Error("something waits that was taken")
	}
}

func checkpointOf(rank int, step int64) *api.FromService {
	return &api.FromService{Word: &api.FromService_Checkpoint{Checkpoint: &api.Checkpoint{Life: WireLife(life(1, rank)), Step: step}}}
}

func phaseOf(rank int, name string, begin bool) *api.FromService {
	return &api.FromService{Word: &api.FromService_Phase{Phase: &api.Phase{Life: WireLife(life(1, rank)), Name: name, Begin: begin}}}
}

func noticeOf(rank int, text string) *api.FromService {
	return &api.FromService{Word: &api.FromService_Notice{Notice: &api.Notice{Life: WireLife(life(1, rank)), Text: text}}}
}

func stateOf(rank int, state string) *api.FromService {
	return &api.FromService{Word: &api.FromService_Worker{Worker: &api.WorkerState{Life: WireLife(life(1, rank)), State: state}}}
}

// While nobody takes what waits (a controller that was stopped, or is away), a failure and a checkpoint stand against
// whatever workers chatter: looks at their CPU time, states, phases, notices, checkpoints, further failures of another
// life. What waits is bounded, and what is dropped is counted.
//
// shows: FAULT-D1
func TestNoChatterPushesOutAFailureOrACheckpoint(t *testing.T) {
	slow(t)
	chatter := map[string]func(n int) *api.FromService{
		"looks at CPU time": func(n int) *api.FromService {
			return &api.FromService{Word: &api.FromService_Starved{Starved: &api.Starved{Life: WireLife(life(1, n%64)), WaitedMs: 5}}}
		},
		"states":         func(n int) *api.FromService { return stateOf(n%64, "ready") },
		"phases":         func(n int) *api.FromService { return phaseOf(n%64, "step", n/64%2 == 0) },
		"odd phases":     func(n int) *api.FromService { return phaseOf(n%64, strings.Repeat("x", n/64%50), false) },
		"notices":        func(n int) *api.FromService { return noticeOf(n%64, strings.Repeat("y", n/64)) },
		"checkpoints":    func(n int) *api.FromService { return checkpointOf(1+n%63, int64(n)) },
		"other failures": func(n int) *api.FromService { return failureOf(1+n%63, "again") },
	}
	for name, say := range chatter {
		t.Run(name, func(t *testing.T) {
			o := newOutbox()
			now := time.Unix(1000, 0)
			o.word(failureOf(0, "loss is NaN"), now)
			o.word(checkpointOf(0, 4000), now)
			const said = 64 * 270 // nine minutes of looks at 64 workers
			for n := range said {
				o.word(say(n), now)
			}
			batch, _ := o.take(now)
			failed := slices.ContainsFunc(batch, func(q queued) bool { return q.word.GetFailure().GetDetail() == "loss is NaN" })
			saved := slices.ContainsFunc(batch, func(q queued) bool { return q.word.GetCheckpoint().GetStep() == 4000 })
			if !failed || !saved {
				t.Errorf("failure kept: %v, checkpoint kept: %v", failed, saved)
			}
			if len(batch) > 2+64*maxPerLife {
				t.Errorf("%d words wait", len(batch))
			}
			kept := uint64(len(batch) - 2)
			if lost := o.lost(); maxPerLife*64 < said && kept == maxPerLife*64 && lost != said-kept {
				t.Errorf("%d of %d words were kept and %d counted as dropped", kept, said, lost)
			}
		})
	}
}

func TestOfPhasesThatWaitTheEndedGoFirstAndTheOpenStand(t *testing.T) {
	o := newOutbox()
	now := time.Unix(1000, 0)
	o.word(phaseOf(0, "epoch", true), now)
	for range maxPerLife {
		o.word(phaseOf(0, "eval", true), now)
		o.word(phaseOf(0, "eval", false), now)
	}
	o.word(phaseOf(0, "save", true), now)
	batch, _ := o.take(now)
	if len(batch) > maxPerLife || batch[0].word.GetPhase().Name != "epoch" || batch[len(batch)-1].word.GetPhase().Name != "save" {
		t.Errorf("%d words kept: %v ... %v", len(batch), batch[0].word, batch[len(batch)-1].word)
	}
	if o.lost() == 0 {
		t.Error("nothing is counted as dropped")
	}
}

func TestTimesOfSeveralLooksAtOneWorkerAddUp(t *testing.T) {
	o := newOutbox()
	now := time.Unix(1000, 0)
	for range 3 {
		o.word(&api.FromService{Word: &api.FromService_Starved{Starved: &api.Starved{Life: WireLife(life(1, 0)), WaitedMs: 700}}}, now)
	}
	if batch, _ := o.take(now); len(batch) != 1 || batch[0].word.GetStarved().WaitedMs != 2100 {
		t.Errorf("told %v", batch)
	}
}

// A heartbeat that a broken stream has not taken is as old as it is, alone, beside a newer one, and when it had waited
// before; the same of every other word that has an age.
//
// shows: FAULT-D2
func TestWordsOfABrokenStreamKeepTheirAge(t *testing.T) {
	now := time.Unix(1000, 0)
	beat := func(rank int, step, age int64) *api.Beat {
		return &api.Beat{Life: WireLife(life(1, rank)), HasStep: step > 0, Step: step, Guessed: step > 0, AgeMs: age}
	}
	o := newOutbox()
	o.beat(beat(0, 7, 2000), now) // said two seconds ago
	o.beat(beat(1, 8, 0), now)
	for _, w := range []*api.FromService{failure("NaN"), checkpointOf(0, 7), phaseOf(0, "save", true)} {
		o.word(w, now)
	}
	batch, _ := o.take(now)
	o.beat(beat(1, 0, 0), now.Add(time.Minute)) // a sign of life without a step
	o.broke(batch)
	batch, _ = o.take(now.Add(2 * time.Minute))
	later := now.Add(5 * time.Minute)
	seen := 0
	for _, q := range batch {
		w := q.aged(later)
		for _, b := range w.GetBeats().GetBeats() {
			seen++
			want := beat(0, 7, 302_000)
			if b.Life.Rank == 1 {
				want = beat(1, 8, 240_000)
			}
			if !proto.Equal(b, want) {
				t.Errorf("told %v, want %v", b, want)
			}
		}
		if w.GetBeats() == nil {
			seen++
			if age := max(w.GetFailure().GetAgeMs(), w.GetCheckpoint().GetAgeMs(), w.GetPhase().GetAgeMs()); age < 300_000 || age > 301_000 {
				t.Errorf("%v is told with an age of %d ms", w, age)
			}
		}
	}
	if seen != 5 {
		t.Errorf("%d of 5 words are told", seen)
	}
}

func TestANewSessionDropsWhatItsHelloTells(t *testing.T) {
	o := newOutbox()
	now := time.Unix(1000, 0)
	o.word(stateOf(0, "ready"), now)
	o.word(failure("in the hello"), now)
	o.word(&api.FromService{Word: &api.FromService_Answer{Answer: &api.Answer{}}}, now)
	o.beat(&api.Beat{Life: WireLife(life(1, 0)), HasStep: true, Step: 6}, now)
	o.toldByHello()
	o.word(failure("after it"), now)
	batch, _ := o.take(now)
	if len(batch) != 2 || batch[0].word.GetBeats() == nil || batch[1].word.GetFailure().GetDetail() != "after it" {
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
