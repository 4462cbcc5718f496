package placement_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/job"
	"vigil/internal/placement"
	"vigil/internal/role"
)

// node makes a node that is well, with devices "0", "1", ...
func node(name string, gpus int) placement.Node {
	n := placement.Node{Name: name, CPUs: 16, Memory: 64 << 30, Well: true}
	for i := range gpus {
		n.Devices = append(n.Devices, fmt.Sprint(i))
	}
	return n
}

// ask makes a request of equal bundles.
func ask(name role.Name, strategy job.Strategy, workers, gpus int) placement.Request {
	r := placement.Request{Role: name, Strategy: strategy}
	for i := range workers {
		r.Bundles = append(r.Bundles, placement.Bundle{Rank: i, GPUs: gpus})
	}
	return r
}

// lie draws where a role's bundles lie: "a:0,1 a:2,3".
func lie(t *placement.Table, name role.Name) string {
	g, _ := t.Group(name)
	var out []string
	for _, p := range g.Bundles {
		out = append(out, strings.TrimSuffix(p.Node+":"+strings.Join(p.Devices, ","), ":"))
	}
	return strings.Join(out, " ")
}

func reserve(t *testing.T, table *placement.Table, requests ...placement.Request) {
	t.Helper()
	if err := table.Reserve(requests...); err != nil {
		t.Fatal(err)
	}
}

func TestBundlesLieWhereTheStrategySays(t *testing.T) {
	perNode := func(r placement.Request, n int) placement.Request { r.PerNode = n; return r }
	for name, c := range map[string]struct {
		nodes []placement.Node
		ask   placement.Request
		want  string
	}{
		"a role without resources gets a node for each bundle": {
			[]placement.Node{node("a", 0)}, ask("main", job.Pack, 3, 0), "a a a"},
		"PACK fills one node before the next": {
			[]placement.Node{node("a", 4), node("b", 4)}, ask("main", job.Pack, 3, 2), "a:0,1 a:2,3 b:0,1"},
		"PACK takes the node that holds all, not the first": {
			[]placement.Node{node("a", 2), node("b", 4)}, ask("main", job.Pack, 2, 2), "b:0,1 b:2,3"},
		"PACK takes the tightest of the nodes that hold all": {
			[]placement.Node{node("a", 8), node("b", 4)}, ask("main", job.Pack, 2, 2), "b:0,1 b:2,3"},
		"SPREAD takes a node for each bundle while there are nodes": {
			[]placement.Node{node("a", 4), node("b", 4)}, ask("main", job.Spread, 3, 1), "a:0 b:0 a:1"},
		"STRICT_PACK lies on one node": {
			[]placement.Node{node("a", 2), node("b", 4)}, ask("main", job.StrictPack, 4, 1), "b:0 b:1 b:2 b:3"},
		"STRICT_SPREAD lies on a node each": {
			[]placement.Node{node("a", 4), node("b", 4)}, ask("main", job.StrictSpread, 2, 2), "a:0,1 b:0,1"},
		"per_node limits PACK": {
			[]placement.Node{node("a", 4), node("b", 4)}, perNode(ask("main", job.Pack, 3, 1), 2), "a:0 a:1 b:0"},
	} {
		t.Run(name, func(t *testing.T) {
			table := placement.New(c.nodes...)
			reserve(t, table, c.ask)
			if got := lie(table, "main"); got != c.want {
				t.Errorf("lies on %q, want %q", got, c.want)
			}
			if g, _ := table.Group("main"); g.State != placement.Reserved || g.Live != g.Needed {
				t.Errorf("group is %+v", g)
			}
		})
	}
}

