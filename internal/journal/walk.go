package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt trusts its file: a page that points outside the file faults, one that points back at its parent
// is followed for ever, and its own Tx.Check does either in a goroutine that cannot be guarded. So the
// file is walked here first, by reading and with bounds, and only a file in which every page below the
// high-water mark is used exactly once is ever given to bbolt.
//
// The format is bbolt's version 2 (its internal/common: Page, Meta, InBucket, and the elements of leaf
// and branch pages), in the byte order of the machine.
const (
	pageSize     = 4096
	pageHead     = 16 // id 8, flags 2, count 2, overflow 4
	elementSize  = 16 // leaf: flags 4, pos 4, ksize 4, vsize 4; branch: pos 4, ksize 4, pgid 8
	bucketHead   = 16 // root 8, sequence 8
	branchPage   = 0x01
	leafPage     = 0x02
	metaPage     = 0x04
	freelistPage = 0x10
	magic        = 0xED0CDAED
	boltVersion  = 2
	noFreelist   = ^uint64(0)
)

var order = binary.NativeEndian

// meta is one of the two pages that say which tree is the newest whole one.
type meta struct{ root, freelist, top, tx uint64 }

// tree is a walk over the newest state in a file.
type tree struct {
	file io.ReaderAt
	meta
	used []bool                                // pages seen
	each func(bucket, key, value []byte) error // for every record
	torn bool                                  // one of the meta pages is not valid
}

// walk calls each for every record in a bucket of the root, in order of buckets and keys, and returns an
// error if anything but the content of records is not as bbolt would have written it. It reads each page
// once.
func walk(file io.ReaderAt, size int64, each func(bucket, key, value []byte) error) (*tree, error) {
	t := &tree{file: file, each: each}
	if err := t.readMeta(size); err != nil {
		return t, err
	}
	t.used = make([]bool, t.top)
	t.used[0], t.used[1] = true, true
	if err := t.readFreelist(); err != nil {
		return t, err
	}
	if err := t.page(nil, t.root, nil, nil); err != nil {
		return t, err
	}
	for id, used := range t.used {
		if !used {
			return t, fmt.Errorf("page %d is neither used nor free", id)
		}
	}
	return t, nil
}

func (t *tree) readMeta(size int64) error {
	if size > LargestFile {
		return fmt.Errorf("it has %d bytes, and a journal has %d at most", size, LargestFile)
	}
	if size < 4*pageSize {
		return fmt.Errorf("it has only %d bytes", size)
	}
	found := 0
	for i := range uint64(2) {
		var p [80]byte
		if _, err := t.file.ReadAt(p[:], int64(i)*pageSize); err != nil {
			return err
		}
		m, valid := parseMeta(p[:])
		if !valid {
			t.torn = true
			continue
		}
		if order.Uint64(p[:]) != i || order.Uint16(p[8:]) != metaPage || order.Uint32(p[pageHead+8:]) != pageSize {
			return fmt.Errorf("meta page %d is not one of ours", i)
		}
		if found++; found == 1 || m.tx > t.tx {
			t.meta = m
		}
	}
	switch {
	case found == 0:
		return errors.New("neither of its two meta pages is valid: it is not a journal, or both are damaged")
	case t.top < 4 || t.top > uint64(size/pageSize):
		return fmt.Errorf("it has %d bytes, and %d pages of %d are said to be in it: it was cut", size, t.top, pageSize)
	}
	return nil
}

// parseMeta says, as bbolt does, whether a meta page counts.
func parseMeta(p []byte) (_ meta, valid bool) {
	m, h := p[pageHead:], fnv.New64a()
	h.Write(m[:56])
	if order.Uint32(m) != magic || order.Uint32(m[4:]) != boltVersion || order.Uint64(m[56:]) != h.Sum64() {
		return meta{}, false
	}
	return meta{root: order.Uint64(m[16:]), freelist: order.Uint64(m[32:]), top: order.Uint64(m[40:]), tx: order.Uint64(m[48:])}, true
}

