package takeover

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"os"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"vigil/internal/journal"
)

// Where bbolt keeps what names its newest commit: two pages in turn, each with the commit's number and a
// checksum behind the 16 bytes of a page's head.
const (
	metaNumber   = 16 + 48
	metaChecksum = metaNumber + 8
)

// undoNewest makes the newest commit of a journal as if it had never been made: the page that names it is
// spoiled, as by a write that the machine has not finished.
func undoNewest(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(os.Getpagesize())
	newest, page := uint64(0), int64(-1)
	for i := range int64(2) {
		number := make([]byte, 8)
		if _, err := f.ReadAt(number, i*size+metaNumber); err != nil {
			t.Fatal(err)
		}
		if n := binary.NativeEndian.Uint64(number); n >= newest {
			newest, page = n, i
		}
	}
	if _, err := f.WriteAt(make([]byte, 8), page*size+metaChecksum); err != nil {
		t.Fatal(err)
	}
}

// fromTheFuture rewrites the journal's head as a newer version of the program would: a record is its
// checksum over kind, key and all behind it, two bytes of schema, and JSON.
func fromTheFuture(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("journal"))
		old := b.Get([]byte("head"))
		head := map[string]any{}
		if err := json.Unmarshal(old[6:], &head); err != nil {
			return err
		}
		head["format"], head["written_by"], head["tx"] = 99, "v9.9.9", tx.ID()
		text, err := json.Marshal(head)
		if err != nil {
			return err
		}
		value := append(make([]byte, 4), old[4:6]...)
		value = append(value, text...)
		sum := crc32.Checksum(append([]byte("journal\x00head\x00"), value[4:]...), crc32.MakeTable(crc32.Castagnoli))
		binary.BigEndian.PutUint32(value, sum)
		return b.Put([]byte("head"), value)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// shows: A49
func TestAJournalOfANewerVersionIsRefusedAndTheJobGoesOn(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	was := begun(j)
	j.kill()
	good, err := os.ReadFile(j.journal())
	if err != nil {
		t.Fatal(err)
	}
	fromTheFuture(t, j.journal())
	said, status := j.refused()
	for _, words := range []string{"format 99", "version v9.9.9", "--forget-state"} {
		if status != 2 || !strings.Contains(said, words) {
			t.Errorf("it ends with %d and does not say %q: %s", status, words, said)
		}
	}
	if err := os.WriteFile(j.journal(), good, 0o600); err != nil {
		t.Fatal(err)
	}
	now := j.well("the next controller goes on with the good copy")
	j.unharmed(was, now)
	j.interrupt(func() {})
	j.livedOnce()
}

// Nobody can see from here whether its processes live.
func TestARunThatIsOpenOnAnotherMachineIsNotGoneOnWithHere(t *testing.T) {
	t.Parallel()
	j := prepare(t, false, smallJob)
	was := begun(j)
	j.kill()
	at := func(host string) {
		t.Helper()
		j.edit(func(book *journal.Journal) error {
			return book.UpdateRun(func(r *journal.Run) { r.Host = host })
		})
	}
	here, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	at("elsewhere")
	if said, status := j.refused(); status != 2 || !strings.Contains(said, "is open on elsewhere, where its processes may be alive, and this is "+here) {
		t.Errorf("status %d: %s", status, said)
	}
	at(here)
	j.start()
	j.unharmed(was, j.well("it is gone on with"))
	j.interrupt(func() {})
}
