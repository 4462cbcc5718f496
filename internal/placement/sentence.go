package placement

import (
	"fmt"
	"strconv"
	"strings"

	"vigil/internal/job"
)

// shown is how many nodes a sentence names before it only counts them.
const shown = 3

// sentence says which role lacks what for bundle j of ask k: "role actor needs 2 bundles of 4 GPUs,
// node local has 1 free of 8".
func (s *search) sentence(k, j int) string {
	a := s.asks[k]
	var b strings.Builder
	b.WriteString(a.group.who())
	b.WriteString(" needs ")
	b.WriteString(a.needs(j))
	if len(s.rooms) == 0 {
		b.WriteString(", no node is well")
		return b.String()
	}
	for r := range s.rooms {
		if r == shown {
			fmt.Fprintf(&b, ", and %d more nodes neither", len(s.rooms)-shown)
			break
		}
		b.WriteString(", ")
		b.WriteString(s.lacks(k, j, r))
	}
	return b.String()
}

// who names the roles of a group: "role actor", "roles actor and critic".
func (g *Group) who() string {
	names := make([]string, len(g.Requests))
	for i, r := range g.Requests {
		names[i] = string(r.Role)
	}
	if len(names) == 1 {
		return "role " + names[0]
	}
	return "roles " + strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// needs says what an ask is for, with the condition that its strategy makes.
func (a ask) needs(j int) string {
	out := fmt.Sprintf("%d bundles, the one of rank %d of %s", len(a.bundles), a.bundles[j].Rank, a.bundles[j].need())
	switch {
	case len(a.bundles) == 1:
		out = "1 bundle of " + a.bundles[0].need()
	case a.even():
		out = fmt.Sprintf("%d bundles of %s", len(a.bundles), a.bundles[0].need())
	}
	switch a.group.strategy() {
	case job.StrictPack:
		if len(a.bundles)+len(a.kept) > 1 {
			out += " on one node (STRICT_PACK)"
		}
	case job.StrictSpread:
		if len(a.bundles)+len(a.kept) > 1 {
			out += " on nodes of their own (STRICT_SPREAD)"
		}
	default: // Pack, Spread: no condition
	}
	if n := a.group.perNode(); n > 0 {
		out += fmt.Sprintf(" with at most %d on a node (per_node)", n)
	}
	return out
}

// even says whether all bundles are the same.
func (a ask) even() bool {
	for _, b := range a.bundles {
		if !b.covers(a.bundles[0]) || !a.bundles[0].covers(b) {
			return false
		}
	}
	return true
}

// lacks says why room r cannot take bundle j of ask k: what was free there before this group came,
// or, where its bundles differ, before this bundle came.
func (s *search) lacks(k, j, r int) string {
	a, now := s.asks[k], s.rooms[r]
	free, wanted := now, a.bundles[j]
	for i := range j {
		if s.where[k][i] == r && a.even() {
			free.add(a.bundles[i], +1)
		}
	}
	name := "node " + now.node.Name
	if a.group.strategy() == job.StrictPack {
		now = free
		wanted = Bundle{}
		for _, b := range a.bundles {
			wanted.GPUs, wanted.CPUs, wanted.Memory = wanted.GPUs+b.GPUs, wanted.CPUs+b.CPUs, wanted.Memory+b.Memory
		}
	}
	var short []string
	if now.gpus < wanted.GPUs {
		short = append(short, fmt.Sprintf("%d free of %s", free.gpus, plural(len(now.node.Devices), "GPU")))
	}
	if now.cpus+slack < wanted.CPUs {
		short = append(short, fmt.Sprintf("%s free of %s CPUs", number(free.cpus), number(now.node.CPUs)))
	}
	if now.memory < wanted.Memory {
		short = append(short, fmt.Sprintf("%s free of %s", size(free.memory), size(now.node.Memory)))
	}
	if len(short) > 0 {
		return name + " has " + strings.Join(short, " and ")
	}
	if n := s.count[k][r]; n > 0 {
		return fmt.Sprintf("%s holds %d of them already", name, n)
	}
	if len(a.kept) > 0 && a.group.strategy() == job.StrictPack {
		return fmt.Sprintf("%s is not where the others are", name)
	}
	return name + " may not hold them all"
}

// need says what a bundle is: "4 GPUs, 2 CPUs and 8Gi of memory".
func (b Bundle) need() string {
	var parts []string
	if b.GPUs > 0 {
		parts = append(parts, plural(b.GPUs, "GPU"))
	}
	if b.CPUs > 0 {
		if b.CPUs == 1 {
			parts = append(parts, "1 CPU")
		} else {
			parts = append(parts, number(b.CPUs)+" CPUs")
		}
	}
	if b.Memory > 0 {
		parts = append(parts, size(b.Memory)+" of memory")
	}
	switch n := len(parts); n {
	case 0:
		return "no resources"
	case 1:
		return parts[0]
	default:
		return strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}

func number(x float64) string { return strconv.FormatFloat(max(x, 0), 'g', 6, 64) }

// size writes bytes as the job file does: 8Gi, 512Mi, or plain.
func size(n int64) string {
	n = max(n, 0)
	switch {
	case n >= 1<<30:
		return strconv.FormatFloat(float64(n)/(1<<30), 'g', 4, 64) + "Gi"
	case n >= 1<<20:
		return strconv.FormatFloat(float64(n)/(1<<20), 'g', 4, 64) + "Mi"
	default:
		return strconv.FormatInt(n, 10) + " bytes"
	}
}
