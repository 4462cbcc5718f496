package controller

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"vigil/internal/job"
	"vigil/internal/launcher/local"
	"vigil/internal/placement"
	"vigil/internal/proc"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// gpuJob has roles of one worker with so many GPUs.
func gpuJob(names []role.Name, gpus ...int) *job.Job {
	j := &job.Job{Name: "places"}
	for i, n := range names {
		j.Roles = append(j.Roles, job.Role{Name: n, Workers: 1, Resources: job.Resources{GPUs: gpus[i]}, Placement: job.Placement{Strategy: job.Pack}})
	}
	return j
}

// succeed is the table of a controller that follows one with the table was.
func succeed(t *testing.T, was *places, nodes []placement.Node, j *job.Job, lives ...role.Name) *places {
	t.Helper()
	text, err := json.Marshal(was.table)
	if err != nil {
		t.Fatal(err)
	}
	var read placement.Table
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	alive := map[role.Name]bool{}
	for _, n := range lives {
		alive[n] = true
	}
	p := newPlaces(nodes, j)
	if err := p.resume(j, &read, alive); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWhoLivesStaysWhereItWasPlaced(t *testing.T) {
	names := []role.Name{"actor", "critic"}
	nodes := []placement.Node{{Name: "here", CPUs: 8, Memory: 1 << 30, Devices: []string{"0", "1", "2", "3"}, Well: true}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	devices := func(p *places, name role.Name) []string {
		t.Helper()
		at, ok := p.table.Place(name, 0)
		if !ok {
			t.Fatalf("%s lies nowhere", name)
		}
		return at.Devices
	}
	want := func(p *places, actor, critic []string) {
		t.Helper()
		if a, c := devices(p, "actor"), devices(p, "critic"); !slices.Equal(a, actor) || !slices.Equal(c, critic) {
			t.Errorf("actor has %v and critic %v, want %v and %v", a, c, actor, critic)
		}
	}
	first := newPlaces(nodes, gpuJob(names, 1, 1))
	must(first.reserve(gpuJob(names, 1, 1)))
	want(first, []string{"0"}, []string{"1"})

	// The actor is to have another device. The critic lives on the one beside its own.
	larger := gpuJob(names, 2, 1)
	next := succeed(t, first, nodes, larger, "actor", "critic")
	want(next, []string{"0"}, []string{"1"})
	must(next.Place("critic"))
	must(next.Place("actor"))
	want(next, []string{"0", "2"}, []string{"1"})
	must(next.Place("actor"))
	want(next, []string{"0", "2"}, []string{"1"})

	// A role that has died is placed beside what lives, and what is recorded is what there is.
	var recorded placement.Table
	last := succeed(t, next, nodes, larger, "critic")
	last.keep(func(t placement.Table) { recorded = t })
	want(last, []string{"0", "2"}, []string{"1"})
	last.Release("critic")
	if at, _ := recorded.Group("critic"); at.State != placement.Released {
		t.Errorf("recorded is %+v", at)
	}

	// A role that the job has no more gives back what it had, and is shown no more.
	alone := gpuJob(names[1:], 3)
	end := succeed(t, next, nodes, alone)
	if at := end.groups(); len(at) != 1 || at[0].Name != "critic" || !slices.Equal(devices(end, "critic"), []string{"0", "1", "2"}) {
		t.Errorf("the groups are %+v", at)
	}

	// What the machine cannot hold is refused.
	much := gpuJob(names, 4, 1)
	if err := newPlaces(nodes, much).resume(much, first.table, map[role.Name]bool{"critic": true}); err == nil {
		t.Error("five of four devices are given away")
	}
}

// What could not be ended keeps its role off its devices until it has ended: there are others, or the role waits.
func TestDevicesOfWhatCouldNotBeEndedAreBlocked(t *testing.T) {
	left := func(pids ...int) local.Obligation {
		o := local.Obligation{Role: "critic", Index: 0}
		for _, pid := range pids {
			o.Left = append(o.Left, proc.Holder{Ident: proc.Ident{PID: pid}, Name: "python3"})
		}
		return o
	}
	nodes := []placement.Node{{Name: "here", CPUs: 8, Memory: 1 << 30, Devices: []string{"0", "1", "2"}, Well: true}}
	j := gpuJob([]role.Name{"actor", "critic"}, 1, 1)
	p := newPlaces(nodes, j)
	if err := p.reserve(j); err != nil {
		t.Fatal(err)
	}
	on := func(name role.Name, want ...string) {
		t.Helper()
		if at, ok := p.table.Place(name, 0); !ok || !slices.Equal(at.Devices, want) {
			t.Errorf("%s lies on %v, want %v", name, at.Devices, want)
		}
	}
	blocks := func(o local.Obligation, want ...string) {
		t.Helper()
		if got := p.block(keyOf(o), o); !slices.Equal(got, want) {
			t.Errorf("blocked %v, want %v", got, want)
		}
	}
	on("critic", "1")
	blocks(left(1), "1")
	if err := p.Place("critic"); err != nil {
		t.Fatal(err)
	}
	on("critic", "2")
	on("actor", "0")
	blocks(left(1), "1") // told again
	blocks(left(1, 2), "1", "2")
	blocked := new(engine.BlockedError)
	if err := p.Place("critic"); !errors.As(err, &blocked) || !strings.Contains(err.Error(), "devices 1, 2, which") {
		t.Fatalf("placed: %v", err)
	}
	if err := p.Place("actor"); err != nil {
		t.Errorf("another role: %v", err)
	}
	// An earlier run has left something too, on a device that the journal names.
	earlier := left(3)
	earlier.Earlier, earlier.Devices = true, []string{"1"}
	blocks(earlier, "1")
	p.unblock("critic/0")
	select {
	case <-blocked.Freed:
	default:
		t.Error("nobody is told that less is blocked")
	}
	if err := p.Place("critic"); err != nil {
		t.Fatal(err)
	}
	on("critic", "2")
	p.unblock("critic/0/earlier")
	p.unblock("critic/0/earlier") // it is met already
	// What another controller has told is not mixed up with where the role is now.
	told := left(4)
	told.Devices = []string{"1"}
	blocks(told, "1")
	on("critic", "2")
}

// Roles that share devices: what is left of one moves nothing under the other.
func TestAGroupThatIsSharedIsNotMovedWhileItsDevicesAreBlocked(t *testing.T) {
	nodes := []placement.Node{{Name: "here", CPUs: 8, Memory: 1 << 30, Devices: []string{"0", "1", "2"}, Well: true}}
	j := gpuJob([]role.Name{"actor", "critic"}, 1, 1)
	for i := range j.Roles {
		j.Roles[i].Placement.Group = "g"
	}
	p := newPlaces(nodes, j)
	if err := p.reserve(j); err != nil {
		t.Fatal(err)
	}
	p.block("critic/0", local.Obligation{Role: "critic", Left: []proc.Holder{{Ident: proc.Ident{PID: 1}}}})
	blocked := new(engine.BlockedError)
	if err := p.Place("critic"); !errors.As(err, &blocked) {
		t.Fatalf("placed: %v", err)
	}
	actor, _ := j.Role("actor")
	squads, err := p.squads(actor)
	if err != nil || len(squads) != 1 || !slices.Equal(squads[0].devices, []string{"0"}) {
		t.Errorf("the actor is at %+v (%v)", squads, err)
	}
	p.unblock("critic/0")
	if err := p.Place("critic"); err != nil {
		t.Error(err)
	}
}

// One device is blocked; a role that waits for it says so, one that lacks something else is told what.
// shows: FAULT-C12
func TestOnlyALackThatComesFromWhatIsBlockedIsWaitedFor(t *testing.T) {
	nodes := []placement.Node{{Name: "here", CPUs: 2, Memory: 1 << 30, Devices: []string{"0", "1"}, Well: true}}
	j := gpuJob([]role.Name{"actor", "critic", "large"}, 1, 1, 0)
	j.Roles[2].Resources.CPUs = 64
	p := newPlaces(nodes, j)
	if err := p.Place("actor"); err != nil {
		t.Fatal(err)
	}
	p.block("actor/0", local.Obligation{Role: "actor", Left: []proc.Holder{{Ident: proc.Ident{PID: 4711}}}})
	p.Release("actor")
	if err := p.Place("critic"); err != nil {
		t.Fatalf("the critic has the other device: %v", err)
	}
	blocked := new(engine.BlockedError)
	if err := p.Place("actor"); !errors.As(err, &blocked) {
		t.Errorf("the actor: %v, want that it waits", err)
	}
	if err := p.Place("large"); err == nil || errors.As(err, &blocked) {
		t.Errorf("the large role: %v, want that there are not 64 CPUs", err)
	}
}
