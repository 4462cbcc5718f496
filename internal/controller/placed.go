package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"vigil/internal/journal"
	"vigil/internal/placement"
)

// placesInRecord is how many places one record holds: far below the journal's largest record also where each has
// dozens of devices with long names.
const placesInRecord = 500

// groupRecord is one placement group in the journal, without its places: those are in Parts records of their own.
type groupRecord struct {
	Name     string            `json:"name"`
	Order    int               `json:"order"` // among the groups, from 0
	State    placement.State   `json:"state"`
	Why      string            `json:"why,omitempty"`
	Requests []requestedRecord `json:"requests,omitempty"`
	Parts    int               `json:"parts"`
}

// requestedRecord is a request with equal bundles counted instead of repeated.
type requestedRecord struct {
	placement.Request             // without its bundles
	Runs              []bundleRun `json:"runs,omitempty"`
}

// bundleRun is bundles of consecutive ranks that need the same. The rank of Each is that of the first.
type bundleRun struct {
	Count int              `json:"count"`
	Each  placement.Bundle `json:"each"`
}

// placed keeps the placement table in the journal, a record for each group. It writes what has changed, and again
// what the journal has refused.
type placed struct {
	journal *journal.Journal

	mu      sync.Mutex
	written map[string]placement.Group // by name, as it was written last
	parts   map[string]int             // by name, of what was written last
	refused *placement.Table           // the newest table that could not be written; nil: none
}

func newPlaced(j *journal.Journal) *placed {
	return &placed{journal: j, written: map[string]placement.Group{}, parts: map[string]int{}}
}

func groupKey(name string) string            { return "group/" + name }
func placesKey(name string, part int) string { return fmt.Sprintf("places/%s/%d", name, part) }

// record writes what has changed of the table since the last call.
func (p *placed) record(t placement.Table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var entries []journal.Entry
	if len(p.written) == 0 { // of an older version, or of a group that there is no more
		entries = append(entries, journal.Delete(journal.Placement, placementKey))
		entries = append(entries, p.forgotten(&t)...)
	}
	changed := map[string]int{} // parts, by group
	for i := range t.Held {
		g := &t.Held[i]
		if was, known := p.written[g.Name]; known && sameGroup(&was, g) {
			continue
		}
		more := entriesOf(g, i)
		changed[g.Name] = len(more) - 1
		for part := changed[g.Name]; part < p.parts[g.Name]; part++ {
			more = append(more, journal.Delete(journal.Placement, placesKey(g.Name, part)))
		}
		entries = append(entries, more...)
	}
	if len(entries) == 0 {
		return
	}
	commit := p.journal.Write(entries...)
	select {
	case <-commit.Done():
		if commit.Err() != nil { // which the journal says
			p.refused = t.Clone()
			return
		}
	default:
	}
	p.refused = nil
	for i := range t.Held {
		if parts, is := changed[t.Held[i].Name]; is {
			p.parts[t.Held[i].Name] = parts
		}
	}
	for i, g := range t.Clone().Held {
		if _, is := changed[t.Held[i].Name]; is {
			p.written[g.Name] = g
		}
	}
}

// again writes what was refused.
func (p *placed) again() {
	p.mu.Lock()
	t := p.refused
	p.mu.Unlock()
	if t != nil {
		p.record(*t)
	}
}

// forgotten deletes the records that an earlier controller has left and that are not about to be replaced.
func (p *placed) forgotten(t *placement.Table) []journal.Entry {
	all, err := journal.Read[json.RawMessage](p.journal, journal.Placement)
	if err != nil {
		return nil // who reads the table says so
	}
	keep := map[string]bool{placementKey: true} // deleted already
	for i := range t.Held {
		keep[groupKey(t.Held[i].Name)] = true
		for part := range partsOf(&t.Held[i]) {
			keep[placesKey(t.Held[i].Name, part)] = true
		}
	}
	var out []journal.Entry
	for key := range all {
		if !keep[key] {
			out = append(out, journal.Delete(journal.Placement, key))
		}
	}
	return out
}

