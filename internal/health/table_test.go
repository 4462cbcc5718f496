package health_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/role"
)

const uid = "test-00000001"

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// explicit is a limit of two minutes that was given.
var explicit = health.Limits{Start: 30 * time.Minute, Heartbeat: 2 * time.Minute, Floor: 2 * time.Minute, Expect: job.OnceSeen}

// learned is the default: the limit is learned.
var learned = health.Limits{Start: 30 * time.Minute, Floor: 2 * time.Minute, Expect: job.OnceSeen}

// bed is a table with a clock that the test moves. It is swept each second, as the checker does.
type bed struct {
	rapid.TB
	*health.Table
	now   time.Time
	found []role.Failure
	ended []role.Name
}

func newBed(t rapid.TB, specs ...health.Spec) *bed {
	b := &bed{TB: t, Table: health.NewTable(uid, time.Second, noon, specs...), now: noon}
	for _, s := range specs {
		b.Fence(s.Name, b.now)
		b.Begin(s.Name, 0, b.now)
	}
	return b
}

// critic is a role of so many workers under the limits.
func critic(workers int, l health.Limits) health.Spec {
	return health.Spec{Name: "critic", Workers: workers, Limits: l}
}

// pass lets time pass with a sweep in each second.
func (b *bed) pass(d time.Duration) {
	for end := b.now.Add(d); b.now.Before(end); {
		b.now = b.now.Add(min(time.Second, end.Sub(b.now)))
		b.sweep()
	}
}

func (b *bed) sweep() health.Findings {
	f := b.Sweep(b.now)
	b.found = append(b.found, f.Failures...)
	b.ended = append(b.ended, f.Finished...)
	return f
}

func (b *bed) life(rank int) role.Life { return b.lifeOf("critic", rank) }

func (b *bed) lifeOf(name role.Name, rank int) role.Life {
	return role.Life{Job: uid, Role: name, Incarnation: b.record(name).Incarnation, Rank: rank, Attempt: 1}
}

func (b *bed) record(name role.Name) health.Record {
	r, ok := b.Record(name, b.now)
	if !ok {
		b.Fatalf("no record of %s", name)
	}
	return r
}

// beat says a step in the critic's current life.
func (b *bed) beat(rank int, step int64) health.Heard {
	return b.Beat(health.Word{Life: b.life(rank), Step: &step, At: b.now}, b.now)
}

// restart begins the role's next life from the step.
func (b *bed) restart(name role.Name, step int64) {
	b.Fence(name, b.now)
	b.Begin(name, step, b.now)
}

// wants checks the causes of everything found so far.
func (b *bed) wants(causes ...role.Cause) {
	b.Helper()
	var got, want []string
	for _, f := range b.found {
		got = append(got, f.Subject()+" "+string(f.Cause))
	}
	for _, c := range causes {
		want = append(want, "critic rank 0 "+string(c))
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		b.Errorf("found %v, want %v", got, want)
	}
}

// shows: R4 R5
func TestARoleIsNewHealthyWithoutErrorAtStepZeroAndNotRunning(t *testing.T) {
	table := health.NewTable(uid, time.Second, noon, critic(2, learned))
	r, _ := table.Record("critic", noon)
	if !r.Healthy || r.Error != "" || !r.LastHeartbeat.Equal(noon) || r.CurrentStep != 0 || r.TaskRunning || r.RestartCount != 0 {
		t.Errorf("a new record is %+v", r)
	}
	if _, ok := table.Record("nobody", noon); ok {
		t.Error("there is a record of nobody")
	}
}

// shows: R6
func TestAReportMakesTheRoleUnhealthyWithItsText(t *testing.T) {
	b := newBed(t, critic(2, learned))
	if h := b.Report(role.Failure{Life: b.life(1), Cause: role.Reported, Detail: "CUDA out of memory"}); h != health.HeardFirst {
		t.Errorf("heard %s", h)
	}
	if r := b.record("critic"); r.Healthy || r.Error != "CUDA out of memory" || !r.Ranks[1].Unwell || r.Ranks[0].Unwell {
		t.Errorf("the record is %+v", r)
	}
	if f := b.sweep(); len(f.Failures) != 1 || f.Failures[0].Life != b.life(1) {
		t.Errorf("found %+v", f)
	}
	if c := b.Counts(); c.Unhealthy != 1 || c.Healthy != 0 || c.Roles != 1 {
		t.Errorf("counts %+v", c)
	}
}

// shows: R8
func TestAHeartbeatRefreshesTheTimeAndRaisesTheStep(t *testing.T) {
	b := newBed(t, critic(1, learned))
	b.pass(5 * time.Second)
	if h := b.beat(0, 7); h != health.HeardFirst {
		t.Errorf("heard %s", h)
	}
	b.pass(time.Second)
	if h := b.beat(0, 8); h != health.HeardNext {
		t.Errorf("heard %s", h)
	}
	if r := b.record("critic"); r.CurrentStep != 8 || !r.LastHeartbeat.Equal(noon.Add(6*time.Second)) {
		t.Errorf("step %d at %s", r.CurrentStep, r.LastHeartbeat)
	}
}

