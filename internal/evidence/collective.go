package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"vigil/internal/role"
)

const (
	leastWait = time.Second     // in a collective that is worth a word
	sameTime  = 2 * time.Minute // by which dumps of one moment may differ
	mostRanks = 8               // numbers, or ranges of them, that are written out
)

// Collective reads the dumps of NCCL's flight recorder that an incident's folder holds of a role's
// incarnation, and says in one sentence which collective does not come to an end and who is to blame for
// it: a rank that has not entered it, ranks that have entered different ones, or one that has not left.
// It is empty where the dumps do not say so. What a rank without a dump does is never guessed. problems
// are dumps that could not be read; of those that ctx leaves no time for only the first is told.
func Collective(ctx context.Context, dir string, name role.Name, incarnation int) (sentence string, problems []error) {
	home := filepath.Join(dir, string(name), strconv.Itoa(incarnation))
	w := world{dumps: map[int]*dump{}}
	attempts := lives(home)
	w.ranks = slices.Sorted(maps.Keys(attempts))
	for _, rank := range w.ranks {
		if ctx.Err() != nil && len(problems) > 0 { // said already
			w.broken = append(w.broken, rank)
			continue
		}
		d, err := readDump(ctx, filepath.Join(home, fmt.Sprintf("%d.%d", rank, attempts[rank]), "nccl_trace"), rank)
		switch {
		case err == nil:
			w.dumps[rank] = d
		case !errors.Is(err, fs.ErrNotExist):
			w.broken = append(w.broken, rank)
			problems = append(problems, err)
		}
	}
	w.dropOld()
	sentence, err := w.say(ctx)
	if err != nil && len(problems) == 0 {
		problems = append(problems, err)
	}
	return sentence, problems
}

// lives returns the newest attempt of each rank that has a folder RANK.ATTEMPT in dir.
func lives(dir string) map[int]int {
	entries, _ := os.ReadDir(dir) // none, or no more
	attempts := map[int]int{}
	for _, e := range entries {
		first, second, _ := strings.Cut(e.Name(), ".")
		rank, err := strconv.Atoi(first)
		attempt, err2 := strconv.Atoi(second)
		if err == nil && err2 == nil && e.IsDir() && rank >= 0 {
			attempts[rank] = max(attempts[rank], attempt)
		}
	}
	return attempts
}

// world is what is known of the ranks of a role.
type world struct {
	ranks  []int
	dumps  map[int]*dump
	broken []int // ranks whose dumps cannot be read
	old    []int // ranks whose dumps are of an earlier moment
}

// dropOld leaves out dumps that were written long before the newest.
func (w *world) dropOld() {
	var newest time.Time
	for _, d := range w.dumps {
		if d.at.After(newest) {
			newest = d.at
		}
	}
	for rank, d := range w.dumps {
		if newest.Sub(d.at) > sameTime {
			w.old = append(w.old, rank)
			delete(w.dumps, rank)
		}
	}
}

// finding is what the dumps say of one process group. The lower its weight, the likelier it is what
// everything else waits for.
type finding struct {
	weight int
	waited time.Duration
	words  string
}

// The weights of findings.
const (
	disagreement  = iota // ranks have entered different collectives
	culprit              // a rank that waits nowhere has not entered, or left, what others wait in
	unknownRank          // who is missing has no dump
	waitsToo             // who is missing waits in another process group
	nobodyMissing        // all have entered
)

// say makes the sentence, as long as ctx lets it.
func (w *world) say(ctx context.Context) (string, error) {
	names := map[string]bool{}
	for _, d := range w.dumps {
		for name := range d.groups {
			names[name] = true
		}
	}
	var found []finding
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f, ok := w.judge(ctx, name)
		if ctx.Err() != nil {
			return "", fmt.Errorf("the dumps are not compared to their end: %w", context.Cause(ctx))
		}
		if ok {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return "", nil
	}
	return slices.MinFunc(found, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.weight, b.weight), cmp.Compare(b.waited, a.waited))
	}).words, nil
}

// group is one process group as the dumps show it. Ranks are in order.
type group struct {
	*world
	name     string
	title    string // what it is called in a sentence
	known    []int  // ranks whose dumps show how far they are
	unknown  []int  // members of whom that is not known
	standing map[int]*standing
}

// group gathers what the dumps say of a process group; not all of it once ctx has ended.
func (w *world) group(ctx context.Context, name string) group {
	g := group{world: w, name: name, standing: map[int]*standing{}}
	all := map[int]bool{}
	for _, rank := range w.ranks {
		if d := w.dumps[rank]; d != nil && d.groups[name] != nil && ctx.Err() == nil {
			for _, member := range d.groups[name].members {
				all[member] = true
			}
			g.title = cmp.Or(g.title, d.groups[name].desc)
		}
	}
	members := slices.Sorted(maps.Keys(all))
	if len(members) == 0 {
		members = w.ranks
	}
	for _, rank := range members {
		d := w.dumps[rank]
		switch {
		case d == nil, d.goneOn && (d.groups[name] == nil || d.groups[name].newest == 0):
			g.unknown = append(g.unknown, rank)
			continue
		case d.groups[name] == nil:
			g.standing[rank] = &standing{}
		default:
			g.standing[rank] = d.groups[name]
		}
		g.known = append(g.known, rank)
	}
	if g.title == "" || w.shared(g.title, name) {
		g.title = strings.TrimSpace(g.title + " " + plain(name))
	}
	g.title = "process group " + g.title
	return g
}

// shared reports whether another process group is called the same.
func (w *world) shared(title, name string) bool {
	for _, d := range w.dumps {
		for other, s := range d.groups {
			if other != name && s.desc == title {
				return true
			}
		}
	}
	return false
}

