package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// shape is how the file looks in this version of the program, and the way there from older ones. What a
// release has written is never changed here: a new look is one more step at the end of a list.
type shape struct {
	// layout[i] turns a file of format i+1 into one of format i+2: buckets that split or move.
	layout []func(*bolt.Tx) error
	// records[k][i] turns the JSON of a record of kind k from schema i+1 into schema i+2.
	records map[Kind][]func(json.RawMessage) (json.RawMessage, error)
}

var currentShape = shape{
	records: map[Kind][]func(json.RawMessage) (json.RawMessage, error){
		// Schema 2 has a record for each group of the placement table beside the one record that schema 1 had, which
		// its owner still reads. A program that knows schema 1 only would place roles beside those that live.
		Placement: {func(old json.RawMessage) (json.RawMessage, error) { return old, nil }},
	},
}

func (s shape) format() int        { return 1 + len(s.layout) }
func (s shape) version(k Kind) int { return 1 + len(s.records[k]) }
func known(bucket string) bool {
	return slices.Contains(kinds, Kind(bucket)) || bucket == string(headKind)
}

// migrate brings the whole file to this shape, in one transaction.
func (s shape) migrate(tx *bolt.Tx, version string) error {
	h, err := readHead(tx)
	if err != nil {
		return err
	}
	for ; h.Format < s.format(); h.Format++ {
		if err := s.layout[h.Format-1](tx); err != nil {
			return fmt.Errorf("from format %d: %w", h.Format, err)
		}
	}
	h.Counts, h.Sum, h.Written = map[Kind]int{}, 0, version
	var buckets []Kind
	err = tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
		buckets = append(buckets, Kind(name))
		return nil
	})
	for _, k := range buckets {
		if err == nil && k != headKind {
			err = s.migrateKind(tx.Bucket([]byte(k)), k, h)
		}
	}
	if err != nil {
		return err
	}
	return h.write(tx)
}

func (s shape) migrateKind(b *bolt.Bucket, k Kind, h *head) error {
	changed := map[string][]byte{}
	err := b.ForEach(func(key, value []byte) error {
		from, text, err := decode(k, key, value)
		for ; err == nil && from < s.version(k); from++ {
			if text, err = s.records[k][from-1](bytes.Clone(text)); err != nil {
				err = fmt.Errorf("%s %q from schema %d: %w", k, shownKey(k, key), from, err)
			}
		}
		if err != nil {
			return err
		}
		now := encode(k, key, s.version(k), text)
		if !bytes.Equal(now, value) {
			changed[string(key)] = now
		}
		h.Counts[k]++
		h.Sum += weight(k, key, now)
		return nil
	})
	for key, value := range changed {
		if err == nil {
			err = b.Put([]byte(key), value)
		}
	}
	return err
}
