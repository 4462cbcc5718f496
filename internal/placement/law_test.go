package placement_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"vigil/internal/job"
	"vigil/internal/placement"
	"vigil/internal/role"
)

var laws = []role.Name{"actor", "rollout", "critic", "data"}

func drawNodes(t *rapid.T) []placement.Node {
	var nodes []placement.Node
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		n := node(fmt.Sprintf("n%d", i), rapid.IntRange(0, 6).Draw(t, "devices"))
		n.CPUs = float64(rapid.IntRange(1, 8).Draw(t, "cpus"))
		n.Well = rapid.IntRange(0, 4).Draw(t, "well") > 0
		nodes = append(nodes, n)
	}
	return nodes
}

func drawRequest(t *rapid.T, name role.Name) placement.Request {
	r := placement.Request{Role: name,
		Strategy: rapid.SampledFrom([]job.Strategy{job.Pack, job.Spread, job.StrictPack, job.StrictSpread}).Draw(t, "strategy"),
		Group:    rapid.SampledFrom([]string{"", "", "shared"}).Draw(t, "group"),
		PerNode:  rapid.IntRange(0, 2).Draw(t, "per_node")}
	if r.Group != "" {
		r.Strategy = job.Pack
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "workers") {
		r.Bundles = append(r.Bundles, placement.Bundle{Rank: i,
			GPUs: rapid.IntRange(0, 3).Draw(t, "gpus"), CPUs: float64(rapid.IntRange(0, 4).Draw(t, "tenths")) / 10})
	}
	return r
}

// holds checks what must be true of every table at any time.
func holds(t *rapid.T, table *placement.Table) {
	nodes := map[string]placement.Node{}
	for _, n := range table.Nodes {
		nodes[n.Name] = n
	}
	owner, cpus := map[string]string{}, map[string]float64{}
	for i, g := range table.Groups() {
		if g.State == placement.Reserved && (g.Live != g.Needed || g.Needed == 0) || g.State == placement.Partial && g.Live >= g.Needed {
			t.Fatalf("group %s is %s with %d of %d", g.Name, g.State, g.Live, g.Needed)
		}
		if (g.State == placement.Released || g.State == placement.Pending || g.State == placement.Infeasible) && len(g.Bundles) > 0 {
			t.Fatalf("group %s is %s and holds %v", g.Name, g.State, g.Bundles)
		}
		on := map[string]int{}
		for _, p := range g.Bundles {
			on[p.Node]++
			cpus[p.Node] += p.CPUs
			if len(p.Devices) != p.GPUs {
				t.Fatalf("bundle %+v has not as many devices as GPUs", p)
			}
			for _, d := range p.Devices {
				at := p.Node + ":" + d
				if owner[at] != "" {
					t.Fatalf("device %s is with %s and with %s", at, owner[at], g.Name)
				}
				owner[at] = g.Name
			}
		}
		if g.State == placement.Reserved {
			strict(t, g, on, table.Held[i])
		}
	}
	for name, used := range cpus {
		if n, ok := nodes[name]; ok && n.Well && used > n.CPUs+1e-6 {
			t.Fatalf("node %s has %g CPUs, %g are reserved", name, n.CPUs, used)
		}
	}
}

// strict checks what strategy and per_node promise of a group that stands.
func strict(t *rapid.T, g placement.Status, on map[string]int, held placement.Group) {
	if g.Strategy == job.StrictPack && len(on) != 1 {
		t.Fatalf("STRICT_PACK group %s lies on %v", g.Name, on)
	}
	for name, n := range on {
		if g.Strategy == job.StrictSpread && n > 1 {
			t.Fatalf("STRICT_SPREAD group %s lies on %v", g.Name, on)
		}
		for _, r := range held.Requests {
			// A role that joins a shared group cannot spread what lies there already.
			if len(held.Requests) == 1 && r.Group == "" && r.PerNode > 0 && n > r.PerNode {
				t.Fatalf("group %s has %d bundles on %s, per_node is %d", g.Name, n, name, r.PerNode)
			}
		}
	}
}

func TestLawsHoldWhateverIsAskedAndLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := placement.New(drawNodes(t)...)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { holds(t, table) },
			"reserve": func(t *rapid.T) {
				var batch []placement.Request
				for _, name := range laws {
					if rapid.Bool().Draw(t, "ask") {
						batch = append(batch, drawRequest(t, name))
					}
				}
				before := table.Groups()
				err := table.Reserve(batch...)
				allOrNothing(t, table, before, batch, err)
			},
			"lose": func(t *rapid.T) { table.SetNodes(drawNodes(t)...); crowded(t, table) },
			"rebuild": func(t *rapid.T) {
				name := rapid.SampledFrom(laws).Draw(t, "role")
				before, ok := table.Group(name)
				ch, err := table.Rebuild(name)
				if !ok || err != nil {
					return
				}
				after, _ := table.Group(name)
				if before.State == placement.Reserved && (!ch.Kept || cmp.Diff(before.Bundles, after.Bundles) != "") {
					t.Fatalf("moved though well: %+v\n%+v\n%+v", ch, before, after)
				}
				if after.State != placement.Reserved {
					t.Fatalf("rebuilt to %+v", after)
				}
			},
			"release": func(t *rapid.T) { table.Release(rapid.SampledFrom(laws).Draw(t, "role")) },
		})
		table.Release(laws...)
		for _, g := range table.Groups() {
			if g.State != placement.Released {
				t.Fatalf("released, group %s is %s", g.Name, g.State)
			}
		}
	})
}

// crowded gives up everything when the nodes have shrunk under what is reserved: no placement can
// mend that.
func crowded(t *rapid.T, table *placement.Table) {
	used := map[string]float64{}
	for _, g := range table.Groups() {
		for _, p := range g.Bundles {
			used[p.Node] += p.CPUs
		}
	}
	for _, n := range table.Nodes {
		if used[n.Name] > n.CPUs {
			table.Release(laws...)
		}
	}
}

func allOrNothing(t *rapid.T, table *placement.Table, before []placement.Status, batch []placement.Request, err error) {
	had := map[role.Name][]placement.Place{}
	for _, g := range before {
		for _, name := range g.Roles {
			had[name] = g.Bundles
		}
	}
	for _, r := range batch {
		g, _ := table.Group(r.Role)
		if err == nil && len(g.Bundles) < len(r.Bundles) {
			t.Fatalf("reserved, %s has %+v", r.Role, g)
		}
		if err != nil && cmp.Diff(had[r.Role], g.Bundles) != "" {
			t.Fatalf("refused (%v), %s has %+v", err, r.Role, g)
		}
	}
}

func TestTheSameQuestionsGetTheSameAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		var batch []placement.Request
		for _, name := range laws {
			batch = append(batch, drawRequest(t, name))
		}
		a, b := placement.New(nodes...), placement.New(nodes...)
		errA, errB := a.Reserve(batch...), b.Reserve(batch...)
		if fmt.Sprint(errA) != fmt.Sprint(errB) || cmp.Diff(a, b) != "" {
			t.Fatalf("%v, %v\n%s", errA, errB, cmp.Diff(a, b))
		}
	})
}

func TestReleaseGivesEverythingBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := placement.New(drawNodes(t)...)
		var batch []placement.Request
		for _, name := range laws {
			batch = append(batch, drawRequest(t, name))
		}
		first := table.Reserve(batch...)
		groups := table.Groups()
		table.Release(laws...)
		if again := table.Reserve(batch...); fmt.Sprint(first) != fmt.Sprint(again) || cmp.Diff(groups, table.Groups()) != "" {
			t.Fatalf("first %v, after release %v\n%s", first, again, cmp.Diff(groups, table.Groups()))
		}
	})
}