func TestWhatCannotBeMetSaysWhichRoleLacksWhat(t *testing.T) {
	big := ask("actor", job.Pack, 1, 0)
	big.Bundles[0].CPUs, big.Bundles[0].Memory = 32.5, 128<<30
	once := ask("actor", job.Pack, 3, 1)
	once.PerNode = 1
	ill := node("b", 8)
	ill.Well = false
	for name, c := range map[string]struct {
		nodes []placement.Node
		asks  []placement.Request
		state placement.State
		want  string
	}{
		"too few devices": {[]placement.Node{node("local", 8)},
			[]placement.Request{ask("rollout", job.StrictPack, 7, 1), ask("actor", job.Pack, 2, 4)},
			placement.Infeasible, "role actor needs 2 bundles of 4 GPUs, node local has 1 free of 8 GPUs"},
		"no devices at all": {[]placement.Node{node("local", 0)}, []placement.Request{ask("actor", job.Pack, 1, 1)},
			placement.Infeasible, "role actor needs 1 bundle of 1 GPU, node local has 0 free of 0 GPUs"},
		"too few CPUs and too little memory": {[]placement.Node{node("local", 0)}, []placement.Request{big},
			placement.Infeasible, "role actor needs 1 bundle of 32.5 CPUs and 128Gi of memory, node local has 16 free of 16 CPUs and 64Gi free of 64Gi"},
		"too few nodes for STRICT_SPREAD": {[]placement.Node{node("a", 8)}, []placement.Request{ask("actor", job.StrictSpread, 2, 1)},
			placement.Infeasible, "role actor needs 2 bundles of 1 GPU on nodes of their own (STRICT_SPREAD), node a holds 1 of them already"},
		"no node large enough for STRICT_PACK": {[]placement.Node{node("a", 4), node("b", 4)}, []placement.Request{ask("actor", job.StrictPack, 2, 4)},
			placement.Infeasible, "role actor needs 2 bundles of 4 GPUs on one node (STRICT_PACK), node a has 4 free of 4 GPUs, node b has 4 free of 4 GPUs"},
		"per_node leaves too few": {[]placement.Node{node("a", 8), node("b", 8)}, []placement.Request{once},
			placement.Infeasible, "role actor needs 3 bundles of 1 GPU with at most 1 on a node (per_node), node a holds 1 of them already, node b holds 1 of them already"},
		"no node well": {[]placement.Node{ill}, []placement.Request{ask("actor", job.Pack, 1, 0)},
			placement.Infeasible, "role actor needs 1 bundle of no resources, no node is well"},
	} {
		t.Run(name, func(t *testing.T) {
			table := placement.New(c.nodes...)
			err := table.Reserve(c.asks...)
			var lack *placement.Lacking
			if !errors.As(err, &lack) || lack.State != c.state || lack.Why != c.want {
				t.Fatalf("got  %v\nwant %s: %s", err, c.state, c.want)
			}
			for _, g := range table.Groups() {
				switch {
				case len(g.Bundles) != 0:
					t.Errorf("group %s holds %v", g.Name, g.Bundles)
				case g.Name == "actor" && (g.State != c.state || g.Why != c.want):
					t.Errorf("on view is %s: %s", g.State, g.Why)
				case g.Name != "actor" && (g.State != placement.Pending || g.Why != "waits for group actor"):
					t.Errorf("group %s is %s: %s", g.Name, g.State, g.Why)
				}
			}
		})
	}
}

func TestWhatOthersHoldIsWaitedForAsPending(t *testing.T) {
	table := placement.New(node("a", 4))
	reserve(t, table, ask("rollout", job.Pack, 3, 1))
	err := table.Reserve(ask("actor", job.Pack, 1, 4))
	if err == nil || !strings.HasSuffix(err.Error(), "node a has 1 free of 4 GPUs; held by rollout") {
		t.Fatalf("got %v", err)
	}
	if g, _ := table.Group("actor"); g.State != placement.Pending || g.Live != 0 || g.Needed != 1 {
		t.Errorf("group is %+v", g)
	}
	table.Release("rollout")
	reserve(t, table, ask("actor", job.Pack, 1, 4))
	if got := lie(table, "actor"); got != "a:0,1,2,3" {
		t.Errorf("lies on %s", got)
	}
	if g, _ := table.Group("rollout"); g.State != placement.Released || g.Needed != 0 {
		t.Errorf("rollout is %+v", g)
	}
}

func TestAFitIsFoundWhereTheFirstChoiceLeadsNowhere(t *testing.T) {
	// Packing in order puts 3+2 on a and 2+3 on b, and the last 2 has no room; 3+3 and 2+2+2 fit.
	table := placement.New(node("a", 6), node("b", 6))
	uneven := placement.Request{Role: "main", Strategy: job.Pack}
	for i, gpus := range []int{3, 2, 2, 3, 2} {
		uneven.Bundles = append(uneven.Bundles, placement.Bundle{Rank: i, GPUs: gpus})
	}
	reserve(t, table, uneven)
}

