package controller

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"vigil/internal/job"
	"vigil/internal/launcher/local"
	"vigil/internal/placement"
	"vigil/internal/proc"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// places shares one placement table.
type places struct {
	mu       sync.Mutex
	table    *placement.Table
	requests map[role.Name]placement.Request
	anew     map[role.Name]bool // roles that live where an earlier request has placed them
	nodes    []placement.Node
	blocked  map[string]local.Obligation // by key, what may use devices and could not be ended
	freed    chan struct{}               // closed when less is blocked
	record   func(placement.Table)       // keeps the table for the next controller; called in order
}

func newPlaces(nodes []placement.Node, j *job.Job) *places {
	p := &places{table: placement.New(nodes...), requests: map[role.Name]placement.Request{}, anew: map[role.Name]bool{}, nodes: nodes,
		blocked: map[string]local.Obligation{}, freed: make(chan struct{}), record: func(placement.Table) {}}
	for i := range j.Roles {
		r := placement.ForRole(j.Roles[i])
		p.requests[r.Role] = r
	}
	return p
}

// reserve places all roles of a job or none.
func (p *places) reserve(j *job.Job) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.table.Reserve(p.asked(j.Names())...); err != nil {
		return fmt.Errorf("place the job: %w", err)
	}
	return nil
}

func (p *places) asked(names []role.Name) []placement.Request {
	var all []placement.Request
	for _, n := range names {
		all = append(all, p.requests[n])
	}
	return all
}

// resume leaves roles that live where an earlier controller has placed them, and places the others beside them.
// A role that asks for something else than it was given gets that when it is placed again. It is an error if the
// machine cannot hold the job.
func (p *places) resume(j *job.Job, was *placement.Table, lives map[role.Name]bool) error {
	if err := p.reserve(j); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was.SetNodes(p.table.Nodes...)
	var others []role.Name
	kept := map[role.Name]bool{}
	for _, n := range j.Names() {
		if at, ok := was.Group(n); ok && lives[n] && len(at.Bundles) > 0 {
			kept[n] = true
			p.anew[n] = !reflect.DeepEqual(was.Request(n), p.requests[n])
		} else {
			others = append(others, n)
		}
	}
	for _, g := range was.Groups() {
		for _, n := range g.Roles {
			if !kept[n] {
				was.Release(n)
			}
		}
	}
	p.table = was
	_ = was.Reserve(p.asked(others)...) // who must wait for what a living role gives back is told when it is to begin
	return nil
}

// keep has every change of the table recorded, beginning with what it is now.
func (p *places) keep(record func(placement.Table)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.record = record
	record(*p.table)
}

// Place keeps the role's group if it is well, rebuilds what is lost of it, or reserves it anew.
func (p *places) Place(name role.Name) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.record(*p.table) }()
	if p.anew[name] {
		p.table.Release(name)
		delete(p.anew, name)
	}
	var err error
	if at, ok := p.table.Group(name); ok && at.State != placement.Released {
		if len(at.Roles) > 1 && at.Live < at.Needed && p.unblocked().live(name) > at.Live { // nothing is moved under a role that lives there
			return &engine.BlockedError{Err: fmt.Errorf("waits for %s", p.blockers()), Freed: p.freed}
		}
		_, err = p.table.Rebuild(name)
	} else {
		err = p.table.Reserve(p.requests[name])
	}
	if lacking := new(placement.Lacking); errors.As(err, &lacking) && len(p.blocked) > 0 && p.unblocked().fits(p.requests[name]) {
		return &engine.BlockedError{Err: fmt.Errorf("waits for %s", p.blockers()), Freed: p.freed}
	}
	return err
}

// trial is the table as it would be if nothing were blocked.
type trial struct{ *placement.Table }

func (p *places) unblocked() trial {
	t := trial{p.table.Clone()}
	t.SetNodes(p.nodes...)
	return t
}

// live is how many bundles of a role's group lie on what is well.
func (t trial) live(name role.Name) int {
	at, _ := t.Group(name)
	return at.Live
}

