package placement

import (
	"fmt"
	"slices"
	"strings"

	"vigil/internal/role"
)

// Lacking says that requests could not be met: nothing was reserved.
type Lacking struct {
	State State  // Infeasible, or Pending when it could be met once others give back what they hold
	Group string // which could not be placed
	Why   string // one sentence that names role, need and what there is
}

// Error returns the sentence.
func (e *Lacking) Error() string { return "place group " + e.Group + ": " + e.Why }

// Reserve places the groups of all requests, or none of them. Where it cannot, the error is a
// *Lacking for the first group that did not fit, and all groups of the batch stay on view: that one
// with its state and sentence, the others as PENDING. Any other error is a mistake in the requests,
// and changes nothing. Asking again for groups that are not reserved replaces the earlier request; a
// role that has its bundles already must be released first. A role may join a group that is reserved
// already, if its bundles are large enough; further ones are added.
func (t *Table) Reserve(requests ...Request) error {
	next := t.clone()
	names, err := next.enter(requests)
	if err != nil {
		return err
	}
	var asks []ask
	for _, name := range names {
		asks = append(asks, next.missing(next.find(name)))
	}
	places, lack := next.settle(asks)
	if lack == nil {
		for i, name := range names {
			g := next.find(name)
			g.Places, g.State, g.Why = places[i], Reserved, ""
		}
		*t = *next
		return nil
	}
	for _, name := range names {
		g := next.find(name)
		if len(g.Places) > 0 { // it stood before: the roles that would have joined stay out
			*g = *t.find(name).clone()
			continue
		}
		g.State, g.Why = Pending, "waits for group "+lack.Group
		if name == lack.Group {
			g.State, g.Why = lack.State, lack.Why
		}
	}
	*t = *next
	return lack
}

