package placement

import (
	"cmp"
	"slices"

	"vigil/internal/job"
)

// slack is how far sums of CPUs may be off: they are fractions that binary numbers only approach.
const slack = 1e-9

// tries bounds the search for a fit. The first path is the preferred one and nearly always leads
// there; the others are for tight fits of unequal groups on unequal nodes.
const tries = 20_000

// ask is what is to be placed for one group: its bundles, beside those that are kept.
type ask struct {
	group   *Group
	kept    []Place
	bundles []Bundle
}

// room is what is free on one node that is well.
type room struct {
	node   *Node
	gpus   int
	cpus   float64
	memory int64
}

func (r *room) fits(b Bundle) bool {
	return r.gpus >= b.GPUs && r.cpus+slack >= b.CPUs && r.memory >= b.Memory
}

func (r *room) add(b Bundle, sign int) {
	r.gpus += sign * b.GPUs
	r.cpus += float64(sign) * b.CPUs
	r.memory += int64(sign) * b.Memory
}

// search is one attempt to place everything that is asked for.
type search struct {
	rooms  []room
	asks   []ask // hardest first
	count  [][]int
	where  [][]int // by ask and bundle: index of the room
	budget int
	lack   *Lacking // why the first path did not lead there
}

// solve places all that is asked for beside what is taken. It returns, for each ask, the places of
// the whole group by rank, or a *Lacking without its state.
func (t *Table) solve(asks []ask, taken []Place) ([][]Place, *Lacking) {
	order := make([]int, len(asks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return harder(asks[a], asks[b]) })
	s := &search{budget: tries, rooms: t.rooms(asks, taken)}
	for _, i := range order {
		a := asks[i]
		count := make([]int, len(s.rooms))
		for _, p := range a.kept {
			if r := s.room(p.Node); r >= 0 {
				count[r]++
			}
		}
		s.asks, s.count = append(s.asks, a), append(s.count, count)
		s.where = append(s.where, make([]int, len(a.bundles)))
	}
	if !s.place(0, 0) {
		return nil, s.lack
	}
	where := make([][]int, len(asks))
	for k, i := range order {
		where[i] = s.where[k]
	}
	return s.handOut(asks, where, taken), nil
}

// harder orders asks so that those with the least choice come first.
func harder(a, b ask) int {
	return cmp.Or(
		-cmp.Compare(strictness(a.group.strategy()), strictness(b.group.strategy())),
		-cmp.Compare(largest(a).GPUs, largest(b).GPUs),
		-cmp.Compare(largest(a).CPUs, largest(b).CPUs),
		-cmp.Compare(largest(a).Memory, largest(b).Memory),
	)
}

func strictness(s job.Strategy) int {
	switch s {
	case job.StrictPack:
		return 2
	case job.StrictSpread:
		return 1
	default: // Pack, Spread: a wish, not a condition
		return 0
	}
}

func largest(a ask) Bundle {
	var m Bundle
	for _, b := range a.bundles {
		m.GPUs, m.CPUs, m.Memory = max(m.GPUs, b.GPUs), max(m.CPUs, b.CPUs), max(m.Memory, b.Memory)
	}
	return m
}

func (g *Group) strategy() job.Strategy { return g.Requests[0].Strategy }

// rooms returns what is free beside what is taken and kept.
func (t *Table) rooms(asks []ask, taken []Place) []room {
	var rooms []room
	for i := range t.Nodes {
		n := &t.Nodes[i]
		if !n.Well {
			continue
		}
		r := room{node: n, gpus: len(n.Devices), cpus: n.CPUs, memory: n.Memory}
		use := func(p Place) {
			if p.Node != n.Name {
				return
			}
			r.cpus -= p.CPUs
			r.memory -= p.Memory
			for _, d := range p.Devices {
				if slices.Contains(n.Devices, d) {
					r.gpus--
				}
			}
		}
		for _, p := range taken {
			use(p)
		}
		for _, a := range asks {
			for _, p := range a.kept {
				use(p)
			}
		}
		rooms = append(rooms, r)
	}
	return rooms
}

func (s *search) room(node string) int {
	return slices.IndexFunc(s.rooms, func(r room) bool { return r.node.Name == node })
}