// judge finds the collective of a process group that does not end, and who is to blame.
func (w *world) judge(ctx context.Context, name string) (finding, bool) {
	g := w.group(ctx, name)
	at := int64(0) // the oldest that somebody is in
	for _, rank := range g.known {
		if first := g.standing[rank].waits; first > 0 && (at == 0 || first < at) {
			at = first
		}
	}
	if at == 0 {
		return finding{}, false
	}
	var in, before, beyond []int
	for _, rank := range g.known {
		switch s := g.standing[rank]; {
		case s.newest < at:
			before = append(before, rank)
		case s.waits == at:
			in = append(in, rank)
		default:
			beyond = append(beyond, rank)
		}
	}
	f := finding{waited: g.waited(in, at)}
	if f.waited < leastWait {
		return finding{}, false
	}
	f.weight, f.words = g.word(at, in, before, beyond, f.waited)
	return f, true
}

// word says how the ranks stand about collective at.
func (g *group) word(at int64, in, before, beyond []int, waited time.Duration) (weight int, words string) {
	op := g.standing[in[0]].seen[at].op()
	what := fmt.Sprintf("%s #%d (%s, %s)", short(op), at, op, g.title)
	since := fmt.Sprintf("since %d s", int64(waited.Round(time.Second)/time.Second))
	if ops := g.operations(at); len(ops) > 1 {
		var parts []string
		var all []int
		for _, o := range slices.Sorted(maps.Keys(ops)) {
			parts = append(parts, fmt.Sprintf("%s on %s", short(o), ranks(ops[o])))
			all = append(all, ops[o]...)
		}
		slices.Sort(all)
		return disagreement, fmt.Sprintf("%s of the world disagree at #%d of %s: %s%s", ranks(all), at, g.title, strings.Join(parts, " and "), g.gaps())
	}
	switch {
	case len(before) > 0:
		return g.blame(before), fmt.Sprintf("%s of the world %s not entered %s; %s %s in it %s%s", ranks(before), verb(before, "has", "have"), what, ranks(in), verb(in, "waits", "wait"), since, g.gaps())
	case len(beyond) > 0:
		return g.blame(in), fmt.Sprintf("%s of the world %s in %s %s, which %s %s left%s", ranks(in), verb(in, "is", "are"), what, since, ranks(beyond), verb(beyond, "has", "have"), g.gaps())
	case len(g.unknown) > 0:
		return unknownRank, fmt.Sprintf("%s of the world %s in %s %s%s", ranks(in), verb(in, "waits", "wait"), what, since, g.gaps())
	default:
		return nobodyMissing, fmt.Sprintf("all ranks of %s (%s) are in %s #%d (%s) %s: none is missing and none leaves it", g.title, ranks(in), short(op), at, op, since)
	}
}

// blame is the weight of a finding about ranks: whoever waits in another process group is held up there.
func (g *group) blame(culprits []int) int {
	for _, rank := range culprits {
		for name, s := range g.dumps[rank].groups {
			if name != g.name && s.waits > 0 {
				return waitsToo
			}
		}
	}
	return culprit
}

// waited is how long the first of the ranks has been in a collective.
func (g *group) waited(in []int, at int64) time.Duration {
	longest := time.Duration(0)
	for _, rank := range in {
		longest = max(longest, g.dumps[rank].at.Sub(g.standing[rank].seen[at].created))
	}
	return longest
}

// operations returns which ranks have entered a collective as what.
func (g *group) operations(at int64) map[string][]int {
	ops := map[string][]int{}
	for _, rank := range g.known {
		if c := g.standing[rank].seen[at]; c != nil {
			ops[c.op()] = append(ops[c.op()], rank)
		}
	}
	return ops
}

// gaps says of which members nothing is known, and why.
func (g *group) gaps() string {
	var none, broken, old, gone []int
	for _, rank := range g.unknown {
		switch {
		case g.dumps[rank] != nil:
			gone = append(gone, rank)
		case slices.Contains(g.old, rank):
			old = append(old, rank)
		case slices.Contains(g.broken, rank):
			broken = append(broken, rank)
		default:
			none = append(none, rank)
		}
	}
	words := ""
	if len(none) > 0 {
		words += fmt.Sprintf("; %s %s left no dump", ranks(none), verb(none, "has", "have"))
	}
	if len(broken) > 0 {
		words += fmt.Sprintf("; the dump of %s cannot be read", ranks(broken))
	}
	if len(old) > 0 {
		words += fmt.Sprintf("; the dump of %s is older", ranks(old))
	}
	if len(gone) > 0 {
		words += fmt.Sprintf("; the dump of %s holds nothing of this group any more", ranks(gone))
	}
	return words
}

// op is what the collective is, as the flight recorder calls it.
func (c *collective) op() string {
	names := slices.Compact(slices.Clone(c.names))
	return cmp.Or(strings.Join(names, "+"), "a collective")
}

// short is an operation without the backend: all_reduce of nccl:all_reduce.
func short(op string) string {
	if _, name, ok := strings.Cut(op, ":"); ok && name != "" {
		return name
	}
	return op
}

// ranks writes numbers out, in order: "rank 1", "ranks 0, 2, 3", "ranks 0-6, 8-15".
func ranks(numbers []int) string {
	if len(numbers) == 1 {
		return "rank " + strconv.Itoa(numbers[0])
	}
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if j-i < 3 {
			j = i
			parts = append(parts, strconv.Itoa(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	if len(parts) > mostRanks {
		parts = append(parts[:mostRanks], "...")
	}
	return "ranks " + strings.Join(parts, ", ")
}

func verb(numbers []int, one, many string) string {
	if len(numbers) == 1 {
		return one
	}
	return many
}
