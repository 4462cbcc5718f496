package evidence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"vigil/internal/role"
)

const (
	maxDump = 16 << 20 // bytes of a dump that are read; 2,000 entries are below 1 MB
	maxName = 80       // bytes of a name that are shown
	maxOps  = 8        // operations of one collective that are told apart
)

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
	f, err := openRegular(path)
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
	version, _ := root.of("version").(string)
	if !strings.HasPrefix(version, "2.") {
		return nil, fmt.Errorf("its format is %.20q, 2 is read", version)
	}
	entries, _ := root.of("entries").(*items)
	if entries == nil {
		return nil, errors.New("it has no entries")
	}
	d := &dump{groups: map[string]*standing{}}
	for i, value := range entries.list {
		entry, _ := value.(*fields)
		if entry == nil {
			return nil, fmt.Errorf("entry %d is no dict", i)
		}
		if id, _ := entry.of("record_id").(int64); i == 0 && id > 0 {
			d.goneOn = true
		}
		d.take(entry)
	}
	d.configure(root)
	for _, s := range d.groups {
		s.settle()
	}
	return d, nil
}

// take takes in one entry.
func (d *dump) take(entry *fields) {
	seq, ok := entry.of("collective_seq_id").(int64)
	if p2p, _ := entry.of("is_p2p").(bool); p2p || !ok || seq <= 0 {
		return
	}
	name, desc := groupName(entry.of("process_group"))
	s := d.group(name)
	s.desc = desc
	s.newest = max(s.newest, seq)
	c := s.seen[seq]
	if c == nil {
		c = &collective{left: true}
		s.seen[seq] = c
	}
	if op, _ := entry.of("profiling_name").(string); len(c.names) < maxOps {
		c.names = append(c.names, plain(op))
	}
	if state, _ := entry.of("state").(string); state != "completed" {
		c.left = false
	}
	if ns, _ := entry.of("time_created_ns").(int64); c.created.IsZero() {
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

func (d *dump) group(name string) *standing {
	s := d.groups[name]
	if s == nil {
		s = &standing{seen: map[int64]*collective{}}
		d.groups[name] = s
	}
	return s
}

// configure takes in which ranks are in which process group.
func (d *dump) configure(root *fields) {
	config, _ := root.of("pg_config").(*fields)
	if config == nil {
		return
	}
	for _, p := range config.pairs {
		of, _ := p.value.(*fields)
		if of == nil {
			continue
		}
		s := d.group(p.key)
		if desc, _ := of.of("desc").(string); s.desc == "" && desc != "undefined" {
			s.desc = plain(desc)
		}
		ranks, _ := of.of("ranks").(string)
		s.members = parseRanks(ranks)
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

// settle finds the newest collective that the rank has left. Those of one group are carried out one
// after the other, so an older one has been left too, whatever its entry says.
func (s *standing) settle() {
	for seq, c := range s.seen {
		if c.left {
			s.left = max(s.left, seq)
		}
	}
}

// waits returns the oldest collective that the rank has entered and not left; 0: none.
func (s *standing) waits() int64 {
	first := int64(0)
	for seq := range s.seen {
		if seq > s.left && (first == 0 || seq < first) {
			first = seq
		}
	}
	return first
}

// plain is a name out of a dump as it can be shown.
func plain(name string) string {
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