// place places bundle j of ask k and all that follow. It goes back where a choice leads nowhere.
func (s *search) place(k, j int) bool {
	for k < len(s.asks) && j == len(s.asks[k].bundles) {
		k, j = k+1, 0
	}
	if k == len(s.asks) {
		return true
	}
	b := s.asks[k].bundles[j]
	var tried []int
	for _, r := range s.choices(k, j) {
		if s.budget <= 0 {
			return false
		}
		if slices.ContainsFunc(tried, func(o int) bool { return s.alike(o, r) }) {
			continue
		}
		tried = append(tried, r)
		s.rooms[r].add(b, -1)
		s.count[k][r]++
		s.where[k][j] = r
		if s.place(k, j+1) {
			return true
		}
		s.rooms[r].add(b, +1)
		s.count[k][r]--
		s.budget--
	}
	if s.lack == nil {
		s.lack = &Lacking{Group: s.asks[k].group.Name, Why: s.sentence(k, j)}
	}
	return false
}

// alike says whether two rooms are the same to everything that is still to be placed.
func (s *search) alike(a, b int) bool {
	x, y := s.rooms[a], s.rooms[b]
	if x.gpus != y.gpus || x.cpus != y.cpus || x.memory != y.memory {
		return false
	}
	for _, c := range s.count {
		if c[a] != c[b] {
			return false
		}
	}
	return true
}

// choices returns the rooms that can take bundle j of ask k, the one that the strategy likes best
// first. Among equals the order is that of the nodes.
func (s *search) choices(k, j int) []int {
	a, count := s.asks[k], s.count[k]
	var out []int
	for r := range s.rooms {
		if s.rooms[r].fits(a.bundles[j]) && s.allowed(k, j, r) {
			out = append(out, r)
		}
	}
	if a.group.strategy() == job.Spread || a.group.strategy() == job.StrictSpread {
		slices.SortStableFunc(out, func(x, y int) int {
			return cmp.Or(cmp.Compare(count[x], count[y]), cmp.Compare(s.rooms[y].gpus, s.rooms[x].gpus), cmp.Compare(s.rooms[y].cpus, s.rooms[x].cpus))
		})
		return out
	}
	takes := map[int]int{}
	if !slices.ContainsFunc(out, func(r int) bool { return count[r] > 0 }) {
		for _, r := range out {
			takes[r] = s.takes(k, j, r)
		}
	}
	slices.SortStableFunc(out, func(x, y int) int {
		return cmp.Or(
			-cmp.Compare(min(count[x], 1), min(count[y], 1)), // a node that the group is on already
			-cmp.Compare(takes[x], takes[y]),                 // then where most of the rest fits, if it is on none
			cmp.Compare(s.rooms[x].gpus, s.rooms[y].gpus),    // then the tightest
			cmp.Compare(s.rooms[x].cpus, s.rooms[y].cpus),
		)
	})
	return out
}

// allowed says whether strategy and per_node let bundle j of ask k lie in room r.
func (s *search) allowed(k, j, r int) bool {
	a, count := s.asks[k], s.count[k]
	if limit := a.group.perNode(); limit > 0 && count[r] >= limit {
		return false
	}
	switch a.group.strategy() {
	case job.StrictSpread:
		return count[r] == 0
	case job.StrictPack:
		return count[r] == len(a.kept)+j && (j > 0 || s.takes(k, j, r) == len(a.bundles))
	default: // Pack, Spread
		return true
	}
}

// takes returns how many of the bundles from j on fit into room r one after the other.
func (s *search) takes(k, j, r int) int {
	a, room, n := s.asks[k], s.rooms[r], 0
	limit := a.group.perNode()
	for _, b := range a.bundles[j:] {
		if !room.fits(b) || limit > 0 && s.count[k][r]+n >= limit {
			break
		}
		room.add(b, -1)
		n++
	}
	return n
}

// handOut gives each bundle its devices: the first free ones of its node, by group and rank.
func (s *search) handOut(asks []ask, where [][]int, taken []Place) [][]Place {
	held := map[string]map[string]bool{}
	hold := func(p Place) {
		if held[p.Node] == nil {
			held[p.Node] = map[string]bool{}
		}
		for _, d := range p.Devices {
			held[p.Node][d] = true
		}
	}
	for _, p := range taken {
		hold(p)
	}
	out := make([][]Place, len(asks))
	for i, a := range asks {
		for _, p := range a.kept {
			hold(p)
		}
		out[i] = slices.Clone(a.kept)
	}
	for i, a := range asks {
		for j, b := range a.bundles {
			n := s.rooms[where[i][j]].node
			p := Place{Bundle: b, Node: n.Name}
			for _, d := range n.Devices {
				if len(p.Devices) < b.GPUs && !held[n.Name][d] {
					p.Devices = append(p.Devices, d)
				}
			}
			hold(p)
			out[i] = append(out[i], p)
		}
		slices.SortFunc(out[i], func(x, y Place) int { return cmp.Compare(x.Rank, y.Rank) })
	}
	return out
}