// fits says whether a role could be placed.
func (t trial) fits(r placement.Request) bool {
	if at, ok := t.Group(r.Role); ok && at.State != placement.Released {
		_, err := t.Rebuild(r.Role)
		return err == nil
	}
	return t.Reserve(r) == nil
}

// blockers says which devices are blocked, and by whom.
func (p *places) blockers() string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(p.blocked)) {
		o := p.blocked[key]
		all = append(all, fmt.Sprintf("devices %s, which may be in use by what could not be ended: %s", strings.Join(o.Devices, ", "), o))
	}
	return strings.Join(all, "; ")
}

// devicesOf are those of one service of a role, as a table has it.
func devicesOf(table *placement.Table, name role.Name, index int) []string {
	g, _ := table.Group(name)
	var nodes, devices []string
	for _, b := range g.Bundles { // services are numbered by the nodes of their first ranks
		if !slices.Contains(nodes, b.Node) {
			nodes = append(nodes, b.Node)
		}
		if slices.Index(nodes, b.Node) == index {
			devices = append(devices, b.Devices...)
		}
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}

// block has nothing placed on the devices that what could not be ended may use, and returns them: those that it
// came with, those that were blocked for its key before, and, if something new is left, those that its service has
// now.
func (p *places) block(key string, o local.Obligation) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.blocked[key]
	told := len(o.Devices) > 0 && len(was.Left) == 0 // by another controller, which knew
	o.Devices = slices.Concat(o.Devices, was.Devices)
	more := slices.ContainsFunc(o.Left, func(h proc.Holder) bool {
		return !slices.ContainsFunc(was.Left, func(x proc.Holder) bool { return x.Ident == h.Ident })
	})
	if more && !o.Earlier && !told {
		o.Devices = append(o.Devices, devicesOf(p.table, o.Role, o.Index)...)
	}
	slices.Sort(o.Devices)
	o.Devices = slices.Compact(o.Devices)
	if len(o.Devices) > 0 {
		p.blocked[key] = o
		p.setNodes()
	}
	return o.Devices
}

func (p *places) unblock(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.blocked[key]; !known {
		return
	}
	delete(p.blocked, key)
	p.setNodes()
	close(p.freed)
	p.freed = make(chan struct{})
}

// setNodes tells the table which devices can be used.
func (p *places) setNodes() {
	usable := slices.Clone(p.nodes)
	for i := range usable {
		usable[i].Devices = slices.DeleteFunc(slices.Clone(usable[i].Devices), func(d string) bool {
			for _, o := range p.blocked {
				if slices.Contains(o.Devices, d) {
					return true
				}
			}
			return false
		})
	}
	p.table.SetNodes(usable...)
}

// Release gives the role's bundles back.
func (p *places) Release(name role.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Release(name)
	p.record(*p.table)
}

// groups returns every group of the job's roles as it stands.
func (p *places) groups() []placement.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(p.table.Groups(), func(g placement.Status) bool {
		return !slices.ContainsFunc(g.Roles, func(n role.Name) bool { _, ours := p.requests[n]; return ours })
	})
}

// squad is the part of a role that runs on one node, under one service.
type squad struct {
	node    string
	ranks   []int
	devices []string         // of all its ranks, in rank order, each once
	own     map[int][]string // of each rank
}

// squads returns the role's bundles by node, in the order of their first ranks.
func (p *places) squads(r *job.Role) ([]squad, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []squad
	index := map[string]int{}
	seen := map[string]bool{}
	for rank := range r.Workers {
		at, ok := p.table.Place(r.Name, rank)
		if !ok && at.Node == "" { // one that is blocked is still where its workers are
			return nil, fmt.Errorf("rank %d of %s has no place", rank, r.Name)
		}
		i, ok := index[at.Node]
		if !ok {
			i = len(out)
			index[at.Node] = i
			out = append(out, squad{node: at.Node, own: map[int][]string{}})
		}
		s := &out[i]
		s.ranks = append(s.ranks, rank)
		s.own[rank] = at.Devices
		for _, d := range at.Devices {
			if !seen[d] {
				seen[d] = true
				s.devices = append(s.devices, d)
			}
		}
	}
	return out, nil
}
