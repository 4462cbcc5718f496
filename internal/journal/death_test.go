package journal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// victim is the environment of a process that ends itself: path, commit, side.
const victim = "JOURNAL_TEST_VICTIM"

func TestMain(m *testing.M) {
	if v := os.Getenv(victim); v != "" {
		die(strings.Split(v, "|"))
	}
	os.Exit(m.Run())
}

// die writes and says what is recorded, until the fault kills it.
func die(args []string) {
	at, _ := strconv.Atoi(args[1])
	j, err := Open(args[0], Options{Job: "tiny", Fault: func(n int, w When) {
		if n == at && w.String() == args[2] {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}})
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
	check(err)
	if _, is, _ := j.OpenRun(); !is {
		check(j.BeginRun(Run{UID: "tiny-1"}))
		fmt.Println("begun")
	}
	epoch, err := j.NextEpoch()
	check(err)
	fmt.Println("epoch", epoch)
	for i := 0; ; i++ {
		c := j.Write(Put(Ledger, "a", i), Put(Plan, fmt.Sprint(i), i), Put(Ledger, "b", i))
		<-c.Done()
		check(c.Err())
		fmt.Println("wrote", i)
	}
}

func TestAProcessKilledAtAnyCommitHasLostNothingItWasToldOf(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	for at := 1; at <= 6; at++ {
		for _, when := range []When{Before, After} {
			path := newPath(t)
			epochs, done := []string{}, 0
			for range 2 { // killed, and killed once more
				cmd := exec.CommandContext(soon(t), self)
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%d|%s", victim, path, at, when))
				var said, complaint bytes.Buffer
				cmd.Stdout, cmd.Stderr = &said, &complaint
				err := cmd.Run()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("%s %d: the process ended with %v: %s", when, at, err, complaint.String())
				}
				told := -1
				for lines := bufio.NewScanner(&said); lines.Scan(); {
					if n, is := strings.CutPrefix(lines.Text(), "epoch "); is {
						epochs = append(epochs, n)
					} else if n, is := strings.CutPrefix(lines.Text(), "wrote "); is {
						told, err = strconv.Atoi(n)
						must(t, err)
					}
				}
				done = told
				j := mustOpen(t, path, quick())
				a, there, err := ReadOne[int](j, Ledger, "a")
				must(t, err)
				b, _, err := ReadOne[int](j, Ledger, "b")
				must(t, err)
				if a != b || there && a > told+1 && told >= 0 || there && a < told || !there && told >= 0 {
					t.Errorf("%s %d: told of %d, the ledger is %d and %d, %t", when, at, told, a, b, there)
				}
				must(t, j.Close())
			}
			if len(epochs) == 2 && epochs[0] == epochs[1] {
				t.Errorf("%s %d: epoch %s was given twice", when, at, epochs[0])
			}
			if at == 6 && (len(epochs) != 2 || done < 2) {
				t.Errorf("%s %d: epochs %v and %d writes: too little was shown", when, at, epochs, done)
			}
		}
	}
}

// moment is a copy of the file at an instant at which the process might have died, and which Writes may
// be in it: at least those that were known to be, at most those that were begun.
type moment struct {
	bytes       []byte
	least, most int
	what        string
}

// flaky fails some commits, before or after it has made them.
type flaky struct {
	store
	how func() int
}

func (f *flaky) commit(b *batch) error {
	switch f.how() {
	case 1:
		return syscall.EIO
	case 2:
		return errors.Join(f.store.commit(b), syscall.EIO)
	}
	return f.store.commit(b)
}

func drawEntries(t *rapid.T) []Entry {
	var out []Entry
	for range rapid.IntRange(1, 5).Draw(t, "entries") {
		kind := rapid.SampledFrom([]Kind{Role, Ledger, Plan, Incident}).Draw(t, "kind")
		key := fmt.Sprint(rapid.IntRange(1, 12).Draw(t, "key"))
		switch rapid.IntRange(0, 9).Draw(t, "do") {
		case 0, 1, 2:
			out = append(out, Delete(kind, key))
		case 3:
			out = append(out, Put(kind, key, strings.Repeat("x", rapid.IntRange(0, 9000).Draw(t, "size"))))
		default:
			out = append(out, Put(kind, key, rapid.Int().Draw(t, "value")))
		}
	}
	if rapid.IntRange(0, 19).Draw(t, "clear") == 0 {
		out = append([]Entry{{clear: true}}, out...)
	}
	return out
}

