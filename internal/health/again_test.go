package health_test

import (
	"testing"
	"time"

	"vigil/internal/role"
)

func TestAWorkerThatIsLeftAloneIsWellAndItsSilenceCountsAnew(t *testing.T) {
	b := newBed(t, critic(1, explicit))
	b.beat(0, 1)
	b.pass(2*time.Minute + time.Second)
	if len(b.found) != 1 || b.found[0].Cause != role.Silent {
		t.Fatalf("found %v", b.found)
	}
	if b.JudgeAgain(b.found[0].Life, b.now) {
		t.Error("there is no other failure")
	}
	if r := b.record("critic"); !r.Healthy || r.Error != "" {
		t.Errorf("it is not well again: %+v", r)
	}
	b.pass(2 * time.Minute)
	if len(b.found) != 1 {
		t.Fatalf("found %v before its time was over", b.found)
	}
	b.pass(time.Second)
	if len(b.found) != 2 {
		t.Errorf("a second silence is not found: %v", b.found)
	}
}

// The end of a process may be told between a report and the decision to ignore that.
func TestWhatIsFoundBetweenAVerdictAndItsEndIsHandedOutAfterIt(t *testing.T) {
	b := newBed(t, critic(2, explicit))
	report := role.Failure{Life: b.life(1), Cause: role.Reported, Detail: "shard 7 is late"}
	b.Report(report)
	b.Report(report)
	b.Report(role.Failure{Life: b.life(1), Cause: role.Exited, Detail: "exit code 3", Exit: &role.Exit{Code: 3}})
	b.Report(report)
	b.sweep()
	if !b.JudgeAgain(b.life(1), b.now) {
		t.Fatal("the end is lost")
	}
	b.sweep()
	if len(b.found) != 2 || b.found[1].Cause != role.Exited || b.found[1].Life != b.life(1) {
		t.Errorf("found %v", b.found)
	}
	if r := b.record("critic"); r.Healthy {
		t.Error("a role whose worker has ended is well")
	}
}

func TestAVerdictOnAnEarlierLifeOrOnAPeerStays(t *testing.T) {
	b := newBed(t, critic(2, explicit))
	before := b.life(0)
	b.Fence("critic", b.now)
	b.Begin("critic", 0, b.now)
	b.Report(role.Failure{Life: b.life(0), Cause: role.Reported, Detail: "first"})
	b.Report(role.Failure{Life: b.life(1), Cause: role.Reported, Detail: "second"})
	b.sweep()
	b.JudgeAgain(before, b.now)
	b.JudgeAgain(b.life(1), b.now)
	if r := b.record("critic"); r.Healthy {
		t.Error("the role is well although rank 0 is not")
	}
	b.JudgeAgain(b.life(0), b.now)
	if r := b.record("critic"); !r.Healthy {
		t.Error("the role is unwell although both workers are left alone")
	}
}
