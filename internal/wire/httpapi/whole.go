package httpapi

// A list in an answer is never null: clients walk it without asking.

func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

// each returns the items with whole done to each.
func each[T any](items []T, whole func(T) T) []T {
	out := make([]T, len(items))
	for i, item := range items {
		out[i] = whole(item)
	}
	return out
}

func (j Job) whole() Job {
	j.Obligations = list(j.Obligations)
	return j
}

func (r Role) whole() Role {
	r.Workers = list(r.Workers)
	return r
}

func (p Peer) whole() Peer {
	if p.Ports == nil {
		p.Ports = map[string]int{}
	}
	return p
}

func (i Incident) whole() Incident {
	i.Roles = list(i.Roles)
	return i
}

func (f Forecast) whole() Forecast {
	f.Lines, f.Roles = list(f.Lines), list(f.Roles)
	return f
}

func (g PlacementGroup) whole() PlacementGroup {
	g.Roles, g.Bundles = list(g.Roles), each(g.Bundles, Bundle.whole)
	return g
}

func (b Bundle) whole() Bundle {
	b.Devices = list(b.Devices)
	return b
}