// shows: R32
func TestAGroupWhoseNodesAndDevicesAreWellIsKept(t *testing.T) {
	table := placement.New(node("a", 4), node("b", 4))
	reserve(t, table, ask("actor", job.Pack, 2, 2), ask("critic", job.Pack, 1, 1))
	before := lie(table, "critic")
	ch, err := table.Rebuild("critic")
	if err != nil || !ch.Kept || len(ch.Moved) != 0 {
		t.Errorf("got %+v, %v; want it kept", ch, err)
	}
	if after := lie(table, "critic"); after != before {
		t.Errorf("moved from %s to %s", before, after)
	}
}

// shows: R32
func TestOnlyWhatIsLostMoves(t *testing.T) {
	table := placement.New(node("a", 2), node("b", 2), node("c", 2))
	reserve(t, table, ask("actor", job.Spread, 2, 1))
	ill := node("b", 2)
	ill.Well = false
	table.SetNodes(node("a", 2), ill, node("c", 2))
	g, _ := table.Group("actor")
	if g.State != placement.Partial || g.Live != 1 || g.Needed != 2 {
		t.Fatalf("with a node lost the group is %+v", g)
	}
	if _, ok := table.Place("actor", 1); ok {
		t.Error("a lost place is handed out")
	}
	ch, err := table.Rebuild("actor")
	if diff := cmp.Diff(placement.Change{Moved: []int{1}}, ch); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	if got := lie(table, "actor"); got != "a:0 c:0" {
		t.Errorf("lies on %s", got)
	}
}

func TestALostDeviceMovesItsBundleOnly(t *testing.T) {
	table := placement.New(node("a", 3))
	reserve(t, table, ask("actor", job.Pack, 2, 1))
	lost := node("a", 3)
	lost.Devices = []string{"1", "2"}
	table.SetNodes(lost)
	if _, err := table.Rebuild("actor"); err != nil {
		t.Fatal(err)
	}
	if got := lie(table, "actor"); got != "a:2 a:1" {
		t.Errorf("lies on %s", got)
	}
}

func TestAGroupThatCannotBeRebuiltKeepsWhatStands(t *testing.T) {
	table := placement.New(node("a", 1), node("b", 1))
	reserve(t, table, ask("actor", job.StrictSpread, 2, 1))
	table.SetNodes(node("a", 1))
	_, err := table.Rebuild("actor")
	var lack *placement.Lacking
	if !errors.As(err, &lack) || lack.State != placement.Infeasible {
		t.Fatalf("got %v", err)
	}
	g, _ := table.Group("actor")
	if g.State != placement.Partial || g.Live != 1 || g.Needed != 2 || g.Why == "" {
		t.Errorf("group is %+v", g)
	}
	table.SetNodes(node("a", 1), node("b", 1))
	if g, _ = table.Group("actor"); g.State != placement.Reserved || g.Why != "" {
		t.Errorf("with the node back the group is %+v", g)
	}
}

func TestAGroupOfWhichNothingIsLeftIsInfeasibleUntilANodeComes(t *testing.T) {
	table := placement.New(node("a", 1))
	reserve(t, table, ask("actor", job.Pack, 1, 1))
	table.SetNodes(node("c", 0))
	if _, err := table.Rebuild("actor"); err == nil {
		t.Fatal("placed on nothing")
	}
	if g, _ := table.Group("actor"); g.State != placement.Infeasible || g.Live != 0 || g.Needed != 1 {
		t.Fatalf("group is %+v", g)
	}
	table.SetNodes(node("c", 1))
	if ch, err := table.Rebuild("actor"); err != nil || len(ch.Moved) != 1 {
		t.Fatalf("got %+v, %v", ch, err)
	}
}

func TestAStrictPackOfOneRoleMovesAsAWhole(t *testing.T) {
	table := placement.New(node("a", 2), node("b", 2))
	reserve(t, table, ask("actor", job.StrictPack, 2, 1))
	lost := node("a", 2)
	lost.Devices = []string{"0"}
	table.SetNodes(lost, node("b", 2))
	ch, err := table.Rebuild("actor")
	if err != nil || len(ch.Moved) != 2 || lie(table, "actor") != "b:0 b:1" {
		t.Errorf("got %+v, %v, lies on %s", ch, err, lie(table, "actor"))
	}
}

