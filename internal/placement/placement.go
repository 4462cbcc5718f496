// Package placement decides which node and which devices each worker gets. It is a pure table: it
// opens nothing, reads no clock and takes no chances, so the same questions in the same order give
// the same answers. The words are Ray's: a bundle is one worker's share, a group is the bundles of a
// role (or of the roles that share it), a strategy says how a group is spread over nodes.
//
// A Table is used in this order: New with the nodes, Reserve with the requests of all roles of a job
// at once, SetNodes whenever a node or a device comes or goes, Rebuild before a role is started
// again, Release when it is given up. Groups tells what there is at any time.
package placement

import (
	"fmt"
	"slices"

	"vigil/internal/job"
	"vigil/internal/role"
)

// Node is one machine as it is now.
type Node struct {
	Name   string  `json:"name"`
	CPUs   float64 `json:"cpus"`
	Memory int64   `json:"memory"` // bytes
	Well   bool    `json:"well"`   // nothing new is placed on a node that is not, and nothing on it is live

	// Devices are those that are well, each once, in the order in which they are given out. One that
	// is missing here is lost, and a bundle that has it is not live.
	Devices []string `json:"devices,omitempty"`
}

// Bundle is what one worker needs: a reservation, not a limit.
type Bundle struct {
	Rank   int     `json:"rank"`
	GPUs   int     `json:"gpus"`
	CPUs   float64 `json:"cpus"`
	Memory int64   `json:"memory"` // bytes
}

// covers says whether b is enough for a worker that needs o.
func (b Bundle) covers(o Bundle) bool {
	return b.GPUs >= o.GPUs && b.CPUs+slack >= o.CPUs && b.Memory >= o.Memory
}

// Request is what one role asks for.
type Request struct {
	Group    string       `json:"group,omitempty"` // empty: a group of its own, named after the role
	Role     role.Name    `json:"role"`
	Bundles  []Bundle     `json:"bundles"` // ranks 0, 1, 2, ... in order
	Strategy job.Strategy `json:"strategy"`
	PerNode  int          `json:"per_node,omitempty"` // at most so many bundles on one node; 0: no limit
}

// group returns the name of the group that the request is for.
func (r Request) group() string {
	if r.Group == "" {
		return string(r.Role)
	}
	return r.Group
}

// ForRole returns what a role of a job file asks for: one bundle for each worker.
func ForRole(r job.Role) Request {
	q := Request{Group: r.Placement.Group, Role: r.Name, Strategy: r.Placement.Strategy, PerNode: r.Placement.PerNode}
	for rank := range r.Workers {
		q.Bundles = append(q.Bundles, Bundle{Rank: rank, GPUs: r.Resources.GPUs, CPUs: r.Resources.CPUs, Memory: r.Resources.Memory})
	}
	return q
}

// check refuses a request that makes no sense on any machine.
func (r Request) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("reserve for role %s: %s", r.Role, fmt.Sprintf(format, args...))
	}
	switch r.Strategy {
	case job.Pack, job.Spread, job.StrictPack, job.StrictSpread:
	default:
		return bad("no strategy %q", r.Strategy)
	}
	if r.PerNode < 0 {
		return bad("per_node %d is negative", r.PerNode)
	}
	if len(r.Bundles) == 0 {
		return bad("no bundles")
	}
	for i, b := range r.Bundles {
		if b.Rank != i {
			return bad("bundle %d is for rank %d: want ranks in order from 0", i, b.Rank)
		}
		if b.GPUs < 0 || !(b.CPUs >= 0) || b.Memory < 0 {
			return bad("rank %d asks for less than nothing", i)
		}
	}
	return nil
}

// Place is where a bundle lies.
type Place struct {
	Bundle
	Node    string   `json:"node"`
	Devices []string `json:"devices,omitempty"` // as many as GPUs, in the node's order
}

// State is what a group is.
type State string

// The states of a group.
const (
	Pending    State = "PENDING"    // not placed: waits for other groups of its batch, or for what others hold
	Reserved   State = "RESERVED"   // every bundle lies on a node and devices that are well
	Partial    State = "PARTIAL"    // some bundles do not, see Live and Needed
	Infeasible State = "INFEASIBLE" // not even the empty nodes that are well could hold it, see Why
	Released   State = "RELEASED"   // given back
)

// Group is one placement group as it is kept: plain data that can be written down and read back.
type Group struct {
	Name     string    `json:"name"`
	Requests []Request `json:"requests,omitempty"` // of the roles that share it
	Places   []Place   `json:"places,omitempty"`   // by rank; empty while nothing is reserved
	State    State     `json:"state"`              // Reserved also while bundles are lost; Status tells
	Why      string    `json:"why,omitempty"`      // why it is not reserved, or could not be rebuilt
}

