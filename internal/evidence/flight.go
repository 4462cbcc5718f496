package evidence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"vigil/internal/proc"
	"vigil/internal/role"
)

const (
	maxDump    = 16 << 20 // bytes of a dump that are read; 2,000 entries are below 1 MB
	maxName    = 80       // bytes of a name that are shown
	maxOps     = 8        // operations of one collective that are told apart
	maxEntries = 100_000  // collectives of one dump; torch keeps 2,000 unless it is told otherwise
	maxGroups  = 1024     // process groups of one dump
	maxMembers = 1 << 16  // ranks of one process group
	maxEffort  = 64 << 20 // looks at values and bytes of one dump; one of 2,000 entries takes a million
)

// effort bounds what is done with one dump. What it says was written by a worker, or by whoever can write
// its file: a few bytes of a pickle can stand for work without end.
type effort struct {
	ctx  context.Context
	left int
	look int // until time is looked at again
}

func newEffort(ctx context.Context) *effort { return &effort{ctx: ctx, left: maxEffort} }

// spend is told what is about to be done.
func (e *effort) spend(n int) error {
	e.left, e.look = e.left-n, e.look-n
	if e.left < 0 {
		return fmt.Errorf("it takes too much work: over %d looks at what it holds", maxEffort)
	}
	if e.look <= 0 {
		e.look = pickleLook
		if e.ctx.Err() != nil {
			return fmt.Errorf("it is not read to its end: %w", context.Cause(e.ctx))
		}
	}
	return nil
}

// of returns what a dict has under a key, nil when it has nothing.
func (e *effort) of(f *fields, key string) (pickled, error) {
	if err := e.spend(len(f.pairs) + 1); err != nil {
		return nil, err
	}
	return f.of(key), nil
}

// reading looks values up in dicts. What is not there, or of another kind, is zero. The first error stays,
// and everything is zero from then on.
type reading struct {
	*effort
	err error
}

func (r *reading) value(f *fields, key string) pickled {
	if r.err != nil {
		return nil
	}
	v, err := r.of(f, key)
	r.err = err
	return v
}

func (r *reading) text(f *fields, key string) string {
	s, _ := r.value(f, key).(string)
	return s
}

func (r *reading) number(f *fields, key string) (int64, bool) {
	n, ok := r.value(f, key).(int64)
	return n, ok
}

// dump is what the flight recorder of one rank tells of its collectives. A send or receive between two
// ranks is left out: torch never marks those within a batch as ended.
type dump struct {
	rank   int
	at     time.Time // when it was written
	goneOn bool      // the oldest entries have been overwritten
	groups map[string]*standing
}

// standing is how far one rank is in one process group.
type standing struct {
	desc    string
	members []int // ranks of the world; nil where the dump does not say
	newest  int64 // number of the newest collective that it has entered; 0: none
	left    int64 // number of the newest that it has left
	waits   int64 // number of the oldest that it has entered and not left; 0: none
	seen    map[int64]*collective
}

// collective is one collective of a process group as one rank has entered it.
type collective struct {
	names   []string // such as nccl:all_reduce; several for one that was coalesced
	created time.Time
	left    bool
}