// enter notes the requests in their groups and returns the names of these in order.
func (t *Table) enter(requests []Request) ([]string, error) {
	var names []string
	seen := map[role.Name]bool{}
	for _, r := range requests {
		if err := r.check(); err != nil {
			return nil, err
		}
		if seen[r.Role] {
			return nil, fmt.Errorf("reserve for role %s: asked for twice", r.Role)
		}
		seen[r.Role] = true
		name := r.group()
		if old := t.groupOf(r.Role); old != nil {
			if old.State == Reserved {
				return nil, fmt.Errorf("reserve for role %s: it has group %s already", r.Role, old.Name)
			}
			t.leave(old, r.Role)
		}
		g := t.find(name)
		if g == nil {
			t.Held = append(t.Held, Group{Name: name, State: Pending})
			g = t.find(name)
		}
		if g.State != Reserved {
			g.State, g.Why = Pending, ""
		}
		for _, o := range g.Requests {
			if o.Strategy != r.Strategy {
				return nil, fmt.Errorf("reserve for role %s: it wants group %s with strategy %s, role %s wants it with %s", r.Role, name, r.Strategy, o.Role, o.Strategy)
			}
		}
		for i, p := range g.Places {
			if i < len(r.Bundles) && !p.covers(r.Bundles[i]) {
				return nil, fmt.Errorf("reserve for role %s: rank %d needs %s, its bundle in group %s is reserved with %s", r.Role, i, r.Bundles[i].need(), name, p.need())
			}
		}
		r.Bundles = slices.Clone(r.Bundles)
		g.Requests = append(g.Requests, r)
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	t.sweep()
	return names, nil
}

// leave takes a role out of a group.
func (t *Table) leave(g *Group, name role.Name) {
	g.Requests = slices.DeleteFunc(g.Requests, func(r Request) bool { return r.Role == name })
}

// sweep forgets groups that no role asks for.
func (t *Table) sweep() {
	t.Held = slices.DeleteFunc(t.Held, func(g Group) bool { return len(g.Requests) == 0 })
}

// Change says what Rebuild did.
type Change struct {
	Kept  bool  // everything stands as it stood
	Moved []int // ranks whose bundle was placed anew, ascending
}

// Rebuild makes the group of a role whole again. If its nodes and devices are well it is kept. If
// not, what is lost is placed anew and what still stands is kept; where that cannot be done within
// the strategy and no other role shares the group, all of it is placed anew. If that cannot be done
// either, the error is a *Lacking and the group keeps what it has: it stays PARTIAL, or becomes
// INFEASIBLE or PENDING when nothing of it is left.
func (t *Table) Rebuild(name role.Name) (Change, error) {
	g := t.groupOf(name)
	if g == nil || g.State == Released {
		return Change{}, fmt.Errorf("rebuild placement group of role %s: it has none", name)
	}
	if t.status(g).State == Reserved {
		return Change{Kept: true}, nil
	}
	ways := []ask{t.missing(g)}
	if len(g.Requests) == 1 {
		ways = append(ways, ask{group: g, bundles: g.bundles()})
	}
	var first *Lacking
	for _, way := range ways {
		places, lack := t.settle([]ask{way})
		if lack == nil {
			ch := Change{}
			for _, b := range way.bundles {
				ch.Moved = append(ch.Moved, b.Rank)
			}
			g.Places, g.State, g.Why = places[0], Reserved, ""
			return ch, nil
		}
		if first == nil {
			first = lack
		}
	}
	g.Why = first.Why
	if t.status(g).Live == 0 {
		g.State, g.Places = first.State, nil
	}
	return Change{}, first
}

// Release gives back what a role holds. The bundles of a shared group are kept for the roles that
// remain; the group of the last role is RELEASED and stays on view until it is asked for again.
func (t *Table) Release(names ...role.Name) {
	for _, name := range names {
		g := t.groupOf(name)
		if g == nil {
			continue
		}
		if len(g.Requests) == 1 {
			g.Places, g.State, g.Why = nil, Released, ""
			continue
		}
		t.leave(g, name)
		if n := len(g.bundles()); len(g.Places) > n {
			g.Places = slices.Clone(g.Places[:n])
		}
	}
}

// missing returns what of a group is to be placed: bundles that were never placed, or are lost.
func (t *Table) missing(g *Group) ask {
	a := ask{group: g}
	for i, b := range g.bundles() {
		if i < len(g.Places) && t.live(g.Places[i]) {
			a.kept = append(a.kept, g.Places[i])
			continue
		}
		a.bundles = append(a.bundles, b)
	}
	return a
}

// settle finds places for what is asked, beside everything that other groups hold. It changes
// nothing. When it cannot, it tells whether empty nodes could.
func (t *Table) settle(asks []ask) ([][]Place, *Lacking) {
	places, lack := t.solve(asks, t.others(asks))
	if lack == nil {
		return places, nil
	}
	lack.State = Infeasible
	var anew []ask
	for _, a := range asks {
		anew = append(anew, ask{group: a.group, bundles: a.group.bundles()})
	}
	if _, still := t.solve(anew, nil); still == nil {
		lack.State = Pending
		if holders := t.holders(asks); holders != "" {
			lack.Why += "; held by " + holders
		}
	}
	return nil, lack
}

// others returns what groups hold that are not among those asked for.
func (t *Table) others(asks []ask) []Place {
	var out []Place
	for i := range t.Held {
		g := &t.Held[i]
		if !slices.ContainsFunc(asks, func(a ask) bool { return a.group.Name == g.Name }) {
			out = append(out, g.Places...)
		}
	}
	return out
}

// holders names the other groups that hold something.
func (t *Table) holders(asks []ask) string {
	var out []string
	for _, g := range t.Held {
		if len(g.Places) > 0 && !slices.ContainsFunc(asks, func(a ask) bool { return a.group.Name == g.Name }) {
			out = append(out, g.Name)
		}
	}
	return strings.Join(out, ", ")
}

// Clone returns a table that shares nothing with this one.
func (t *Table) Clone() *Table { return t.clone() }

func (t *Table) clone() *Table {
	c := New(t.Nodes...)
	for i := range t.Held {
		c.Held = append(c.Held, *t.Held[i].clone())
	}
	return c
}

func (g *Group) clone() *Group {
	c := *g
	c.Requests = slices.Clone(g.Requests)
	c.Places = slices.Clone(g.Places)
	return &c
}