func after(state map[string]string, entries []Entry) map[string]string {
	out := maps.Clone(state)
	for _, e := range entries {
		at := string(e.kind) + "/" + e.key
		switch {
		case e.clear:
			clear(out)
		case e.json == nil:
			delete(out, at)
		default:
			out[at] = string(e.json)
		}
	}
	return out
}

// Whenever the process dies, what is found is what the first so many Writes made, and all of which it was
// told are among them.
func TestWhatIsFoundAfterADeathIsAPrefixOfTheWrites(t *testing.T) {
	slow(t)
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprintf("journal-%d", runs))
		defer os.Remove(path)
		var known, begun atomic.Int64
		var mu sync.Mutex
		var moments []moment
		o := Options{Job: "tiny", Fault: func(n int, w When) {
			b, err := os.ReadFile(path)
			if err != nil { // a run that has failed already
				return
			}
			mu.Lock()
			defer mu.Unlock()
			moments = append(moments, moment{b, int(known.Load()), int(begun.Load()), fmt.Sprintf("%s commit %d", w, n)})
		}}
		faults := rapid.SliceOfN(rapid.SampledFrom([]int{0, 0, 0, 1, 2}), 0, 20).Draw(rt, "faults")
		s := quick()
		s.pace.retry, s.pace.slack = 1, 1
		s.wrap = func(d store) store {
			return &flaky{d, func() int {
				if len(faults) == 0 {
					return 0
				}
				f := faults[0]
				faults = faults[1:]
				return f
			}}
		}
		j, err := open(path, o, s)
		must(t, err)
		states := []map[string]string{{}}
		for i := range rapid.IntRange(1, 15).Draw(rt, "writes") {
			entries := drawEntries(rt)
			begun.Store(int64(i + 1))
			states = append(states, after(states[i], entries))
			c := j.Write(entries...)
			if rapid.Bool().Draw(rt, "wait") {
				must(t, c.Wait(soon(t)))
				known.Store(int64(i + 1))
			}
		}
		must(t, j.Write().Wait(soon(t)))
		must(t, j.Close())
		b, err := os.ReadFile(path)
		must(t, err)
		moments = append(moments, moment{b, len(states) - 1, len(states) - 1, "after the end"})
		for i, m := range moments {
			examine(t, rt, path, m, states)
			if i > 0 { // and as if its newest commit had not reached the meta page
				undone := bytes.Clone(m.bytes)
				copy(undone[:2*pageSize], moments[i-1].bytes)
				examine(t, rt, path, moment{undone, moments[i-1].least, m.most, m.what + ", undone"}, states)
			}
		}
	})
}

func examine(t *testing.T, rt *rapid.T, path string, m moment, states []map[string]string) {
	must(t, os.WriteFile(path, m.bytes, 0o600))
	j, err := open(path, Options{Job: "tiny"}, quick())
	if err != nil {
		rt.Fatalf("%s: %v", m.what, err)
	}
	got := content(t, j)
	must(t, j.Close())
	for _, s := range states[m.least : m.most+1] {
		if maps.Equal(got, s) {
			return
		}
	}
	rt.Fatalf("%s: found %.500v, which no number of writes from %d to %d makes", m.what, got, m.least, m.most)
}

func TestAfterASpoiledCommitAnEpochIsSkipped(t *testing.T) {
	path := newPath(t)
	j := mustOpen(t, path, quick())
	must(t, j.BeginRun(Run{UID: "tiny-1"}))
	if _, err := j.NextEpoch(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	must(t, err)
	lost, err := j.NextEpoch()
	must(t, err)
	if j.Rewound() {
		t.Error("a good journal is said to have lost a commit")
	}
	must(t, j.Close())
	b, err := os.ReadFile(path)
	must(t, err)
	for p := range 2 { // spoil the newest meta page
		if at := p * pageSize; !bytes.Equal(b[at:at+pageSize], before[at:at+pageSize]) {
			b[at+pageHead+60] ^= 1
		}
	}
	must(t, os.WriteFile(path, b, 0o600))
	j = mustOpen(t, path, quick())
	if r, _, _ := j.OpenRun(); !j.Rewound() || r.Epoch != lost-1 {
		t.Errorf("rewound %t, epoch %d", j.Rewound(), r.Epoch)
	}
	if n, err := j.NextEpoch(); err != nil || n <= lost {
		t.Errorf("epoch %d after %d, %v", n, lost, err)
	}
}
