package journal

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
)

// Entry is one change of one record, made by [Put] or [Delete].
type Entry struct {
	kind  Kind
	key   string
	json  []byte // nil deletes
	clear bool   // instead: delete every record of every kind
	err   error  // what Write will refuse it for
}

// Put sets a record. The value is turned into JSON now, so the caller may change it afterwards. A kind
// that does not exist, a key that is empty or over 1 KiB, a value that is not JSON or over
// [LargestValue], are found by Write, which then records nothing.
func Put[T any](kind Kind, key string, value T) Entry {
	e := Delete(kind, key)
	if e.err != nil {
		return e
	}
	text, err := json.Marshal(value)
	switch {
	case err != nil:
		e.err = fmt.Errorf("put %s %q: %w", kind, key, err)
	case len(text) > LargestValue:
		e.err = fmt.Errorf("put %s %q: %d bytes, and %d is the limit", kind, key, len(text), LargestValue)
	}
	e.json = text
	return e
}

// Delete removes a record, if it is there.
func Delete(kind Kind, key string) Entry {
	e := Entry{kind: kind, key: key}
	switch {
	case !slices.Contains(kinds, kind):
		e.err = fmt.Errorf("write journal: no kind %q", kind)
	case kind == run:
		e.err = errors.New("write journal: the run is changed by BeginRun and its siblings")
	case key == "" || len(key) > 1024:
		e.err = fmt.Errorf("write journal: a key of %s has %d bytes: 1 to 1024 are allowed", kind, len(key))
	case kind == Incident && !isNumber(key):
		e.err = fmt.Errorf("write journal: the key %q of an incident is not a decimal number", key)
	}
	return e
}

func isNumber(key string) bool {
	n, err := strconv.ParseUint(key, 10, 64)
	return err == nil && strconv.FormatUint(n, 10) == key
}

// Read returns the records of a kind by their keys, as the last commit left them; what is queued is not
// among them. It is an error if one of them is not JSON of a T.
func Read[T any](j *Journal, kind Kind) (map[string]T, error) {
	if !slices.Contains(kinds, kind) {
		return nil, fmt.Errorf("read journal: no kind %q", kind)
	}
	out := map[string]T{}
	for key, text := range j.records(kind) {
		var v T
		if err := json.Unmarshal(text, &v); err != nil {
			return nil, fmt.Errorf("read %s %q from journal %s: %w", kind, key, j.path, err)
		}
		out[key] = v
	}
	return out, nil
}

// ReadOne returns one record and whether there is one, as [Read] does.
func ReadOne[T any](j *Journal, kind Kind, key string) (T, bool, error) {
	var v T
	j.mu.Lock()
	text := j.known[id{kind, key}]
	j.mu.Unlock()
	if text == nil {
		return v, false, nil
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, false, fmt.Errorf("read %s %q from journal %s: %w", kind, key, j.path, err)
	}
	return v, true, nil
}

// records returns those of a kind. Their JSON is never changed.
func (j *Journal) records(kind Kind) map[string][]byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := map[string][]byte{}
	for at, text := range j.known {
		if at.kind == kind {
			out[at.key] = text
		}
	}
	return out
}

// A record in the file is a CRC-32C of all of it with its kind and key (4 bytes, big-endian), the
// version of its kind's schema (2 bytes), and JSON. Every format of the file keeps to this.
const recordHead = 6

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc(kind Kind, key, rest []byte) uint32 {
	sum := crc32.Update(0, castagnoli, []byte(kind+"\x00"))
	sum = crc32.Update(sum, castagnoli, key)
	sum = crc32.Update(sum, castagnoli, []byte{0})
	return crc32.Update(sum, castagnoli, rest)
}

func encode(kind Kind, key []byte, version int, text []byte) []byte {
	out := make([]byte, recordHead, recordHead+len(text))
	binary.BigEndian.PutUint16(out[4:], uint16(version))
	out = append(out, text...)
	binary.BigEndian.PutUint32(out, crc(kind, key, out[4:]))
	return out
}

// decode gives the JSON of a record and the version of its schema, still inside the value given.
func decode(kind Kind, key, value []byte) (version int, text []byte, err error) {
	if len(value) <= recordHead || binary.BigEndian.Uint32(value) != crc(kind, key, value[4:]) {
		return 0, nil, fmt.Errorf("the checksum of %s %q is wrong", kind, shownKey(kind, key))
	}
	return int(binary.BigEndian.Uint16(value[4:])), value[recordHead:], nil
}

// weight is a record's share in the sum over all records that the head keeps: the sum tells a record
// that is missing, or older than it should be, though all that is there is whole.
func weight(kind Kind, key, value []byte) uint64 {
	h := sha256.New()
	h.Write([]byte(kind + "\x00"))
	h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(key))))
	h.Write(key)
	h.Write(value)
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// storedKey is a key as the file has it: numbers are padded, so that they are in their order.
func storedKey(kind Kind, key string) []byte {
	if kind == Incident {
		return []byte(strings.Repeat("0", 20-len(key)) + key)
	}
	return []byte(key)
}

func shownKey(kind Kind, stored []byte) []byte {
	if kind != Incident {
		return stored
	}
	if short := strings.TrimLeft(string(stored), "0"); short != "" {
		return []byte(short)
	}
	return []byte("0")
}