// claim reads a page with its overflow, once.
func (t *tree) claim(id uint64) ([]byte, error) {
	if id < 2 || id >= t.top {
		return nil, fmt.Errorf("page %d is outside the file", id)
	}
	var h [pageHead]byte
	if _, err := t.file.ReadAt(h[:], int64(id)*pageSize); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	n := uint64(order.Uint32(h[12:])) + 1
	if order.Uint64(h[:]) != id || n > t.top-id {
		return nil, fmt.Errorf("page %d is not what it should be", id)
	}
	for i := id; i < id+n; i++ {
		if t.used[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		t.used[i] = true
	}
	p := make([]byte, n*pageSize)
	if _, err := t.file.ReadAt(p, int64(id)*pageSize); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return p, nil
}

func (t *tree) readFreelist() error {
	if t.freelist == noFreelist {
		return errors.New("it has no list of free pages: another program wrote it")
	}
	p, err := t.claim(t.freelist)
	if err != nil {
		return err
	}
	if order.Uint16(p[8:]) != freelistPage {
		return fmt.Errorf("page %d is not a list of free pages", t.freelist)
	}
	n, ids := uint64(order.Uint16(p[10:])), p[pageHead:]
	if n == 0xFFFF {
		n, ids = order.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids)/8) {
		return fmt.Errorf("the list of free pages on page %d does not fit there", t.freelist)
	}
	for i := range n {
		id := order.Uint64(ids[8*i:])
		if id < 2 || id >= t.top || t.used[id] {
			return fmt.Errorf("page %d is free, and used or outside the file", id)
		}
		t.used[id] = true
	}
	return nil
}

// page walks the tree below a page. The bucket is nil in the root, where every element is a bucket. All
// keys are at least low and below high, where these are not nil.
func (t *tree) page(bucket []byte, id uint64, low, high []byte) error {
	p, err := t.claim(id)
	if err != nil {
		return err
	}
	switch order.Uint16(p[8:]) {
	case leafPage:
		err = t.leaf(bucket, p, low, high)
	case branchPage:
		err = t.branch(bucket, p, low, high)
	default:
		err = errors.New("it is neither a leaf nor a branch")
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

func (t *tree) branch(bucket, p, low, high []byte) error {
	n := int(order.Uint16(p[10:]))
	keys, below := make([][]byte, n), make([]uint64, n)
	for i := range n {
		e := p[pageHead+min(i*elementSize, len(p)-pageHead):]
		if len(e) < elementSize {
			return errors.New("its elements do not fit")
		}
		below[i] = order.Uint64(e[8:])
		var err error
		if keys[i], err = part(p, i, n, order.Uint32(e), order.Uint32(e[4:])); err != nil {
			return err
		}
	}
	if n == 0 {
		return errors.New("it is a branch without leaves")
	}
	if err := sorted(keys, low, high); err != nil {
		return err
	}
	for i := range n {
		upper := high
		if i+1 < n {
			upper = keys[i+1]
		}
		if err := t.page(bucket, below[i], keys[i], upper); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) leaf(bucket, p, low, high []byte) error {
	n := int(order.Uint16(p[10:]))
	keys := make([][]byte, n)
	for i := range n {
		e := p[pageHead+min(i*elementSize, len(p)-pageHead):]
		if len(e) < elementSize {
			return errors.New("its elements do not fit")
		}
		flags, pos, ksize, vsize := order.Uint32(e), order.Uint32(e[4:]), order.Uint32(e[8:]), order.Uint32(e[12:])
		key, err := part(p, i, n, pos, ksize)
		if err != nil {
			return err
		}
		value, err := part(p, i, n, pos+ksize, vsize)
		switch {
		case err != nil || pos+ksize < pos:
			return errors.New("an element is outside of it")
		case flags > 1 || (flags == 1) != (bucket == nil):
			return errors.New("a bucket where a record should be, or a record where a bucket should be")
		case flags == 1:
			err = t.bucket(key, value)
		default:
			err = t.each(bucket, key, value)
		}
		if err != nil {
			return err
		}
		keys[i] = key
	}
	return sorted(keys, low, high)
}

func (t *tree) bucket(name, value []byte) error {
	if len(value) < bucketHead {
		return fmt.Errorf("bucket %q is cut", name)
	}
	if root := order.Uint64(value); root != 0 {
		return t.page(name, root, nil, nil)
	}
	inline := value[bucketHead:]
	if len(inline) < pageHead || order.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("bucket %q is cut", name)
	}
	return t.leaf(name, inline, nil, nil)
}

// part is what element i of n on a page points at: size bytes, pos bytes after its own beginning.
func part(p []byte, i, n int, pos, size uint32) ([]byte, error) {
	from := pageHead + i*elementSize + int(pos)
	if from < pageHead+n*elementSize || from+int(size) > len(p) {
		return nil, errors.New("an element is outside of it")
	}
	return p[from : from+int(size)], nil
}

func sorted(keys [][]byte, low, high []byte) error {
	for i, k := range keys {
		switch {
		case len(k) == 0,
			i == 0 && low != nil && bytes.Compare(k, low) < 0,
			i > 0 && bytes.Compare(k, keys[i-1]) <= 0,
			high != nil && bytes.Compare(k, high) >= 0:
			return errors.New("its keys are not in order")
		}
	}
	return nil
}