// readDump reads the file that torch's flight recorder writes for a rank (FlightRecorder.cpp, dump; the
// version is that of its format). The error wraps fs.ErrNotExist when there is none.
func readDump(ctx context.Context, path string, rank int) (*dump, error) {
	f, err := proc.OpenRegular(path)
	if err != nil {
		return nil, fmt.Errorf("dump of rank %d: %w", rank, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("dump of rank %d: %w", rank, err)
	}
	if info.Size() > maxDump {
		return nil, fmt.Errorf("dump of rank %d: it has %d bytes, %d are the most", rank, info.Size(), maxDump)
	}
	src, err := io.ReadAll(io.LimitReader(f, maxDump))
	if err != nil {
		return nil, fmt.Errorf("dump of rank %d: %w", rank, err)
	}
	d, err := parseDump(ctx, src)
	if err != nil {
		return nil, fmt.Errorf("dump of rank %d: %w", rank, err)
	}
	d.rank, d.at = rank, info.ModTime()
	return d, nil
}

// parseDump reads a dump of format 2.
func parseDump(ctx context.Context, src []byte) (*dump, error) {
	value, err := unpickle(ctx, src)
	if err != nil {
		return nil, fmt.Errorf("read pickle: %w", err)
	}
	root, _ := value.(*fields)
	if root == nil {
		return nil, errors.New("it is no dict")
	}
	r := &reading{effort: newEffort(ctx)}
	version := r.text(root, "version")
	if r.err == nil && !strings.HasPrefix(version, "2.") {
		return nil, fmt.Errorf("its format is %.20q, 2 is read", version)
	}
	entries, _ := r.value(root, "entries").(*items)
	switch {
	case r.err != nil:
		return nil, r.err
	case entries == nil:
		return nil, errors.New("it has no entries")
	case len(entries.list) > maxEntries:
		return nil, fmt.Errorf("it has %d entries, %d are the most", len(entries.list), maxEntries)
	}
	d := &dump{groups: map[string]*standing{}}
	for i, value := range entries.list {
		entry, _ := value.(*fields)
		if entry == nil {
			return nil, fmt.Errorf("entry %d is no dict", i)
		}
		if i == 0 {
			id, _ := r.number(entry, "record_id")
			d.goneOn = id > 0
		}
		d.take(r, entry)
		if r.err != nil {
			return nil, r.err
		}
	}
	d.configure(r, root)
	if r.err != nil {
		return nil, r.err
	}
	for _, s := range d.groups {
		s.settle()
	}
	return d, nil
}

// take takes in one entry.
func (d *dump) take(r *reading, entry *fields) {
	seq, ok := r.number(entry, "collective_seq_id")
	if p2p, _ := r.value(entry, "is_p2p").(bool); p2p || !ok || seq <= 0 {
		return
	}
	name, desc := groupName(r.value(entry, "process_group"))
	s := d.group(r, name)
	if s == nil {
		return
	}
	s.desc = desc
	s.newest = max(s.newest, seq)
	c := s.seen[seq]
	if c == nil {
		c = &collective{left: true}
		s.seen[seq] = c
	}
	if len(c.names) < maxOps {
		c.names = append(c.names, plain(r.text(entry, "profiling_name")))
	}
	if r.text(entry, "state") != "completed" {
		c.left = false
	}
	if ns, _ := r.number(entry, "time_created_ns"); c.created.IsZero() {
		c.created = time.Unix(0, ns)
	}
}

// groupName reads the name of a process group and what the program calls it.
func groupName(value pickled) (name, desc string) {
	switch v := value.(type) {
	case string:
		return v, ""
	case *items:
		if len(v.list) > 0 {
			name, _ = v.list[0].(string)
		}
		if len(v.list) > 1 {
			desc, _ = v.list[1].(string)
		}
	}
	if desc == "undefined" {
		desc = ""
	}
	return name, plain(desc)
}

// group returns a process group, nil when there are too many.
func (d *dump) group(r *reading, name string) *standing {
	s := d.groups[name]
	if s == nil {
		if len(d.groups) == maxGroups {
			r.err = cmp.Or(r.err, fmt.Errorf("it has over %d process groups", maxGroups))
			return nil
		}
		s = &standing{seen: map[int64]*collective{}}
		d.groups[name] = s
	}
	return s
}

// configure takes in which ranks are in which process group.
func (d *dump) configure(r *reading, root *fields) {
	config, _ := r.value(root, "pg_config").(*fields)
	if config == nil {
		return
	}
	for _, p := range config.pairs {
		of, _ := p.value.(*fields)
		if of == nil {
			continue
		}
		s := d.group(r, p.key)
		if s == nil {
			return
		}
		if desc := r.text(of, "desc"); s.desc == "" && desc != "undefined" {
			s.desc = plain(desc)
		}
		ranks := r.text(of, "ranks")
		if r.err = cmp.Or(r.err, r.spend(len(ranks))); r.err != nil {
			return
		}
		if s.members = parseRanks(ranks); len(s.members) > maxMembers {
			r.err = fmt.Errorf("process group %s has %d ranks, %d are the most", plain(p.key), len(s.members), maxMembers)
			return
		}
	}
}

// parseRanks reads "[0, 1, 2]"; nil when it is anything else.
func parseRanks(text string) []int {
	inner, ok := strings.CutPrefix(text, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !ok || !closed {
		return nil
	}
	var ranks []int
	for part := range strings.SplitSeq(inner, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 {
			return nil
		}
		ranks = append(ranks, n)
	}
	return ranks
}

// settle finds the newest collective that the rank has left, and the oldest that it has entered and not
// left. Those of one group are carried out one after the other, so an older one has been left too,
// whatever its entry says.
func (s *standing) settle() {
	for seq, c := range s.seen {
		if c.left {
			s.left = max(s.left, seq)
		}
	}
	for seq := range s.seen {
		if seq > s.left && (s.waits == 0 || seq < s.waits) {
			s.waits = seq
		}
	}
}

// plain is a name out of a dump as it can be shown.
func plain(name string) string {
	if len(name) > 4*maxName { // what is cut off later may be long
		name = name[:4*maxName]
	}
	name = role.Plain(strings.ToValidUTF8(name, "?"))
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "..."
	}
	return name
}

// keepTrace keeps the dump of a rank with the time at which it was written; without one, nothing.
func (l *lacks) keepTrace(from, to string) {
	info, err := os.Lstat(from)
	if err != nil {
		return
	}
	l.copy(from, to)
	if err := os.Chtimes(to, time.Time{}, info.ModTime()); err != nil && !os.IsNotExist(err) {
		l.say("%v", err)
	}
}
