package evidence

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// written is when the dumps of these tests are written.
var written = time.Unix(1_700_000_100, 0)

// entered is one entry of a dump: a collective that was entered age seconds before it.
type entered struct {
	group, op string
	seq       int
	state     string
	age       float64
}

// recorded is the dump of one rank. firstRecord above 0 says that older entries are gone.
type recorded struct {
	entries     []entered
	firstRecord int
	older       time.Duration // than those of the others
}

// of a world of four, and two groups of two in it.
var config = map[string]any{
	"0": map[string]any{"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
	"1": map[string]any{"name": "1", "desc": "tp", "ranks": "[0, 1]"},
	"2": map[string]any{"name": "2", "desc": "tp", "ranks": "[2, 3]"},
}

func (r recorded) pickle() []byte {
	entries := []any{}
	for i, e := range r.entries {
		desc := map[string]string{"0": "default_pg", "1": "tp", "2": "tp", "9": "undefined"}[e.group]
		entries = append(entries, map[string]any{
			"record_id": r.firstRecord + i, "process_group": two{e.group, desc}, "collective_seq_id": e.seq, "profiling_name": e.op,
			"time_created_ns": int(written.Add(-r.older).UnixNano()) - int(e.age*1e9), "state": e.state, "is_p2p": strings.Contains(e.op, "send"),
		})
	}
	return pickleOf(map[string]any{"version": "2.4", "pg_config": config, "entries": entries})
}

// fold writes the dumps as an incident's folder has them; a rank with nil has left none.
func fold(t *testing.T, dumps map[int]*recorded) string {
	t.Helper()
	dir := t.TempDir()
	for rank, r := range dumps {
		home := filepath.Join(dir, "critic", "1", fmt.Sprintf("%d.1", rank))
		if err := os.MkdirAll(home, 0o750); err != nil {
			t.Fatal(err)
		}
		if r != nil {
			place(t, filepath.Join(home, "nccl_trace"), r.pickle(), written.Add(-r.older))
		}
	}
	return dir
}

func place(t *testing.T, path string, src []byte, at time.Time) {
	t.Helper()
	if err := os.WriteFile(path, src, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// shows: A13
func TestTheRankThatHasNotEnteredTheCollectiveIsNamed(t *testing.T) {
	in := func(group, op string, seq int, age float64) entered {
		return entered{group, "nccl:" + op, seq, "scheduled", age}
	}
	done := func(group, op string, seq int) entered {
		return entered{group, "nccl:" + op, seq, "completed", 60}
	}
	did := func(e ...entered) *recorded { return &recorded{entries: e} }
	waits := func() *recorded { return did(done("0", "all_reduce", 41), in("0", "all_reduce", 42, 14)) }
	behind := did(done("0", "all_reduce", 41))
	tests := []struct {
		name  string
		dumps map[int]*recorded
		want  string
	}{
		{"one is missing", map[int]*recorded{0: waits(), 1: behind, 2: waits(), 3: waits()},
			"rank 1 of the world has not entered all_reduce #42 (nccl:all_reduce, process group default_pg); ranks 0, 2, 3 wait in it since 14 s"},
		{"those who wait have enqueued more", map[int]*recorded{0: did(in("0", "all_reduce", 42, 14.4), in("0", "all_reduce", 43, 14)), 1: behind, 2: behind, 3: waits()},
			"ranks 1, 2 of the world have not entered all_reduce #42 (nccl:all_reduce, process group default_pg); ranks 0, 3 wait in it since 14 s"},
		{"it has entered nothing yet", map[int]*recorded{0: did(in("0", "broadcast", 1, 5)), 1: did(), 2: did(in("0", "broadcast", 1, 5)), 3: did(in("0", "broadcast", 1, 5))},
			"rank 1 of the world has not entered broadcast #1 (nccl:broadcast, process group default_pg); ranks 0, 2, 3 wait in it since 5 s"},
		{"who is missing has no dump", map[int]*recorded{0: waits(), 1: nil, 2: waits(), 3: waits()},
			"ranks 0, 2, 3 of the world wait in all_reduce #42 (nccl:all_reduce, process group default_pg) since 14 s; rank 1 has left no dump"},
		{"a rank is missing, another has no dump", map[int]*recorded{0: waits(), 1: behind, 2: waits(), 3: nil},
			"rank 1 of the world has not entered all_reduce #42 (nccl:all_reduce, process group default_pg); ranks 0, 2 wait in it since 14 s; rank 3 has left no dump"},
		{"they have entered different ones", map[int]*recorded{0: waits(), 1: did(done("0", "all_reduce", 41), in("0", "broadcast", 42, 13)), 2: waits(), 3: behind},
			"ranks 0, 1, 2 of the world disagree at #42 of process group default_pg: all_reduce on ranks 0, 2 and broadcast on rank 1"},
		{"one does not leave what the others have left", map[int]*recorded{0: waits(), 1: did(in("0", "all_reduce", 41, 20)), 2: waits(), 3: waits()},
			"rank 1 of the world is in all_reduce #41 (nccl:all_reduce, process group default_pg) since 20 s, which ranks 0, 2, 3 have left"},
		{"nobody is missing", map[int]*recorded{0: waits(), 1: waits(), 2: waits(), 3: waits()},
			"all ranks of process group default_pg (ranks 0-3) are in all_reduce #42 (nccl:all_reduce) since 14 s: none is missing and none leaves it"},
		{"who is missing in one group waits in another for the culprit", map[int]*recorded{
			0: waits(), 1: did(done("0", "all_reduce", 41)), 2: did(done("0", "all_reduce", 41), in("2", "all_gather", 7, 9)), 3: did(done("0", "all_reduce", 41), done("2", "all_gather", 6))},
			"rank 3 of the world has not entered all_gather #7 (nccl:all_gather, process group tp 2); rank 2 waits in it since 9 s"},
		{"it has gone on to other groups", map[int]*recorded{0: waits(), 1: {entries: []entered{done("1", "all_reduce", 900)}, firstRecord: 5000}, 2: waits(), 3: waits()},
			"ranks 0, 2, 3 of the world wait in all_reduce #42 (nccl:all_reduce, process group default_pg) since 14 s; the dump of rank 1 holds nothing of this group any more"},
		{"a dump of an earlier hang", map[int]*recorded{0: waits(), 1: {entries: behind.entries, older: time.Hour}, 2: waits(), 3: waits()},
			"ranks 0, 2, 3 of the world wait in all_reduce #42 (nccl:all_reduce, process group default_pg) since 14 s; the dump of rank 1 is older"},
		{"an older one that torch never marked as ended", map[int]*recorded{0: did(in("0", "all_reduce", 40, 90), done("0", "all_reduce", 41)), 1: behind, 2: behind, 3: behind}, ""},
		{"all have left all", map[int]*recorded{0: behind, 1: behind, 2: behind, 3: behind}, ""},
		{"it has only just been entered", map[int]*recorded{0: did(in("0", "all_reduce", 42, 0.1)), 1: behind, 2: behind, 3: behind}, ""},
		{"a send that waits is no collective", map[int]*recorded{0: did(in("0", "send 0->1", 41, 30)), 1: behind, 2: behind, 3: behind}, ""},
		{"no dumps", map[int]*recorded{0: nil, 1: nil}, ""},
		{"a group that nobody describes", map[int]*recorded{0: did(in("9", "barrier", 3, 30)), 1: did(), 2: did(), 3: nil},
			"ranks 1, 2 of the world have not entered barrier #3 (nccl:barrier, process group 9); rank 0 waits in it since 30 s; rank 3 has left no dump"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, problems := Collective(t.Context(), fold(t, tt.dumps), "critic", 1)
			if got != tt.want || len(problems) > 0 {
				t.Errorf("%q %v, want %q", got, problems, tt.want)
			}
		})
	}
}

func TestDumpsOfPythonsPickleSayTheSame(t *testing.T) {
	dir := t.TempDir()
	for rank := range 2 {
		src, err := os.ReadFile(filepath.Join("testdata", "flight", fmt.Sprintf("rank_%d", rank)))
		if err != nil {
			t.Fatal(err)
		}
		home := filepath.Join(dir, "critic", "3", fmt.Sprintf("%d.2", rank))
		if err := os.MkdirAll(filepath.Join(dir, "critic", "3", fmt.Sprintf("%d.1", rank)), 0o750); err != nil { // an attempt before
			t.Fatal(err)
		}
		if err := os.MkdirAll(home, 0o750); err != nil {
			t.Fatal(err)
		}
		place(t, filepath.Join(home, "nccl_trace"), src, written)
	}
	got, problems := Collective(t.Context(), dir, "critic", 3)
	if want := "rank 1 of the world has not entered all_reduce #42 (nccl:all_reduce, process group default_pg); rank 0 waits in it since 14 s"; got != want || len(problems) > 0 {
		t.Errorf("%q %v, want %q", got, problems, want)
	}
}

func TestADumpThatCannotBeReadIsSaidAndItsRankIsNotGuessedAt(t *testing.T) {
	waits := recorded{entries: []entered{{"0", "nccl:all_reduce", 42, "started", 14}}}
	for want, spoil := range map[string]func(path string) error{
		"dump of rank 1: read pickle: byte":         func(p string) error { return os.WriteFile(p, []byte("junk"), 0o600) },
		"dump of rank 1: it has 17825792 bytes":     func(p string) error { return os.WriteFile(p, make([]byte, 17<<20), 0o600) },
		`dump of rank 1: its format is "1.5", 2 is`: func(p string) error { return os.WriteFile(p, pickleOf(map[string]any{"version": "1.5"}), 0o600) },
		"dump of rank 1: it has no entries":         func(p string) error { return os.WriteFile(p, pickleOf(map[string]any{"version": "2.4"}), 0o600) },
		"dump of rank 1: read ":                     func(p string) error { return os.Mkdir(p, 0o700) },
		"dump of rank 1: it is no dict":             func(p string) error { return os.WriteFile(p, pickleOf("x"), 0o600) },
		"dump of rank 1: entry 0 is no dict": func(p string) error {
			return os.WriteFile(p, pickleOf(map[string]any{"version": "2.4", "entries": []any{1}}), 0o600)
		},
		"dump of rank 1: read pickle: byte 2: opcode 0": func(p string) error { return os.WriteFile(p, []byte("\x80\x02cos\nsystem\n."), 0o600) },
	} {
		dir := fold(t, map[int]*recorded{0: &waits, 1: nil, 2: &waits, 3: &waits})
		if err := spoil(filepath.Join(dir, "critic", "1", "1.1", "nccl_trace")); err != nil {
			t.Fatal(err)
		}
		got, problems := Collective(t.Context(), dir, "critic", 1)
		if !strings.HasPrefix(got, "ranks 0, 2, 3 of") || !strings.HasSuffix(got, "since 14 s; the dump of rank 1 cannot be read") {
			t.Errorf("%s: %q", want, got)
		}
		if len(problems) != 1 || !strings.HasPrefix(problems[0].Error(), want) {
			t.Errorf("problems %v, want %q", problems, want)
		}
	}
}

func TestDumpsThatThereIsNoTimeForAreSaidOnceAndNotGuessedAt(t *testing.T) {
	waits := recorded{entries: []entered{{"0", "nccl:all_reduce", 42, "started", 14}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, problems := Collective(ctx, fold(t, map[int]*recorded{0: &waits, 1: &waits, 2: &waits}), "critic", 1)
	if got != "" || len(problems) != 1 || !strings.HasPrefix(problems[0].Error(), "dump of rank 0: read pickle: it is not read to its end") {
		t.Errorf("%q, %v", got, problems)
	}
}

func TestRanksAreWrittenOutAndLongRowsAsRanges(t *testing.T) {
	span := func(from, to int) (out []int) {
		for i := from; i <= to; i++ {
			out = append(out, i)
		}
		return out
	}
	var odd []int
	for i := 1; i < 40; i += 2 {
		odd = append(odd, i)
	}
	for want, in := range map[string][]int{
		"rank 7": {7}, "ranks 0, 1": {0, 1}, "ranks 0, 2, 3": {0, 2, 3},
		"ranks 0-6, 8-1023": append(span(0, 6), span(8, 1023)...), "ranks 1, 3, 5, 7, 9, 11, 13, 15, ...": odd,
	} {
		if got := ranks(in); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// raw is a pickle that its test writes by hand.
func raw(parts ...any) []byte {
	out := []byte{opProtocol, pickleNumber}
	for _, p := range parts {
		switch p := p.(type) {
		case byte:
			out = append(out, p)
		case rune:
			out = append(out, byte(p))
		case []byte:
			out = append(out, p...)
		case string:
			out = binary.LittleEndian.AppendUint32(append(out, opText), uint32(len(p)))
			out = append(out, p...)
		}
	}
	return append(out, opStop)
}

// A few megabytes of a pickle can refer to one value a million times, so that looking at all of them never
// ends. Each such dump is refused after a bounded piece of work, not when time is up: the incidents after
// it are written. The kind: many lookups in a large dict, a long text that is read again and again, too
// many entries, groups or members, and dumps whose comparison does not end.
// shows: FAULT-H3
func TestADumpThatStandsForWorkWithoutEndIsRefused(t *testing.T) {
	large := func() []byte { // a dict of 400,000 pairs
		var b []byte
		b = append(b, opDict, opMark)
		for range 400_000 {
			b = append(b, opText, 1, 0, 0, 0, 'k', opNone)
		}
		return append(b, opSetItems)
	}()
	many := func(what []byte, n int) []byte { return bytes.Repeat(what, n) }
	text := func(s string) []byte { one := raw(s); return one[2 : len(one)-1] }
	whole := func(entries, config []byte) []byte {
		return raw(opDict, opMark, "version", "2.9", "entries", entries, "pg_config", config, opSetItems)
	}
	list := func(items []byte) []byte {
		return append(append([]byte{opList, opMark}, items...), opAppends)
	}
	none := []byte{opDict}
	groups := func(n int, is ...byte) (b []byte) { // numbered from 1
		for i := range n {
			b = append(append(b, text(fmt.Sprint(i+1))...), is...)
		}
		return b
	}
	members := "[" + strings.Repeat("1, ", maxMembers) + "1]"
	for name, c := range map[string]struct {
		dump []byte
		want string
	}{
		"entries that are one large dict": {
			whole(list(append(append(slices.Clone(large), opPut1, 7), many([]byte{opGet1, 7}, maxEntries-1)...)), none), "too much work"},
		"too many entries": {
			whole(list(many([]byte{opDict}, maxEntries+1)), none), "100001 entries, 100000 are the most"},
		"a long text that is read for each group": {
			whole(list(nil), slices.Concat([]byte{opDict, opMark}, text("0"), []byte{opDict, opMark}, text("ranks"), text(strings.Repeat(" ", 1<<20)), []byte{opSetItems, opPut1, 7},
				groups(maxGroups-1, opGet1, 7), []byte{opSetItems})), "too much work"},
		"too many groups": {
			whole(list(nil), slices.Concat([]byte{opDict, opMark}, groups(maxGroups+1, opDict), []byte{opSetItems})), "over 1024 process groups"},
		"too many members": {
			whole(list(nil), slices.Concat([]byte{opDict, opMark}, text("0"), []byte{opDict, opMark}, text("ranks"), text(members), []byte{opSetItems}, []byte{opSetItems})), "has 65537 ranks, 65536 are the most"},
	} {
		t.Run(name, func(t *testing.T) {
			if len(c.dump) > maxDump {
				t.Fatalf("the dump has %d bytes: it would not be read at all", len(c.dump))
			}
			if _, err := parseDump(t.Context(), c.dump); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// Time is looked at while a dump is read, not only while its bytes are, and while dumps are compared.
// shows: FAULT-H3
func TestTimeIsLookedAtWhileADumpIsReadAndCompared(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	r := &reading{effort: newEffort(over)}
	f := &fields{pairs: make([]pair, 10)}
	for range pickleLook {
		r.value(f, "k")
	}
	if r.err == nil || !errors.Is(r.err, context.Canceled) {
		t.Errorf("after %d looks: %v", pickleLook, r.err)
	}
	d := &dump{at: time.Now(), groups: map[string]*standing{"0": {newest: 1, waits: 1, seen: map[int64]*collective{1: {created: time.Now().Add(-time.Hour)}}}}}
	w := world{ranks: []int{0}, dumps: map[int]*dump{0: d}}
	if said, err := w.say(over); err == nil || said != "" {
		t.Errorf("with no time left it says %q, %v", said, err)
	}
	if said, err := w.say(t.Context()); err != nil || said == "" {
		t.Errorf("with time it says %q, %v", said, err)
	}
}
