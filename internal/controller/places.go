package controller

import (
	"fmt"
	"sync"

	"vigil/internal/job"
	"vigil/internal/placement"
	"vigil/internal/role"
)

// places shares one placement table.
type places struct {
	mu       sync.Mutex
	table    *placement.Table
	requests map[role.Name]placement.Request
}

func newPlaces(nodes []placement.Node) *places {
	return &places{table: placement.New(nodes...), requests: map[role.Name]placement.Request{}}
}

// reserve places all roles of a job or none.
func (p *places) reserve(j *job.Job) error {
	var all []placement.Request
	for i := range j.Roles {
		r := placement.ForRole(j.Roles[i])
		p.requests[r.Role] = r
		all = append(all, r)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.table.Reserve(all...); err != nil {
		return fmt.Errorf("place the job: %w", err)
	}
	return nil
}

// Place keeps the role's group if it is well, rebuilds what is lost of it, or reserves it anew.
func (p *places) Place(name role.Name) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at, ok := p.table.Group(name); ok && at.State != placement.Released {
		_, err := p.table.Rebuild(name)
		return err
	}
	return p.table.Reserve(p.requests[name])
}

// Release gives the role's bundles back.
func (p *places) Release(name role.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Release(name)
}

// groups returns every group as it stands.
func (p *places) groups() []placement.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.Groups()
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
		if !ok {
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
