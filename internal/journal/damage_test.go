package journal

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// image is a journal's file and what is in it.
type image struct {
	bytes   []byte
	content map[string]string
}

func imageOf(t testing.TB, j *Journal) image {
	t.Helper()
	b, err := os.ReadFile(j.path)
	must(t, err)
	return image{b, content(t, j)}
}

// smallJournal gives the images after each of five writes into a small file.
func smallJournal(t testing.TB) []image {
	j := mustOpen(t, newPath(t), quick())
	must(t, j.BeginRun(Run{UID: "tiny-1", Job: "tiny"}))
	out := []image{imageOf(t, j)}
	for i := range 5 {
		write(t, j, Put(Ledger, "all", i), Put(Role, fmt.Sprint(i), i), Put(Incident, fmt.Sprint(i), strings.Repeat("i", 900)), Delete(Role, fmt.Sprint(i-2)))
		out = append(out, imageOf(t, j))
	}
	return out
}

// largeJournal has every sort of page: branches, leaves, overflowing ones, free ones, inline buckets.
func largeJournal(t testing.TB) []image {
	j := mustOpen(t, newPath(t), quick())
	for i := range 600 {
		j.Write(Put(Plan, fmt.Sprintf("plan-%d", i), strings.Repeat("m", 100)))
	}
	write(t, j, Put(Incident, "1", strings.Repeat("i", 20_000)), Put(Ledger, "all", 1))
	out := []image{imageOf(t, j)}
	for i := range 3 {
		entries := []Entry{Put(Ledger, "all", i)} // one commit, between two images
		for k := range 100 {
			entries = append(entries, Delete(Plan, fmt.Sprintf("plan-%d", 5*k+i)))
		}
		write(t, j, entries...)
		out = append(out, imageOf(t, j))
	}
	return out
}

