package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// The test binary is the worker, as the benchmark's own program is.
func TestMain(m *testing.M) {
	began := time.Now()
	if len(os.Args) == 2 && os.Args[1] == workerCommand {
		fail(beWorker(began))
		return
	}
	os.Exit(m.Run())
}

func smallBench(t *testing.T) *bench {
	t.Helper()
	folder, err := os.MkdirTemp("", "vb") // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{n: 2, peerEvery: 1, restarts: 1, self: self, folder: folder, program: filepath.Join(folder, "missing")}
	if err := b.findProgram(); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEveryFailureOfTheOneWorkerIsMeasuredToItsDecisionAndItsSuccessor(t *testing.T) {
	t.Setenv("TORCHRUN", filepath.Join(t.TempDir(), "none"))
	b := smallBench(t)
	m, err := b.reaction()
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]int{
		"death to decision": len(m.toDecision), "death to worker": len(m.toWorker), "floor": len(m.floor), "HTTP": len(m.posted),
		"notify": len(m.notified), "stop move": len(m.moves["stop_service"]),
	} {
		if n != b.n {
			t.Errorf("%s: %d samples, want %d", name, n, b.n)
		}
	}
	for _, d := range append(m.toDecision, m.posted...) {
		if d <= 0 || d > 10*time.Second {
			t.Errorf("a decision took %s", d)
		}
	}
	if len(m.peer) != 0 || len(b.report.Notes) != 1 || !strings.Contains(b.report.Notes[0], "torchrun is left out") {
		t.Errorf("without torchrun: %d samples, notes %q", len(m.peer), b.report.Notes)
	}
	m.tell(&b.report)
	for _, row := range b.report.Rows {
		if row.Value <= 0 || strings.Contains(row.Name, "torchrun") {
			t.Errorf("row %+v", row)
		}
	}
}

func TestBothKindsOfRestartOfTheBuiltInJobAreMeasured(t *testing.T) {
	b := smallBench(t)
	if err := b.repairs(); err != nil {
		t.Fatal(err)
	}
	if len(b.report.Rows) != 4 {
		t.Fatalf("rows %+v, want two for each kind", b.report.Rows)
	}
	for _, row := range b.report.Rows {
		if row.N != 1 || row.Value <= 0 {
			t.Errorf("row %+v", row)
		}
	}
}

func TestRolesAreWellAgainWhenThePlanHasEndedAndAllHaveSpoken(t *testing.T) {
	spoke := func(name role.Name) event.Event {
		e := event.New(time.Now(), event.FirstStep)
		e.Role = name
		return e
	}
	ended := event.New(time.Now(), event.PlanEnded)
	for name, events := range map[string][]event.Event{
		"the plan ends last": {spoke("actor"), spoke("critic"), ended},
		"a role speaks last": {spoke("critic"), ended, spoke("critic"), spoke("actor")},
	} {
		well := everyRoleSpoke(2)
		for i, e := range events {
			if got := well(e); got != (i == len(events)-1) {
				t.Errorf("%s: event %d: well = %v", name, i, got)
			}
		}
	}
}

func TestAProcessShowsItsCPUTimeAndMemory(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 100*time.Millisecond; {
	}
	after, err := cpuTime(os.Getpid())
	if err != nil || after <= before || after-before > 10*time.Second {
		t.Errorf("CPU time went from %s to %s (%v) while this test computed", before, after, err)
	}
	if mb, err := peakMemory(os.Getpid()); err != nil || mb < 1 || mb > 100_000 {
		t.Errorf("peak memory %v MB (%v)", mb, err)
	}
}
