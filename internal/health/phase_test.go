package health_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/role"
)

// withPhases is the limits with these of phases.
func withPhases(l health.Limits, phases map[string]time.Duration) health.Limits {
	l.Phases = phases
	return l
}

func (b *bed) open(name string) health.Heard  { return b.Phase(b.life(0), name, true, b.now, b.now) }
func (b *bed) close(name string) health.Heard { return b.Phase(b.life(0), name, false, b.now, b.now) }

// train makes rank 0 step once a second, so often that its rhythm is known.
func (b *bed) train(from int) {
	for i := range 6 {
		b.pass(time.Second)
		b.beat(0, int64(from+i))
	}
}

// stand lets time pass in which rank 0 sends heartbeats without a step.
func (b *bed) stand(d time.Duration) {
	for end := b.now.Add(d); b.now.Before(end); {
		b.pass(time.Second)
		b.Beat(health.Word{Life: b.life(0), At: b.now}, b.now)
	}
}

func (b *bed) detail(parts ...string) {
	b.Helper()
	for _, part := range parts {
		if len(b.found) == 0 || !strings.Contains(b.found[0].Detail, part) {
			b.Errorf("found %+v, want %q in its detail", b.found, part)
		}
	}
}

// shows: A22
func TestAPhaseThatIsOpenForTooLongIsStuckAlthoughHeartbeatsCome(t *testing.T) {
	b := newBed(t, critic(1, withPhases(explicit, map[string]time.Duration{"step": 10 * time.Minute})))
	b.train(1)
	b.open("step")
	b.stand(10 * time.Minute)
	b.wants()
	b.stand(2 * time.Second)
	b.wants(role.Stuck)
	b.detail("phase step is open for 10m1s (limit 10m0s)", "its last word is")
}

// shows: A22
func TestALimitOfAPhaseGovernsSilenceInItAndOneThatSaysNothingInItIsSilent(t *testing.T) {
	b := newBed(t, critic(1, withPhases(explicit, map[string]time.Duration{"checkpoint": 15 * time.Minute})))
	b.train(1)
	b.open("checkpoint")
	b.pass(14 * time.Minute) // seven times the heartbeat limit
	b.wants()
	b.close("checkpoint")
	b.train(7)
	b.open("checkpoint")
	b.pass(15*time.Minute + 2*time.Second)
	b.wants(role.Silent)
	b.detail("no heartbeat for 15m1s in phase checkpoint (limit 15m0s)")
}

// shows: A22
func TestTimeOutsidePhasesIsJudgedByTheHeartbeatLimit(t *testing.T) {
	b := newBed(t, critic(1, withPhases(explicit, map[string]time.Duration{"checkpoint": 15 * time.Minute})))
	b.train(1)
	b.open("checkpoint")
	b.pass(10 * time.Minute)
	b.close("checkpoint")
	b.pass(2 * time.Minute)
	b.wants()
	b.pass(2 * time.Second)
	b.wants(role.Silent)
	b.detail("no heartbeat for 2m1s (timeout 2m0s)")
}

// shows: A22
func TestAnExpiredOuterPhaseCountsWhileAnInnerOneIsFresh(t *testing.T) {
	b := newBed(t, critic(1, withPhases(explicit, map[string]time.Duration{"epoch": 5 * time.Minute, "batch": time.Minute})))
	b.train(1)
	b.open("epoch")
	for range 10 {
		b.open("batch")
		b.pass(30 * time.Second)
		b.close("batch")
	}
	b.wants()
	b.open("batch")
	b.pass(2 * time.Second)
	b.wants(role.Stuck)
	b.detail("phase epoch is open for 5m")
}

// shows: A22
func TestTheEndOfAPhaseThatIsNotOpenIsToldOncePerLifeAndIsNoFailure(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	if heard := b.close("eval"); heard != health.HeardNotOpen {
		t.Errorf("the first is %s", heard)
	}
	if heard := b.close("eval"); heard != health.HeardNext {
		t.Errorf("the second is %s", heard)
	}
	b.pass(time.Minute)
	b.wants()
	b.restart("critic", 0)
	if heard := b.close("eval"); heard != health.HeardNotOpen {
		t.Errorf("that of the next life is %s", heard)
	}
}