// shows: R8
func TestALowerStepWithinOneLifeIsIgnoredAndCountedButIsWord(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.beat(0, 10)
	b.pass(100 * time.Second)
	if h := b.beat(0, 9); h != health.HeardLowerStep {
		t.Errorf("heard %s", h)
	}
	if r := b.record("critic"); r.CurrentStep != 10 || b.Counts().Lower != 1 {
		t.Errorf("step %d, %d counted", r.CurrentStep, b.Counts().Lower)
	}
	b.pass(100 * time.Second)
	b.wants()
}

// shows: R8 R34
func TestTheFirstHeartbeatOfANewLifeSetsItsFloorAndIsComparedWithTheStepGiven(t *testing.T) {
	b := newBed(t, critic(2, learned))
	b.beat(0, 50)
	b.restart("critic", 50)
	if r := b.record("critic"); r.CurrentStep != 50 {
		t.Errorf("before its first word the step is %d, want the one given", r.CurrentStep)
	}
	if h := b.beat(0, 0); h != health.HeardWentBack {
		t.Errorf("step 0 after 50 was heard as %s", h)
	}
	if h := b.beat(1, 3); h != health.HeardNext {
		t.Errorf("the second rank was heard as %s", h)
	}
	if r := b.record("critic"); r.CurrentStep != 0 {
		t.Errorf("step %d, want the least that a rank of this life has said", r.CurrentStep)
	}
	b.restart("critic", 0)
	if h := b.beat(0, 0); h != health.HeardFirst {
		t.Errorf("the step given was heard as %s", h)
	}
}

// shows: R53 A30
func TestWordOfAnotherLifeChangesNothingAndIsCounted(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.beat(0, 5)
	old := b.life(0)
	b.restart("critic", 5)
	before := b.record("critic")
	step := int64(900)
	strange := []role.Life{old}
	for _, change := range []func(*role.Life){
		func(l *role.Life) { l.Job = "other-00000002" }, func(l *role.Life) { l.Role = "nobody" }, func(l *role.Life) { l.Incarnation++ },
		func(l *role.Life) { l.Rank = 1 }, func(l *role.Life) { l.Rank = -7 }, func(l *role.Life) { l.Attempt = 2 },
	} {
		l := b.life(0)
		change(&l)
		strange = append(strange, l)
	}
	for _, l := range strange {
		if h := b.Beat(health.Word{Life: l, Step: &step, At: b.now}, b.now); h != health.HeardStale {
			t.Errorf("a heartbeat of %s was heard as %s", l, h)
		}
		if h := b.Report(role.Failure{Life: l, Cause: role.Exited}); h != health.HeardStale {
			t.Errorf("a failure of %s was heard as %s", l, h)
		}
		if h := b.Checkpoint(l, 900); h != health.HeardStale {
			t.Errorf("a checkpoint of %s was heard as %s", l, h)
		}
		if b.Worker(l, 1, role.WorkerReady, "") {
			t.Errorf("a state of %s was taken", l)
		}
	}
	if b.Report(role.Failure{Life: role.Life{Job: uid, Role: "critic", Incarnation: 1, Rank: role.NoRank}}) != health.HeardStale {
		t.Error("the death of the service before was taken")
	}
	after := b.record("critic")
	if !after.Healthy || after.CurrentStep != before.CurrentStep || after.Checkpoint != -1 || after.Ready {
		t.Errorf("the record has become %+v", after)
	}
	if got, want := b.Counts().Stale, uint64(4*len(strange)+1); got != want {
		t.Errorf("%d counted, want %d", got, want)
	}
	b.pass(time.Second)
	b.wants()
}

// shows: R35
func TestARestartClearsTheErrorAndKeepsTheOneOfTheNewLife(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.Report(role.Failure{Life: b.life(0), Cause: role.Reported, Detail: "old"})
	b.restart("critic", 0)
	if r := b.record("critic"); !r.Healthy || r.Error != "" {
		t.Errorf("after the restart: %+v", r)
	}
	b.pass(time.Second)
	b.wants() // the report of the old life went with it
	b.Report(role.Failure{Life: b.life(0), Cause: role.Reported, Detail: "new"})
	b.pass(time.Second)
	if r := b.record("critic"); r.Healthy || r.Error != "new" {
		t.Errorf("after a report of the new life: %+v", r)
	}
	b.wants(role.Reported)
}

func TestAVerdictIsGivenOncePerWorkerLife(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.beat(0, 1)
	for range 3 {
		b.Report(role.Failure{Life: b.life(0), Cause: role.Exited})
		b.pass(10 * time.Minute)
	}
	b.wants(role.Exited)
	b.restart("critic", 1)
	b.pass(time.Hour)
	b.wants(role.Exited, role.NoStart)
}