// sameGroup compares what is written of groups. It is called for every group whenever one changes.
func sameGroup(a, b *placement.Group) bool {
	return a.State == b.State && a.Why == b.Why &&
		slices.EqualFunc(a.Places, b.Places, func(x, y placement.Place) bool {
			return x.Bundle == y.Bundle && x.Node == y.Node && slices.Equal(x.Devices, y.Devices)
		}) &&
		slices.EqualFunc(a.Requests, b.Requests, func(x, y placement.Request) bool {
			return x.Group == y.Group && x.Role == y.Role && x.Strategy == y.Strategy && x.PerNode == y.PerNode && slices.Equal(x.Bundles, y.Bundles)
		})
}

// partsOf is how many records the places of a group take.
func partsOf(g *placement.Group) int { return (len(g.Places) + placesInRecord - 1) / placesInRecord }

// entriesOf are the records of a group: itself, then its places.
func entriesOf(g *placement.Group, order int) []journal.Entry {
	head := groupRecord{Name: g.Name, Order: order, State: g.State, Why: g.Why, Parts: partsOf(g)}
	for _, q := range g.Requests {
		head.Requests = append(head.Requests, counted(q))
	}
	out := []journal.Entry{journal.Put(journal.Placement, groupKey(g.Name), head)}
	part := 0
	for places := range slices.Chunk(g.Places, placesInRecord) {
		out = append(out, journal.Put(journal.Placement, placesKey(g.Name, part), places))
		part++
	}
	return out
}

// counted returns a request as it is kept.
func counted(q placement.Request) requestedRecord {
	out := requestedRecord{Request: q}
	out.Bundles = nil
	for _, b := range q.Bundles {
		if n := len(out.Runs); n > 0 {
			last := &out.Runs[n-1]
			same := last.Each
			same.Rank += last.Count
			if same == b {
				last.Count++
				continue
			}
		}
		out.Runs = append(out.Runs, bundleRun{1, b})
	}
	return out
}

// request returns the request that was counted.
func (r requestedRecord) request() placement.Request {
	q := r.Request
	for _, run := range r.Runs {
		for i := range run.Count {
			b := run.Each
			b.Rank += i
			q.Bundles = append(q.Bundles, b)
		}
	}
	return q
}

// placedIn reads the placement table that an earlier controller has kept, in one record or in many, without its
// nodes, and says whether there is one.
func placedIn(j *journal.Journal) (t placement.Table, known bool, err error) {
	all, err := journal.Read[json.RawMessage](j, journal.Placement)
	if err != nil {
		return t, false, err
	}
	if one, is := all[placementKey]; is {
		if err := json.Unmarshal(one, &t); err != nil {
			return t, false, fmt.Errorf("read the placement table: %w", err)
		}
		return t, true, nil
	}
	var heads []groupRecord
	for key, text := range all {
		if !strings.HasPrefix(key, groupKey("")) {
			continue
		}
		var head groupRecord
		if err := json.Unmarshal(text, &head); err != nil {
			return t, false, fmt.Errorf("read placement %q: %w", key, err)
		}
		heads = append(heads, head)
	}
	slices.SortFunc(heads, func(a, b groupRecord) int { return cmp.Compare(a.Order, b.Order) })
	for _, head := range heads {
		g := placement.Group{Name: head.Name, State: head.State, Why: head.Why}
		for _, r := range head.Requests {
			g.Requests = append(g.Requests, r.request())
		}
		for part := range head.Parts {
			var places []placement.Place
			if err := json.Unmarshal(all[placesKey(head.Name, part)], &places); err != nil {
				return t, false, fmt.Errorf("read placement %q: %w", placesKey(head.Name, part), err)
			}
			g.Places = append(g.Places, places...)
		}
		t.Held = append(t.Held, g)
	}
	return t, len(heads) > 0, nil
}
