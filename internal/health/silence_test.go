package health_test

import (
	"bufio"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/role"
)

// shows: R9 R10 A21
func TestSilenceBeyondTheLimitThatWasGivenIsFoundAndNotBefore(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.pass(500 * time.Millisecond)
	b.beat(0, 1)
	b.pass(119500 * time.Millisecond)
	b.wants()
	b.pass(time.Second)
	b.wants(role.Silent)
	if f := b.found[0]; !f.At.Equal(noon.Add(500*time.Millisecond)) || !strings.Contains(f.Detail, "timeout 2m0s") {
		t.Errorf("the failure is %+v, want it to have begun with the last word", f)
	}
	if r := b.record("critic"); r.Healthy || !strings.Contains(r.Error, "no heartbeat for") {
		t.Errorf("the record is %+v", r)
	}
}

// shows: A20
func TestARankThatIsExpectedToSpeakAndNeverDoesFailsAtTheStartLimit(t *testing.T) {
	always := explicit
	always.Expect = job.Always
	b := newBed(t, critic(1, always))
	b.pass(30 * time.Minute)
	b.wants()
	b.pass(2 * time.Second)
	b.wants(role.NoStart)
}

func TestAProgramThatNeverSpeaksIsWatchedForItsExitOnlyAndTheRecordSaysSo(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.pass(3 * time.Hour)
	b.wants()
	if r := b.record("critic"); !strings.HasPrefix(r.Watched, "exit only") || r.Ranks[0].Expected {
		t.Errorf("watched by %q", r.Watched)
	}
}

func TestSilenceNeverCountsWhereTheJobSaysSo(t *testing.T) {
	never := explicit
	never.Expect = job.Never
	b := newBed(t, critic(1, never))
	b.beat(0, 1)
	b.pass(3 * time.Hour)
	b.wants()
}

// shows: A30
func TestThatARoleHasSpokenIsRememberedOverARestartAndItsClocksAreNot(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.beat(0, 1)
	b.pass(100 * time.Second)
	b.restart("critic", 1)
	b.pass(29 * time.Minute) // beyond the limit of the old life's silence
	b.wants()
	b.pass(2 * time.Minute)
	b.wants(role.NoStart)
}

// shows: R58
func TestAWorkerThatIsNeverReadyFailsAtTheStartLimit(t *testing.T) {
	b := newBed(t, health.Spec{Name: "critic", Workers: 2, Probed: true, Limits: explicit})
	b.Worker(b.life(0), 1, role.WorkerStarting, "")
	b.Worker(b.life(1), 2, role.WorkerReady, "")
	b.pass(30 * time.Minute)
	b.wants()
	b.pass(2 * time.Second)
	b.wants(role.NotReady)
}

// readTrace returns the times at which the worker of the trace spoke.
func readTrace(t *testing.T) []time.Duration {
	f, err := os.Open("testdata/long_steps.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var trace []time.Duration
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		s, err := strconv.ParseFloat(lines.Text(), 64)
		if err != nil {
			t.Fatal(err)
		}
		trace = append(trace, time.Duration(s*float64(time.Second)))
	}
	if len(trace) < 20 {
		t.Fatalf("the trace has %d heartbeats", len(trace))
	}
	return trace
}

// steps turns times into gaps.
func steps(trace []time.Duration) []time.Duration {
	gaps := []time.Duration{trace[0]}
	for i := range trace[1:] {
		gaps = append(gaps, trace[i+1]-trace[i])
	}
	return gaps
}

// shows: R9 A25
func TestARecordedRunWithLongStepsRaisesNothing(t *testing.T) {
	gaps := steps(readTrace(t))
	chance := rand.New(rand.NewPCG(1, 2))
	for round := range 6 {
		b := newBed(t, critic(1, learned))
		for life := range 2 {
			for i, gap := range gaps {
				if round > 0 { // a fifth more or less; the first step stays within the start limit
					gap = min(time.Duration(float64(gap)*(0.8+0.4*chance.Float64())), 30*time.Minute-time.Second)
				}
				b.pass(gap)
				b.beat(0, int64(100*life+i))
			}
			b.restart("critic", int64(100*life+len(gaps)))
		}
		b.wants()
	}
}

// shows: A25
func TestALimitIsLearnedFromTheLongestGapAndNotFromTooFew(t *testing.T) {
	b := newBed(t, critic(1, learned))
	limit := func(want time.Duration, known bool) {
		t.Helper()
		if r := b.record("critic"); r.Limit != want || r.Learned != known {
			t.Errorf("the limit is %s (learned: %v), want %s (%v)", r.Limit, r.Learned, want, known)
		}
	}
	limit(30*time.Minute, false)
	b.beat(0, 1)
	for i, gap := range []time.Duration{time.Minute, 2 * time.Minute} {
		b.pass(gap)
		b.beat(0, int64(2+i))
		limit(30*time.Minute, false)
	}
	b.pass(time.Minute)
	b.beat(0, 10)
	limit(10*time.Minute, true)
	b.restart("critic", 10)
	limit(10*time.Minute, true) // merged over lives
	b.beat(0, 11)
	b.pass(time.Second)
	b.beat(0, 12)
	b.pass(10 * time.Minute)
	b.wants()
	b.pass(2 * time.Second)
	b.wants(role.Silent)
}