func TestASeventeenthPhaseIsNotTakenAndTheSixteenAreKept(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	for i := range health.MaxPhases {
		if heard := b.open(fmt.Sprint("p", i)); heard != health.HeardNext {
			t.Fatalf("phase %d is %s", i, heard)
		}
	}
	if heard := b.open("one more"); heard != health.HeardTooMany {
		t.Errorf("it is %s", heard)
	}
	if open := b.record("critic").Ranks[0].Phases; len(open) != health.MaxPhases || open[0].Name != "p0" {
		t.Errorf("open are %v", open)
	}
}

// shows: A29
func TestAMissedBeginDoesNotBlindTheDetectorAndAMissedEndDoesNotCount(t *testing.T) {
	l := withPhases(explicit, map[string]time.Duration{"step": 3 * time.Minute})
	b := newBed(t, critic(1, l))
	b.train(1)
	b.close("step") // its begin was lost
	b.pass(2*time.Minute + 2*time.Second)
	b.wants(role.Silent)

	b = newBed(t, critic(1, l))
	b.train(1)
	for range 10 { // each end was lost
		b.open("step")
		b.pass(time.Minute)
	}
	b.wants()
}

// shows: A25
func TestTheLimitOfAPhaseIsLearnedFromTheTimesThatItWasSurvived(t *testing.T) {
	b := newBed(t, critic(2, learned))
	b.train(1)
	spell := func(d time.Duration) {
		b.open("checkpoint")
		b.pass(d)
		b.close("checkpoint")
	}
	limit := func(want time.Duration) {
		t.Helper()
		b.Phase(b.life(0), "checkpoint", true, b.now, b.now)
		if p := b.record("critic").Ranks[0].Phases; len(p) != 1 || p[0].Limit != want {
			t.Errorf("the phase is %+v, want the limit %s", p, want)
		}
		b.Phase(b.life(0), "checkpoint", false, b.now, b.now)
	}
	spell(time.Minute)
	spell(20 * time.Minute) // under the start limit while too little is known
	limit(0)
	spell(time.Minute)
	limit(40 * time.Minute) // five times 20 min, and no more than twice the longest of the newest
	if r := b.record("critic"); r.Limit != 2*time.Minute {
		t.Errorf("silence in a phase has become the role's rhythm: %s", r.Limit)
	}
	for range 3 {
		b.Phase(b.life(1), "checkpoint", true, b.now.Add(-22*time.Minute), b.now)
		b.Phase(b.life(1), "checkpoint", false, b.now, b.now)
	}
	limit(44 * time.Minute) // the maximum over ranks
	b.restart("critic", 7)
	limit(44 * time.Minute) // merged over lives
	b.wants()
}

func TestAPhaseInWhichStepsAreMadeIsJudgedByTheStepsAlone(t *testing.T) {
	b := newBed(t, critic(1, learned))
	for range 5 { // short epochs first
		b.open("epoch")
		b.pass(time.Second)
		b.close("epoch")
	}
	b.open("epoch")
	for i := range 3600 { // and then one that lasts long
		b.pass(time.Second)
		b.beat(0, int64(i))
	}
	b.wants()
	b.pass(2*time.Minute + 2*time.Second) // a hang in it is found by the rhythm of the steps
	b.wants(role.Silent)
	b.detail("timeout 2m0s", "in phase epoch")
}

// shows: A30
func TestAPhaseThatIsOpenAtARestartIsNotOpenInTheNextLife(t *testing.T) {
	b := newBed(t, critic(1, withPhases(explicit, map[string]time.Duration{"checkpoint": 15 * time.Minute})))
	b.train(1)
	b.open("checkpoint")
	b.pass(10 * time.Minute)
	b.restart("critic", 6)
	b.beat(0, 7)
	if open := b.record("critic").Ranks[0].Phases; len(open) > 0 {
		t.Errorf("open are %v", open)
	}
	b.pass(2 * time.Minute)
	b.wants()
	b.pass(2 * time.Second)
	b.wants(role.Silent)
	b.detail("timeout 2m0s")
}