// verdict opens a file of these bytes, and demands an error that says what to do, or one of the states.
func verdict(t *testing.T, what string, spoiled []byte, states ...image) (opened bool) {
	t.Helper()
	path := newPath(t)
	must(t, os.WriteFile(path, spoiled, 0o600))
	j, err := open(path, Options{Job: "tiny"}, quick())
	if err != nil {
		var c *CorruptError
		if !errors.As(err, &c) || !strings.Contains(err.Error(), "--forget-state") {
			t.Fatalf("%s: %v", what, err)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(after, spoiled) {
			t.Fatalf("%s: the refused file was changed", what)
		}
		return false
	}
	defer j.Close()
	got := content(t, j)
	for _, s := range states {
		if maps.Equal(got, s.content) {
			write(t, j, Put(Ledger, "all", "goes on")) // and mends a meta page that was torn
			must(t, j.disk.(*disk).db.View(func(tx *bolt.Tx) error {
				for err := range tx.Check() {
					t.Errorf("%s: bbolt finds %v", what, err)
				}
				return nil
			}))
			return true
		}
	}
	t.Fatalf("%s: opened with %d records that never were there together", what, len(got))
	return true
}

// checked is verdict's first half, which is all there is to see for what is refused.
func checked(spoiled []byte) error {
	c := check{path: "x", counts: map[Kind]int{}}
	return c.file(bytes.NewReader(spoiled), int64(len(spoiled)), "tiny")
}

// inUse is where the part of the file ends that has ever been used.
func inUse(t *testing.T, file []byte) int {
	t.Helper()
	tree, err := walk(bytes.NewReader(file), int64(len(file)), func(_, _, _ []byte) error { return nil })
	must(t, err)
	return int(tree.top) * pageSize
}

func TestAFileCutAtAnyLengthIsRefusedOrWhole(t *testing.T) {
	for name, images := range map[string][]image{"small": smallJournal(t), "large": largeJournal(t)} {
		last := images[len(images)-1]
		for i, image := range images {
			end := inUse(t, image.bytes)
			if err := checked(image.bytes[:end]); err != nil {
				t.Errorf("%s %d: without what was never used: %v", name, i, err)
			}
			if err := checked(image.bytes[:end-pageSize]); err == nil || !strings.Contains(err.Error(), "it was cut") {
				t.Errorf("%s %d: without its last page: %v", name, i, err)
			}
		}
		end := inUse(t, last.bytes)
		step := 1 + len(last.bytes)/40_000 // every length of the small one
		for n := 0; n < len(last.bytes); n += step {
			if got := checked(last.bytes[:n]) == nil; got != (n >= end) {
				t.Fatalf("%s: cut to %d bytes, of which %d are in use: accepted %t", name, n, end, got)
			}
			if n%(pageSize/2) < step {
				verdict(t, fmt.Sprintf("%s: cut to %d bytes", name, n), last.bytes[:n], last)
			}
		}
	}
}

// bbolt would give a page that is both free and used to the next commit, and follow a page that is its
// own child for ever.
func TestAPageThatIsUsedTwiceIsRefused(t *testing.T) {
	images := largeJournal(t)
	last := images[len(images)-1].bytes
	tree, err := walk(bytes.NewReader(last), int64(len(last)), func(_, _, _ []byte) error { return nil })
	must(t, err)
	pages := func(kind uint16) (out []int) {
		for at := 2 * pageSize; at < int(tree.top)*pageSize; at += pageSize {
			if order.Uint16(last[at+8:]) == kind && order.Uint64(last[at:]) == uint64(at/pageSize) {
				out = append(out, at)
			}
		}
		return out
	}
	spoiled := bytes.Clone(last)
	list := spoiled[tree.freelist*pageSize:]
	n := order.Uint16(list[10:])
	order.PutUint16(list[10:], n+1)
	order.PutUint64(list[pageHead+8*int(n):], tree.root)
	if err := checked(spoiled); err == nil || !strings.Contains(err.Error(), "used twice") {
		t.Errorf("a page that is free and used gave %v", err)
	}
	order.PutUint16(list[10:], n-1)
	if err := checked(spoiled); err == nil || !strings.Contains(err.Error(), "neither used nor free") {
		t.Errorf("a page that is neither gave %v", err)
	}
	loops := 0
	for _, at := range pages(branchPage) {
		spoiled := bytes.Clone(last)
		if order.Uint16(spoiled[at+10:]) > 1 { // only one child, so that its keys are in order
			order.PutUint16(spoiled[at+10:], 1)
		}
		order.PutUint32(spoiled[at+pageHead:], order.Uint32(last[at+pageHead:]))
		order.PutUint64(spoiled[at+pageHead+8:], uint64(at/pageSize))
		if err := checked(spoiled); err != nil && strings.Contains(err.Error(), "used twice") { // others are free
			loops++
		}
	}
	if loops == 0 {
		t.Error("no branch was found to be its own child")
	}
}

func TestAFlippedByteIsRefusedOrDoesNotMatter(t *testing.T) {
	slow(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for name, images := range map[string][]image{"small": smallJournal(t), "large": largeJournal(t)} {
		last, before := images[len(images)-1], images[len(images)-2]
		refused, opened := 0, 0
		spoiled := bytes.Clone(last.bytes)
		for round := range 4000 {
			copy(spoiled, last.bytes)
			at, by := random.IntN(len(spoiled)), byte(1+random.IntN(255))
			if round%2 == 0 { // the heads of pages are small, and all is in them
				at = at/pageSize*pageSize + random.IntN(200)
			}
			spoiled[at] ^= by
			if checked(spoiled) != nil {
				if refused++; refused%20 != 0 {
					continue
				}
			} else if opened++; opened%20 != 0 {
				continue
			}
			verdict(t, fmt.Sprintf("%s: byte %d changed by %#x (seed %d)", name, at, by, seed), spoiled, last, before)
		}
		t.Logf("%s: %d of %d flips were refused", name, refused, refused+opened)
		if refused == 0 || opened == 0 {
			t.Errorf("%s: %d refused, %d opened", name, refused, opened)
		}
	}
}

func TestPagesOfNoiseAreRefusedOrDoNotMatter(t *testing.T) {
	slow(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	images := largeJournal(t)
	last, before := images[len(images)-1], images[len(images)-2]
	for round := range 300 {
		spoiled := bytes.Clone(last.bytes)
		for range 1 + random.IntN(3) {
			page := spoiled[random.IntN(len(spoiled)/pageSize)*pageSize:][:pageSize]
			switch random.IntN(3) {
			case 0:
				clear(page)
			case 1: // another page of the file
				copy(page, last.bytes[random.IntN(len(spoiled)/pageSize)*pageSize:])
			default:
				for i := range page {
					page[i] = byte(random.Uint32())
				}
			}
		}
		verdict(t, fmt.Sprintf("round %d (seed %d)", round, seed), spoiled, last, before)
	}
}

// A machine that dies while a commit is under way has any of its pages on the disk, and the meta page
// last. A disk that lies has them in any order.
func TestACommitThatIsHalfOnTheDiskIsTheStateBefore(t *testing.T) {
	for name, images := range map[string][]image{"small": smallJournal(t), "large": largeJournal(t)} {
		for i := range len(images) - 1 {
			before, after := images[i], images[i+1]
			undone := bytes.Clone(after.bytes) // the newest meta page is the older one again
			copy(undone[:2*pageSize], before.bytes)
			if !verdict(t, fmt.Sprintf("%s: commit %d without its meta page", name, i), undone, before) {
				t.Errorf("%s: commit %d without its meta page was refused", name, i)
			}
			var half []byte
			half = append(append(half, before.bytes...), make([]byte, max(0, len(after.bytes)-len(before.bytes)))...)
			for at := 2 * pageSize; at < len(after.bytes); at += 2 * pageSize {
				copy(half[at:at+pageSize], after.bytes[at:])
			}
			if !verdict(t, fmt.Sprintf("%s: commit %d with half its pages", name, i), half, before) {
				t.Errorf("%s: commit %d with half its pages was refused", name, i)
			}
			for at := 2 * pageSize; at < len(before.bytes); at += pageSize {
				if bytes.Equal(before.bytes[at:at+pageSize], after.bytes[at:at+pageSize]) {
					continue
				}
				lied := bytes.Clone(after.bytes)
				copy(lied[at:at+pageSize], before.bytes[at:])
				verdict(t, fmt.Sprintf("%s: commit %d without page %d", name, i, at/pageSize), lied, after)
			}
			torn := bytes.Clone(after.bytes) // a meta page of which half was written
			for p := range 2 {
				if m := torn[p*pageSize:]; !bytes.Equal(m[:pageSize], before.bytes[p*pageSize:][:pageSize]) {
					copy(m[48:pageSize], before.bytes[p*pageSize+48:])
				}
			}
			verdict(t, fmt.Sprintf("%s: commit %d with a torn meta page", name, i), torn, before)
		}
	}
}

func TestOtherFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	foreign := filepath.Join(dir, "foreign")
	db, err := bolt.Open(foreign, 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("journal")); return err }))
	must(t, db.Close())
	bare, err := os.ReadFile(foreign)
	must(t, err)
	for name, content := range map[string][]byte{
		"an empty file":      {},
		"a text":             []byte("role: actor\n"),
		"zeros":              make([]byte, 32768),
		"a long text":        bytes.Repeat([]byte("role: actor\n"), 10_000),
		"another bbolt file": bare,
	} {
		if verdict(t, name, content) {
			t.Errorf("%s was opened", name)
		}
	}
	var c *CorruptError
	if _, err := open(dir, Options{Job: "tiny"}, quick()); !errors.As(err, &c) {
		t.Errorf("a directory gave %v", err)
	}
}

