package controller

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/placement"
	"vigil/internal/role"
)

// manyJob has one role of that many workers with a device each, and a small one beside it.
func manyJob(workers int) (*job.Job, []placement.Node) {
	j := &job.Job{Name: "many", Roles: []job.Role{
		{Name: "actor", Workers: workers, Resources: job.Resources{GPUs: 1}, Placement: job.Placement{Strategy: job.Pack}},
		{Name: "critic", Workers: 2, Resources: job.Resources{GPUs: 1}, Placement: job.Placement{Strategy: job.Pack}},
	}}
	var devices []string
	for i := range workers + 2 {
		devices = append(devices, fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", i, i))
	}
	return j, []placement.Node{{Name: "a-machine-with-a-long-name.cluster.example.org", CPUs: 8, Memory: 1 << 40, Devices: devices, Well: true}}
}

// keptTable places the job, closes the journal, and returns what the next controller reads from it.
func keptTable(t *testing.T, j *job.Job, nodes []placement.Node, change func(*places)) (was *places, read placement.Table) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), journalFile)
	kept, err := journal.Open(path, journal.Options{Job: j.Name})
	must(err)
	was = newPlaces(nodes, j)
	must(was.reserve(j))
	was.keep(newPlaced(kept).record)
	change(was)
	must(kept.Write().Wait(context.Background()))
	must(kept.Close())
	kept, err = journal.Open(path, journal.Options{Job: j.Name})
	must(err)
	defer kept.Close()
	read, known, err := placedIn(kept)
	must(err)
	if !known {
		t.Fatal("no placement is recorded")
	}
	return was, read
}

// shows: FAULT-J1
func TestThousandsOfPlacesAreRemembered(t *testing.T) {
	for _, workers := range []int{3, 4_700} {
		j, nodes := manyJob(workers)
		was, read := keptTable(t, j, nodes, func(*places) {})
		next := newPlaces(nodes, j)
		if err := next.resume(j, &read, map[role.Name]bool{"actor": true, "critic": true}); err != nil {
			t.Fatal(err)
		}
		for i := range j.Roles {
			r := &j.Roles[i]
			for rank := range r.Workers {
				at, _ := was.table.Place(r.Name, rank)
				now, ok := next.table.Place(r.Name, rank)
				if !ok || now.Node != at.Node || len(now.Devices) != 1 || now.Devices[0] != at.Devices[0] {
					t.Fatalf("%d workers: %s rank %d was at %v, and the next controller has it at %v", workers, r.Name, rank, at, now)
				}
			}
			if next.anew[r.Name] {
				t.Errorf("%s is thought to ask for something else than it was given", r.Name)
			}
		}
	}
}

func TestOnlyTheGroupThatHasChangedIsWritten(t *testing.T) {
	j, nodes := manyJob(10)
	_, read := keptTable(t, j, nodes, func(p *places) {
		before := p.table.Groups()
		p.Release("critic")
		if err := p.Place("critic"); err != nil {
			t.Fatal(err)
		}
		p.Release("actor")
		if len(before) != 2 {
			t.Fatal(before)
		}
	})
	read.SetNodes(nodes...)
	if at, ok := read.Group("actor"); !ok || at.State != placement.Released || len(at.Bundles) != 0 {
		t.Errorf("what was released reads as %+v", at)
	}
	if at, ok := read.Group("critic"); !ok || at.State != placement.Reserved || len(at.Bundles) != 2 {
		t.Errorf("what was placed again reads as %+v", at)
	}
}

func TestAPlacementTableOfAnOlderVersionIsRead(t *testing.T) {
	j, nodes := manyJob(10)
	path := filepath.Join(t.TempDir(), journalFile)
	kept, err := journal.Open(path, journal.Options{Job: j.Name})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	was := newPlaces(nodes, j)
	if err := was.reserve(j); err != nil {
		t.Fatal(err)
	}
	if err := kept.Write(journal.Put(journal.Placement, placementKey, *was.table)).Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	read, known, err := placedIn(kept)
	if at, ok := read.Group("actor"); err != nil || !known || !ok || len(at.Bundles) != 10 {
		t.Fatalf("the table of one record reads as %+v, %v, %v", at, known, err)
	}
	newPlaced(kept).record(*was.table) // from here on it is a record for each group
	if err := kept.Write().Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, old, _ := journal.ReadOne[placement.Table](kept, journal.Placement, placementKey); old {
		t.Error("the old record stays beside the new ones")
	}
	if read, _, err = placedIn(kept); err != nil || len(read.Held) != 2 || read.Held[0].Name != "actor" {
		t.Errorf("read %+v, %v", read.Groups(), err)
	}
}