func TestALearnedLimitIsNeverUnderItsFloor(t *testing.T) {
	b := newBed(t, critic(1, learned))
	for i := range 20 {
		b.pass(time.Second)
		b.beat(0, int64(i))
	}
	b.pass(2 * time.Minute)
	b.wants()
	b.pass(2 * time.Second)
	b.wants(role.Silent)
}

// shows: A25
func TestTwoRanksOfDifferentRhythmAreJudgedByTheSlowerOne(t *testing.T) {
	b := newBed(t, critic(2, learned))
	b.beat(1, 0)
	for i := range 4 * 12 * 60 { // rank 0 speaks each second, rank 1 each twelve minutes
		b.pass(time.Second)
		b.beat(0, int64(i))
		if i > 0 && i%(12*60) == 0 {
			b.beat(1, int64(i))
		}
	}
	b.wants()
	b.pass(17 * time.Minute) // rank 1 spoke twelve minutes ago, and may be silent for as long as the start limit
	b.wants()
	b.pass(14 * time.Minute)
	if len(b.found) != 2 {
		t.Errorf("found %v, want both ranks", b.found)
	}
}

// shows: A29
func TestOneSilentRankOfManyIsNamed(t *testing.T) {
	b := newBed(t, critic(50, explicit))
	for i := range 200 {
		b.pass(time.Second)
		for r := range 50 {
			if r != 37 || i < 10 {
				b.beat(r, int64(i))
			}
		}
	}
	if len(b.found) != 1 || b.found[0].Subject() != "critic rank 37" {
		t.Errorf("found %v", b.found)
	}
}

// shows: A28
func TestAPauseIsNotSilenceAndWatchingComesBackAfterIt(t *testing.T) {
	for _, byHand := range []string{"runs out", "is ended by hand"} {
		t.Run("a pause that "+byHand, func(t *testing.T) {
			b := newBed(t, critic(1, explicit))
			b.beat(0, 1)
			b.pass(60 * time.Second)
			b.Pause("critic", b.now.Add(time.Hour), b.now)
			if !b.record("critic").Paused {
				t.Error("it is not shown as paused")
			}
			if byHand == "runs out" {
				b.pass(time.Hour)
			} else {
				b.pass(10 * time.Minute)
				b.Resume("critic", b.now)
			}
			b.pass(58 * time.Second)
			b.wants()
			b.pass(5 * time.Second)
			b.wants(role.Silent)
		})
	}
}

func TestARankThatFailsDuringAPauseHasFailed(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.Pause("critic", b.now.Add(time.Hour), b.now)
	b.Report(role.Failure{Life: b.life(0), Cause: role.Exited})
	b.pass(time.Second)
	b.wants(role.Exited)
}

func TestAPauseTeachesNothing(t *testing.T) {
	b := newBed(t, critic(1, learned))
	for i := range 10 {
		b.pass(time.Second)
		b.beat(0, int64(i))
	}
	b.Pause("critic", b.now.Add(time.Hour), b.now)
	b.now = b.now.Add(time.Hour + time.Millisecond)
	b.beat(0, 11) // before any sweep
	if r := b.record("critic"); r.Limit != 2*time.Minute {
		t.Errorf("the limit has become %s", r.Limit)
	}
}

// shows: R9 A30
func TestTimeInWhichNobodySweptIsCreditedToEverybody(t *testing.T) {
	b := newBed(t, critic(1, explicit), health.Spec{Name: "advantages", Workers: 1, Limits: health.Limits{Start: 5 * time.Minute, Expect: job.Always}})
	b.beat(0, 1)
	b.pass(100 * time.Second)
	b.now = b.now.Add(10 * time.Minute)
	if f := b.sweep(); f.Blind < 9*time.Minute {
		t.Errorf("blind for %s", f.Blind)
	}
	b.pass(18 * time.Second)
	b.wants()
	b.pass(5 * time.Second)
	b.wants(role.Silent)
	if f := b.sweep(); f.Blind != 0 {
		t.Errorf("credited again: %s", f.Blind)
	}
}

func TestTimeBeforeTheFirstSweepIsCreditedToo(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.beat(0, 1)
	b.now = b.now.Add(10 * time.Minute)
	if f := b.sweep(); f.Blind < 9*time.Minute {
		t.Errorf("blind for %s", f.Blind)
	}
	b.wants()
}