func TestRolesOfOneGroupShareItsBundles(t *testing.T) {
	table := placement.New(node("a", 4))
	actor, rollout := ask("actor", job.Pack, 2, 2), ask("rollout", job.Pack, 1, 1)
	actor.Group, rollout.Group = "shared", "shared"
	reserve(t, table, rollout, actor)
	if got := lie(table, "rollout"); got != "a:0,1 a:2,3" || got != lie(table, "actor") {
		t.Errorf("rollout lies on %s, actor on %s", got, lie(table, "actor"))
	}
	if _, ok := table.Place("rollout", 1); ok {
		t.Error("rollout has one rank, and rank 1 has a place")
	}
	table.Release("actor")
	if got := lie(table, "rollout"); got != "a:0,1" {
		t.Errorf("without actor the group lies on %s", got)
	}
	large := ask("critic", job.Pack, 1, 3)
	large.Group = "shared"
	if err := table.Reserve(large); err == nil || !strings.Contains(err.Error(), "rank 0 needs 3 GPUs, its bundle in group shared is reserved with 2 GPUs") {
		t.Errorf("a role that does not fit into the group joins: %v", err)
	}
	reserve(t, table, actor)
	if got := lie(table, "actor"); got != "a:0,1 a:2,3" {
		t.Errorf("actor joins at %s", got)
	}
	table.Release("actor", "rollout")
	if g := table.Groups(); len(g) != 1 || g[0].State != placement.Released || len(g[0].Bundles) != 0 {
		t.Errorf("released it is %+v", g)
	}
}

func TestARequestThatMakesNoSenseChangesNothing(t *testing.T) {
	table := placement.New(node("a", 4))
	reserve(t, table, ask("actor", job.Pack, 1, 1))
	before, _ := json.Marshal(table)
	other := ask("critic", job.Spread, 1, 1)
	other.Group = "actor"
	for want, r := range map[string]placement.Request{
		"it has group actor already":                     ask("actor", job.Pack, 1, 1),
		"no bundles":                                     ask("critic", job.Pack, 0, 1),
		"rank 0 asks for less than nothing":              ask("critic", job.Pack, 1, -1),
		`no strategy "LOOSE"`:                            ask("critic", "LOOSE", 1, 1),
		"strategy SPREAD, role actor wants it with PACK": other,
	} {
		if err := table.Reserve(ask("rollout", job.Pack, 1, 1), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if after, _ := json.Marshal(table); string(after) != string(before) {
		t.Errorf("changed\n%s to\n%s", before, after)
	}
}

func TestATableIsWrittenDownAndReadBack(t *testing.T) {
	table := placement.New(node("a", 4))
	reserve(t, table, ask("actor", job.Pack, 2, 2))
	written, err := json.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	var read placement.Table
	if err := json.Unmarshal(written, &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(table.Groups(), read.Groups()); diff != "" {
		t.Error(diff)
	}
}

func TestAJobsRoleAsksForOneBundlePerWorker(t *testing.T) {
	got := placement.ForRole(job.Role{Name: "actor", Workers: 2,
		Resources: job.Resources{GPUs: 1, CPUs: 2, Memory: 3},
		Placement: job.Placement{Strategy: job.Spread, Group: "g", PerNode: 1}})
	want := placement.Request{Group: "g", Role: "actor", Strategy: job.Spread, PerNode: 1, Bundles: []placement.Bundle{
		{Rank: 0, GPUs: 1, CPUs: 2, Memory: 3}, {Rank: 1, GPUs: 1, CPUs: 2, Memory: 3}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTenThousandWorkersArePlacedQuickly(t *testing.T) {
	var nodes []placement.Node
	for i := range 100 {
		nodes = append(nodes, node(fmt.Sprintf("n%03d", i), 100))
	}
	table := placement.New(nodes...)
	reserve(t, table, ask("main", job.Pack, 10_000, 1))
	if g, _ := table.Group("main"); g.Live != 10_000 {
		t.Errorf("%d live", g.Live)
	}
	table.Release("main")
	for i := range 50 { // uneven nodes, so that the search cannot tell at once that they are alike
		nodes[i].CPUs = float64(1000 + i)
	}
	table.SetNodes(nodes...)
	if err := table.Reserve(ask("main", job.Spread, 10_001, 1)); err == nil {
		t.Error("more devices are given out than there are")
	}
}