// shows: A28
func TestInThePausedPhaseARankIsNotWatchedForAsLongAsTheStartLimitAndThenItIs(t *testing.T) {
	l := withPhases(explicit, map[string]time.Duration{"epoch": time.Minute})
	b := newBed(t, critic(1, l))
	b.train(1)
	b.open("epoch")
	b.pass(30 * time.Second)
	b.open(health.PausedPhase)
	b.pass(29 * time.Minute)
	b.wants()
	b.close(health.PausedPhase)
	b.pass(25 * time.Second) // the phase around it has had a minute less the pause
	b.wants()
	b.pass(7 * time.Second)
	b.wants(role.Stuck)
	b.detail("phase epoch")

	b = newBed(t, critic(1, l))
	b.train(1)
	b.open(health.PausedPhase)
	b.pass(30*time.Minute + 2*time.Second)
	b.wants(role.Silent)
	b.detail("in phase paused (limit 30m0s)")
}

// shows: A23
func TestTheFirstGapOfALifeIsUnderTheStartLimitAndTeachesNothing(t *testing.T) {
	b := newBed(t, critic(1, learned))
	b.train(1)
	b.train(7)
	b.restart("critic", 12)
	b.beat(0, 13)
	b.pass(28 * time.Minute) // it compiles
	b.wants()
	b.beat(0, 14)
	if r := b.record("critic"); r.Limit != 2*time.Minute {
		t.Errorf("the limit has become %s", r.Limit)
	}
	b.pass(2*time.Minute + 2*time.Second)
	b.wants(role.Silent)
}

// shows: A23
func TestAGivenWarmUpHoldsForItsStepsOfEachLifeAndNoLonger(t *testing.T) {
	l := explicit
	l.WarmUp = job.WarmUp{Steps: 3, Limit: 10 * time.Minute}
	b := newBed(t, critic(1, l))
	for life := range 2 {
		for i := range 3 {
			b.beat(0, int64(10*life+i))
			b.pass(9 * time.Minute)
		}
		b.wants()
		b.restart("critic", int64(10*life+3))
	}
	for i := range 4 {
		b.beat(0, int64(30+i))
	}
	b.pass(2*time.Minute + 2*time.Second)
	b.wants(role.Silent)
	b.detail("timeout 2m0s")
}

func (b *bed) guess(n int64) {
	b.Beat(health.Word{Life: b.life(0), Step: &n, At: b.now, Guessed: true}, b.now)
}

// shows: A23
func TestALimitOnGuessedStepsMakesSuspectAndOnlyTheStartLimitFails(t *testing.T) {
	b := newBed(t, critic(1, learned))
	for i := range 6 {
		b.pass(time.Second)
		b.guess(int64(i))
	}
	var suspects []health.Suspect
	silent := func(d time.Duration) {
		for end := b.now.Add(d); b.now.Before(end); {
			b.now = b.now.Add(time.Second)
			suspects = append(suspects, b.sweep().Suspects...)
		}
	}
	silent(3 * time.Minute)
	b.wants()
	if len(suspects) != 1 || !strings.Contains(suspects[0].Detail, "its steps are guessed") || suspects[0].Life != b.life(0) {
		t.Fatalf("suspects are %+v, want one", suspects)
	}
	if r := b.record("critic"); !strings.HasPrefix(r.Doubt, "rank 0 is suspect: no heartbeat for") || !strings.Contains(r.Watched, "its steps are guessed") {
		t.Errorf("doubt %q, watched by %q", r.Doubt, r.Watched)
	}
	b.guess(7)
	if r := b.record("critic"); r.Doubt != "" || len(b.found) > 0 {
		t.Errorf("after its next step: doubt %q, found %v", r.Doubt, b.found)
	}
	suspects = nil
	silent(30 * time.Minute)
	b.wants()
	silent(2 * time.Second)
	b.wants(role.Silent)
	if len(suspects) != 1 {
		t.Errorf("suspects are %+v", suspects)
	}
}

// shows: A23
func TestGuessedStepsAreJudgedByALimitThatWasGivenAndByTheProgramsOwnWord(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.guess(1)
	b.pass(2*time.Minute + 2*time.Second)
	b.wants(role.Silent)

	b = newBed(t, critic(1, learned))
	b.guess(1)
	b.train(2)
	b.pass(2*time.Minute + 2*time.Second)
	b.wants(role.Silent)
}