// edit changes the file as somebody with a bbolt tool would who knows of the number in the head.
func edit(t *testing.T, path string, change func(*bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bolt.Tx) error {
		must(t, change(tx))
		if h, err := readHead(tx); err == nil {
			return h.write(tx)
		}
		return nil
	}))
	must(t, db.Close())
}

func TestAnotherProgramsCommitIsRefused(t *testing.T) {
	path := newPath(t)
	must(t, mustOpen(t, path, quick()).Close())
	db, err := bolt.Open(path, 0o600, nil)
	must(t, err)
	must(t, db.Update(func(*bolt.Tx) error { return nil }))
	must(t, db.Close())
	var c *CorruptError
	if _, err := Open(path, Options{Job: "tiny"}); !errors.As(err, &c) || !strings.Contains(err.Error(), "another program") {
		t.Errorf("opening gave %v", err)
	}
}

func TestWhatIsEditedByHandIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		why    string
		change func(*bolt.Tx) error
	}{
		"a record changed": {`the checksum of ledger "all" is wrong`, func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("ledger"))
			return b.Put([]byte("all"), bytes.Replace(bytes.Clone(b.Get([]byte("all"))), []byte("4"), []byte("0"), 1))
		}},
		"a record changed with its checksum": {"older than they should be", func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("ledger")).Put([]byte("all"), encode(Ledger, []byte("all"), 1, []byte("0")))
		}},
		"a record deleted": {"records are missing", func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("ledger")).Delete([]byte("all"))
		}},
		"all of a kind deleted": {"records are missing", func(tx *bolt.Tx) error {
			return tx.DeleteBucket([]byte("incident"))
		}},
		"a record added": {`the checksum of role "x" is wrong`, func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("role")).Put([]byte("x"), []byte("1"))
		}},
		"a record under another key": {`the checksum of role "x" is wrong`, func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("role"))
			return errors.Join(b.Put([]byte("x"), bytes.Clone(b.Get([]byte("4")))), b.Delete([]byte("4")))
		}},
		"the head deleted": {"there is no head", func(tx *bolt.Tx) error {
			return tx.DeleteBucket([]byte("journal"))
		}},
		"a bucket in a bucket": {"a bucket where a record should be", func(tx *bolt.Tx) error {
			_, err := tx.Bucket([]byte("role")).CreateBucket([]byte("deep"))
			return err
		}},
	} {
		images := smallJournal(t)
		path := newPath(t)
		must(t, os.WriteFile(path, images[len(images)-1].bytes, 0o600))
		edit(t, path, c.change)
		_, err := open(path, Options{Job: "tiny"}, quick())
		var bad *CorruptError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Both meta pages say, with a right checksum, that there are more pages than a signed number can count.
func TestAJournalThatCountsMorePagesThanThereAreIsRefused(t *testing.T) {
	t.Parallel()
	states := smallJournal(t)
	file := bytes.Clone(states[len(states)-1].bytes)
	for page := range 2 {
		m, h := file[page*pageSize+pageHead:], fnv.New64a()
		order.PutUint64(m[40:], 1<<63+4)
		h.Write(m[:56])
		order.PutUint64(m[56:], h.Sum64())
	}
	if err := checked(file); err == nil || !strings.Contains(err.Error(), "it was cut") {
		t.Errorf("got %v", err)
	}
}
