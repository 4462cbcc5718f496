package journal

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// disk is a checked and locked bbolt file.
type disk struct {
	path    string
	version string
	job     string
	shape   shape
	seams   seams
	file    *os.File // bolt's own: it closes it
	db      *bolt.DB
	rewound bool  // the newest commit was not whole when the file was opened
	suspect bool  // the last commit failed, perhaps after its meta page was written
	held    int64 // the file's size when room was last held for it
	seen    seen
	faulted bool // its pages could not be read once
}

// spare is the room on the disk that is held beyond the file's end, in bytes: for what must still be recorded when
// somebody else has filled the disk.
const spare = 256 << 10

// hold has the disk keep the room of the whole file, which has holes, and some more. Where it cannot, a full
// disk is noticed by the next commit that needs room.
func (d *disk) hold() {
	info, err := d.file.Stat()
	if err != nil || info.Size() <= d.held {
		return
	}
	err = unix.Fallocate(int(d.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()+spare)
	if err == nil || errors.Is(err, unix.EOPNOTSUPP) { // else it is tried again after the next commit
		d.held = info.Size()
	}
}

// head is the record about the others: bucket "journal", key "head". Every format keeps all but Counts
// and Sum as they are, and every commit writes it.
type head struct {
	Format  int          `json:"format"`
	Job     string       `json:"job"`
	Made    string       `json:"made_by"`
	Written string       `json:"written_by"`
	Tx      uint64       `json:"tx"` // of the commit, as its meta page has it
	Counts  map[Kind]int `json:"counts"`
	Sum     uint64       `json:"sum,string"` // of the weights of all records
}

const headKind, headKey = Kind("journal"), "head"

// guarded runs what reads the mapped file. A file that was cut or spoiled while it is open makes such
// reads fault, and bolt panic: that is a CorruptError instead.
func (d *disk) guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			d.faulted = true
			err = &CorruptError{d.path, fmt.Errorf("while in use: %v", r)}
		}
	}()
	return f()
}

func (d *disk) close() error { return d.guarded(d.db.Close) }

// commit makes the batch one transaction. After an error nothing of it counts as written, though it may
// be: it can be made again.
func (d *disk) commit(b *batch) error {
	err := d.guarded(func() error {
		if d.suspect {
			if err := d.settle(); err != nil {
				return err
			}
		}
		return d.db.Update(func(tx *bolt.Tx) error { return d.apply(tx, b) })
	})
	d.suspect = err != nil
	if err == nil {
		d.hold()
	}
	d.look()
	return err
}

// settle writes the two meta pages as they are seen once more. When the sync at the end of a commit
// fails, the kernel shows the new meta page and may never write it: pages that only the older meta page
// on the disk needs would be reused.
func (d *disk) settle() error {
	pages := make([]byte, 2*pageSize)
	if _, err := d.file.ReadAt(pages, 0); err != nil {
		return err
	}
	if _, err := d.file.WriteAt(pages, 0); err != nil {
		return err
	}
	return d.file.Sync()
}

func (d *disk) apply(tx *bolt.Tx, b *batch) error {
	h, err := readHead(tx)
	if err != nil {
		return &CorruptError{d.path, err}
	}
	if b.clear {
		for k := range h.Counts {
			if err := tx.DeleteBucket([]byte(k)); err != nil && !errors.Is(err, berrors.ErrBucketNotFound) {
				return err
			}
		}
		h.Counts, h.Sum = map[Kind]int{}, 0
	}
	ops := make([]Entry, 0, len(b.ops))
	for _, e := range b.ops {
		ops = append(ops, e)
	}
	slices.SortFunc(ops, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.key, b.key)) })
	for _, e := range ops {
		var value []byte
		key := storedKey(e.kind, e.key)
		if e.json != nil {
			value = encode(e.kind, key, d.shape.version(e.kind), e.json)
		}
		if err := h.set(tx, e.kind, key, value); err != nil {
			return err
		}
	}
	if err := h.trim(tx); err != nil {
		return err
	}
	h.Written = d.version
	return h.write(tx)
}

func readHead(tx *bolt.Tx) (*head, error) {
	var value []byte
	if b := tx.Bucket([]byte(headKind)); b != nil {
		value = b.Get([]byte(headKey))
	}
	return decodeHead(value)
}

func decodeHead(value []byte) (*head, error) {
	if value == nil {
		return nil, errors.New("there is no head: it is not a journal")
	}
	_, text, err := decode(headKind, []byte(headKey), value)
	if err != nil {
		return nil, err
	}
	h := head{Counts: map[Kind]int{}}
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, fmt.Errorf("read head: %w", err)
	}
	return &h, nil
}

func (h *head) write(tx *bolt.Tx) error {
	b, err := tx.CreateBucketIfNotExists([]byte(headKind))
	if err != nil {
		return err
	}
	h.Tx = uint64(tx.ID())
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return b.Put([]byte(headKey), encode(headKind, []byte(headKey), 1, text))
}

// set changes one record, or deletes it where value is nil, and keeps count.
func (h *head) set(tx *bolt.Tx, kind Kind, key, value []byte) error {
	b, err := tx.CreateBucketIfNotExists([]byte(kind))
	if err != nil {
		return err
	}
	old := b.Get(key)
	if bytes.Equal(old, value) {
		return nil
	}
	if old != nil {
		h.Sum -= weight(kind, key, old)
		h.Counts[kind]--
	}
	if value == nil {
		return b.Delete(key)
	}
	h.Sum += weight(kind, key, value)
	h.Counts[kind]++
	return b.Put(key, value)
}

// trim deletes the oldest incidents beyond those that are kept.
func (h *head) trim(tx *bolt.Tx) error {
	for h.Counts[Incident] > KeptIncidents {
		first, _ := tx.Bucket([]byte(Incident)).Cursor().First()
		if err := h.set(tx, Incident, bytes.Clone(first), nil); err != nil {
			return err
		}
	}
	return nil
}

func (d *disk) records(kind Kind, each func(key, text []byte)) error {
	type pair struct{ key, text []byte }
	var found []pair // handed out only when the file is no longer held
	err := d.guarded(func() error {
		return d.db.View(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(kind))
			if b == nil {
				return nil
			}
			return b.ForEach(func(key, value []byte) error {
				_, text, err := decode(kind, key, value)
				found = append(found, pair{bytes.Clone(shownKey(kind, key)), bytes.Clone(text)})
				return err
			})
		})
	})
	if err != nil {
		return fmt.Errorf("read journal %s: %w", d.path, err)
	}
	for _, p := range found {
		each(p.key, p.text)
	}
	return nil
}