// Status is one group as others see it.
type Status struct {
	Name     string       `json:"name"`
	Roles    []role.Name  `json:"roles"`
	Strategy job.Strategy `json:"strategy"`
	State    State        `json:"state"`
	Live     int          `json:"live"`   // bundles on nodes and devices that are well
	Needed   int          `json:"needed"` // bundles that its roles need
	Why      string       `json:"why,omitempty"`
	Bundles  []Place      `json:"bundles,omitempty"`
}

// Table is who has what. It is plain data that one goroutine owns; it can be written down as JSON
// and read back.
type Table struct {
	Nodes []Node  `json:"nodes"`
	Held  []Group `json:"groups,omitempty"` // in the order in which they were first asked for
}

// New returns a table of nodes on which nothing is reserved. Names of nodes are unique.
func New(nodes ...Node) *Table {
	t := &Table{}
	t.SetNodes(nodes...)
	return t
}

// SetNodes replaces what is known of the nodes. Groups stay as they are: what lay on a lost node or
// device is no longer live until Rebuild has placed it anew or the node is back.
func (t *Table) SetNodes(nodes ...Node) {
	t.Nodes = slices.Clone(nodes)
	for i := range t.Nodes {
		t.Nodes[i].Devices = slices.Clone(nodes[i].Devices)
	}
}

// Place returns where a rank of a role lies, and false when it lies nowhere or on something lost.
func (t *Table) Place(name role.Name, rank int) (Place, bool) {
	g := t.groupOf(name)
	if g == nil || rank < 0 || rank >= len(g.Places) || rank >= len(g.request(name).Bundles) {
		return Place{}, false
	}
	p := g.Places[rank]
	p.Devices = slices.Clone(p.Devices)
	return p, t.live(p)
}

// Groups tells of every group, in the order in which they were first asked for.
func (t *Table) Groups() []Status {
	out := make([]Status, 0, len(t.Held))
	for i := range t.Held {
		out = append(out, t.status(&t.Held[i]))
	}
	return out
}

// Group tells of the group of a role, and false when the role has asked for none.
func (t *Table) Group(name role.Name) (Status, bool) {
	g := t.groupOf(name)
	if g == nil {
		return Status{}, false
	}
	return t.status(g), true
}

// Request returns what a role has asked for; nothing, when it has not.
func (t *Table) Request(name role.Name) Request {
	if g := t.groupOf(name); g != nil {
		return *g.request(name)
	}
	return Request{}
}

func (t *Table) status(g *Group) Status {
	s := Status{Name: g.Name, Roles: []role.Name{}, State: g.State, Why: g.Why, Needed: len(g.bundles())}
	for _, r := range g.Requests {
		s.Roles = append(s.Roles, r.Role)
		s.Strategy = r.Strategy
	}
	for _, p := range g.Places {
		p.Devices = slices.Clone(p.Devices)
		s.Bundles = append(s.Bundles, p)
		if t.live(p) {
			s.Live++
		}
	}
	if g.State == Released {
		s.Needed = 0
	}
	if g.State == Reserved && s.Live < s.Needed {
		s.State = Partial
	} else if g.State == Reserved {
		s.Why = ""
	}
	return s
}

// live says whether a bundle's node and devices are well.
func (t *Table) live(p Place) bool {
	i := slices.IndexFunc(t.Nodes, func(n Node) bool { return n.Name == p.Node })
	if i < 0 || !t.Nodes[i].Well {
		return false
	}
	for _, d := range p.Devices {
		if !slices.Contains(t.Nodes[i].Devices, d) {
			return false
		}
	}
	return true
}

// find returns the group of that name, or nil.
func (t *Table) find(group string) *Group {
	for i := range t.Held {
		if t.Held[i].Name == group {
			return &t.Held[i]
		}
	}
	return nil
}

// groupOf returns the group that serves a role, or nil.
func (t *Table) groupOf(name role.Name) *Group {
	for i := range t.Held {
		if t.Held[i].request(name) != nil {
			return &t.Held[i]
		}
	}
	return nil
}

func (g *Group) request(name role.Name) *Request {
	for i := range g.Requests {
		if g.Requests[i].Role == name {
			return &g.Requests[i]
		}
	}
	return nil
}

// bundles returns what all roles of the group need together: bundle i serves rank i of each of them,
// so it is as large as the largest.
func (g *Group) bundles() []Bundle {
	var out []Bundle
	for _, r := range g.Requests {
		for i, b := range r.Bundles {
			if i == len(out) {
				out = append(out, b)
				continue
			}
			out[i].GPUs = max(out[i].GPUs, b.GPUs)
			out[i].CPUs = max(out[i].CPUs, b.CPUs)
			out[i].Memory = max(out[i].Memory, b.Memory)
		}
	}
	return out
}

// perNode returns the strictest limit of the group's roles, or 0 for none.
func (g *Group) perNode() int {
	limit := 0
	for _, r := range g.Requests {
		if r.PerNode > 0 && (limit == 0 || r.PerNode < limit) {
			limit = r.PerNode
		}
	}
	return limit
}