func TestTimeInWhichARankWaitsForACPUIsNotItsSilence(t *testing.T) {
	b := newBed(t, critic(1, withPhases(explicit, map[string]time.Duration{"step": 3 * time.Minute})))
	b.train(1)
	b.open("step")
	for range 600 {
		b.pass(time.Second)
		b.Starved(b.life(0), time.Second, b.now)
	}
	b.wants()
	if r := b.record("critic"); !strings.HasPrefix(r.Doubt, "rank 0 is starved") {
		t.Errorf("doubt %q", r.Doubt)
	}
	for range 91 { // it is let run, and does nothing
		b.pass(2 * time.Second)
		b.Starved(b.life(0), 0, b.now)
	}
	b.wants(role.Silent)
}

func TestWhatIsSaidOfAnEarlierLifesPhasesAndHungerIsDropped(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	old := b.life(0)
	b.restart("critic", 0)
	if heard := b.Phase(old, "step", true, b.now, b.now); heard != health.HeardStale {
		t.Errorf("the phase is %s", heard)
	}
	if heard := b.Starved(old, time.Minute, b.now); heard != health.HeardStale {
		t.Errorf("the hunger is %s", heard)
	}
}

func TestAPhaseThatRunsOutWhileItsRankSpeaksIsStuckAlsoIfItWasSilentBefore(t *testing.T) {
	b := newBed(t, critic(1, withPhases(explicit, map[string]time.Duration{"step": time.Minute})))
	b.train(1)
	b.Starved(b.life(0), 0, b.now) // it was silent for a moment, and its service has looked
	b.open("step")
	for range 70 {
		b.pass(time.Second)
		b.Beat(health.Word{Life: b.life(0), At: b.now}, b.now)
	}
	b.wants(role.Stuck)
}

// Whatever is said of a silence it has an end: no more of it is credited than the start limit, also with an explicit
// limit. A word begins anew.
//
// shows: FAULT-E2
func TestTheCreditForLackOfCPUHasAnEnd(t *testing.T) {
	for name, limits := range map[string]health.Limits{"a limit that was given": explicit, "a learned one": learned} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, critic(1, limits))
			for step := range int64(6) {
				b.pass(time.Second)
				b.beat(0, step)
			}
			starve := func(d time.Duration) {
				for end := b.now.Add(d); b.now.Before(end); {
					b.pass(time.Second)
					b.Starved(b.life(0), 990*time.Millisecond, b.now)
				}
			}
			starve(29 * time.Minute)
			b.wants()
			b.beat(0, 6)
			starve(30 * time.Minute)
			b.wants()
			if r := b.record("critic"); !strings.Contains(r.Ranks[0].Starved, "29m42s of its silence do not count") {
				t.Errorf("it is shown as %q", r.Ranks[0].Starved)
			}
			starve(2 * time.Minute)
			if r := b.record("critic"); !strings.Contains(r.Ranks[0].Starved, "30m0s of its silence do not count, more is not credited") {
				t.Errorf("it is shown as %q", r.Ranks[0].Starved)
			}
			starve(time.Minute)
			b.wants(role.Silent)
		})
	}
}

// A worker that never speaks is shown as starved while it is, and no longer when it has its CPU. One that speaks is the
// other member: it needs not have spoken for that. It is told once.
//
// shows: FAULT-M6
func TestAWorkerThatHasItsCPUAgainIsNotStarved(t *testing.T) {
	for name, speaks := range map[string]bool{"one that never speaks": false, "one that speaks": true} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, critic(1, explicit))
			if speaks {
				b.beat(0, 1)
			}
			look := func(waited time.Duration, want health.Heard) {
				t.Helper()
				b.pass(time.Second)
				if heard := b.Starved(b.life(0), waited, b.now); heard != want {
					t.Errorf("heard as %s, want %s", heard, want)
				}
				r := b.record("critic")
				if starved := waited > 0; starved != (r.Ranks[0].Starved != "") || starved != (r.Doubt != "") {
					t.Errorf("having waited for %s it is shown as %q, %q", waited, r.Ranks[0].Starved, r.Doubt)
				}
			}
			look(time.Second, health.HeardFirst)
			look(time.Second, health.HeardNext)
			look(0, health.HeardNext)
			look(time.Second, health.HeardNext)
			look(0, health.HeardNext)
		})
	}
}