// shows: R54
func TestARoleWhoseRanksHaveAllEndedWellIsFinishedAndNeverStale(t *testing.T) {
	b := newBed(t, critic(2, explicit))
	b.beat(0, 1)
	b.beat(1, 1)
	b.Worker(b.life(0), 10, role.WorkerFinished, "")
	b.pass(time.Minute)
	b.beat(1, 2)
	b.pass(time.Minute)
	b.beat(1, 3)
	if len(b.ended) != 0 {
		t.Errorf("finished with one of two ranks: %v", b.ended)
	}
	b.Worker(b.life(0), 10, role.WorkerDown, "") // a late word does not bring it back
	b.Worker(b.life(1), 11, role.WorkerFinished, "")
	if h := b.Report(role.Failure{Life: role.Life{Role: "critic", Rank: role.NoRank}, Cause: role.Unreachable, Detail: "its idle service died"}); h != health.HeardNext {
		t.Errorf("the death of its idle service was heard as %s", h)
	}
	b.pass(time.Hour)
	b.wants()
	r := b.record("critic")
	if len(b.ended) != 1 || !r.Finished || !r.Healthy || r.TaskRunning {
		t.Errorf("told %v, record %+v", b.ended, r)
	}
	b.restart("critic", 3)
	if r := b.record("critic"); r.Finished || !r.TaskRunning {
		t.Errorf("after it was begun again: %+v", r)
	}
}

// shows: R10
func TestARoleThatDoesNotRunIsNeverStale(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.beat(0, 1)
	b.StopWatching("critic")
	b.pass(time.Hour)
	b.wants()
	b.Fence("critic", b.now)
	b.pass(time.Hour)
	b.wants()
	if b.record("critic").TaskRunning {
		t.Error("it is shown as running")
	}
}

func TestAStepThatIsSetIsTakenAlsoWhenItIsLower(t *testing.T) {
	b := newBed(t, critic(2, explicit))
	b.beat(0, 100)
	b.SetStep("critic", 40)
	if r := b.record("critic"); r.CurrentStep != 40 || r.Ranks[1].Step != 40 {
		t.Errorf("the step is %d", r.CurrentStep)
	}
	if h := b.beat(0, 41); h != health.HeardNext || b.record("critic").CurrentStep != 41 || b.Counts().Lower != 0 {
		t.Errorf("step 41 was heard as %s", h)
	}
}

// shows: R28
func TestTheStepThatARoleHadReachedIsKeptByTheFence(t *testing.T) {
	b := newBed(t, critic(2, explicit))
	b.beat(0, 100)
	b.beat(1, 98)
	if inc := b.Fence("critic", b.now); inc != 2 || b.record("critic").CurrentStep != 98 {
		t.Errorf("incarnation %d at step %d, want 2 at the least of its ranks", inc, b.record("critic").CurrentStep)
	}
}

func TestACheckpointCountsWhenEveryRankThatSavesHasSavedIt(t *testing.T) {
	b := newBed(t, critic(3, explicit))
	saved := func(rank int, step, want int64) {
		t.Helper()
		b.Checkpoint(b.life(rank), step)
		if got := b.record("critic").Checkpoint; got != want {
			t.Errorf("rank %d saved %d: the role's checkpoint is %d, want %d", rank, step, got, want)
		}
	}
	saved(0, 10, -1)
	saved(1, 10, -1) // rank 2 may be about to say so too
	saved(0, 20, 10) // it never saves
	saved(1, 20, 20)
	saved(1, 15, 20)
	b.restart("critic", 20)
	saved(0, 30, 20) // that rank 1 saves too is remembered over the restart
	saved(1, 30, 30)
}

func TestACheckpointBeyondTheStepOfANewLifeIsForgotten(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.Checkpoint(b.life(0), 40)
	b.restart("critic", 30) // a peer had saved 30 only
	if got := b.record("critic").Checkpoint; got != 30 {
		t.Errorf("the role's checkpoint is %d after a new life from step 30, want 30", got)
	}
	b.restart("critic", 35) // further on than what is saved says nothing of the checkpoint
	if got := b.record("critic").Checkpoint; got != 30 {
		t.Errorf("the role's checkpoint is %d, want 30", got)
	}
}

func TestWhatIsSaidOfAnUnknownRoleChangesNothing(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.Begin("nobody", 1, b.now)
	b.SetStep("nobody", 1)
	b.StopWatching("nobody")
	b.Pause("nobody", b.now.Add(time.Hour), b.now)
	b.Resume("nobody", b.now)
	if inc := b.Fence("nobody", b.now); inc != 0 || b.Counts().Roles != 1 {
		t.Errorf("incarnation %d, counts %+v", inc, b.Counts())
	}
}