func TestAHeartbeatAfterABlindTimeTeachesNothingOfIt(t *testing.T) {
	b := newBed(t, critic(1, learned))
	for i := range 10 {
		b.pass(time.Second)
		b.beat(0, int64(i))
	}
	b.now = b.now.Add(10 * time.Minute) // nobody swept, and this word comes first
	b.beat(0, 20)
	if r := b.record("critic"); r.Limit != 2*time.Minute {
		t.Errorf("the limit has become %s", r.Limit)
	}
}

func TestHealthGivesAtMostOneVerdictPerLifeAndNoneOnARankThatSpeaksInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const workers = 3
		b := newBed(t, critic(workers, health.Limits{Start: time.Minute, Heartbeat: 10 * time.Second, Expect: job.Always}))
		lastWord, spoke, told := [workers]time.Time{b.now, b.now, b.now}, [workers]bool{}, map[role.Life]bool{}
		gone := [workers]bool{} // a failure of it was reported
		for range rapid.IntRange(1, 60).Draw(t, "acts") {
			rank := rapid.IntRange(0, workers-1).Draw(t, "rank")
			switch act := rapid.IntRange(0, 9).Draw(t, "act"); {
			case act < 5:
				b.beat(rank, rapid.Int64Range(0, 100).Draw(t, "step"))
				lastWord[rank], spoke[rank] = b.now, true
			case act == 5:
				b.Report(role.Failure{Life: b.life(rank), Cause: role.Exited})
				gone[rank] = true
			case act == 6:
				b.restart("critic", 0)
				lastWord, spoke, gone = [workers]time.Time{b.now, b.now, b.now}, [workers]bool{}, [workers]bool{}
			}
			before := len(b.found)
			b.pass(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond)
			for _, f := range b.found[before:] {
				if told[f.Life] {
					t.Fatalf("%s was told twice", f.Life)
				}
				told[f.Life] = true
				limit := time.Minute
				if spoke[f.Life.Rank] {
					limit = 10 * time.Second
				}
				if age := b.now.Sub(lastWord[f.Life.Rank]); !gone[f.Life.Rank] && age <= limit {
					t.Fatalf("%s was found %s (%s) after %s of silence", f.Life, f.Cause, f.Detail, age)
				}
			}
			for rank := range workers {
				if age := b.now.Sub(lastWord[rank]); spoke[rank] && age > 11*time.Second && !told[b.life(rank)] {
					t.Fatalf("rank %d has been silent for %s and nobody says so", rank, age)
				}
			}
		}
	})
}

// Whoever looks at silent workers may wait for a CPU too: what he would say is waited for, bounded.
func TestSilenceOfWhichNobodyHasSaidLatelyWhatItIsIsNotJudgedYet(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.beat(0, 1)
	b.Starved(b.life(0), 0, b.now)
	b.pass(2*time.Minute + 10*time.Second)
	if len(b.found) != 0 {
		t.Fatalf("found %+v although nobody has looked for two minutes", b.found)
	}
	b.Starved(b.life(0), 100*time.Second, b.now) // the look comes late, and says why
	b.pass(20 * time.Second)
	if len(b.found) != 0 {
		t.Fatalf("found %+v although it was starved", b.found)
	}
	for range 60 {
		b.Starved(b.life(0), 0, b.now)
		b.pass(2 * time.Second)
	}
	if len(b.found) != 1 || b.found[0].Cause != role.Silent {
		t.Errorf("found %+v, want its silence", b.found)
	}
	b = newBed(t, critic(1, explicit))
	b.beat(0, 1)
	b.Starved(b.life(0), 0, b.now)
	b.pass(2*time.Minute + 17*time.Second)
	if len(b.found) != 1 {
		t.Errorf("found %+v: a look that never comes must not be waited for longer", b.found)
	}
}

// shows: FAULT-F5
func TestAWorkerThatIsNeverReadyFailsWithWhatItsProbeMet(t *testing.T) {
	b := newBed(t, health.Spec{Name: "critic", Workers: 2, Probed: true, Limits: explicit})
	b.Worker(b.life(0), 1, role.WorkerStarting, "")
	b.Worker(b.life(1), 2, role.WorkerStarting, "")
	b.Unready(b.life(0), "probe: dial tcp 127.0.0.1:8000: connection refused")
	b.Unready(b.life(1), "probe: status 503")
	b.Worker(b.life(1), 2, role.WorkerReady, "")
	earlier := b.life(0)
	earlier.Incarnation--
	b.Unready(earlier, "said of an earlier life")
	rec, _ := b.Record("critic", b.now)
	if got := rec.Ranks[0].Unready; got != "probe: dial tcp 127.0.0.1:8000: connection refused" {
		t.Errorf("rank 0 shows %q", got)
	}
	b.pass(30*time.Minute + 2*time.Second)
	b.wants(role.NotReady)
	if got, want := b.found[0].Detail, "not ready for 30m1s: probe: dial tcp 127.0.0.1:8000: connection refused"; got != want {
		t.Errorf("detail %q, want %q", got, want)
	}
}
