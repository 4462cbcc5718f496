package journal

import (
	"fmt"
	"io"
)

// check judges a file: whole, of this job, and of a shape that can be read.
type check struct {
	shape  shape
	path   string
	head   []byte
	counts map[Kind]int
	sum    uint64
	bad    error  // the first record that is not as it was written
	newer  string // the first thing that only a newer version knows
	alien  string // the first bucket that this version does not know

	torn, stale bool
}

// file returns the error to refuse the file with.
func (c *check) file(f io.ReaderAt, size int64, job string) error {
	t, err := walk(f, size, c.record)
	c.torn = t.torn
	if err != nil {
		return &CorruptError{c.path, err}
	}
	h, err := decodeHead(c.head)
	if err != nil {
		return &CorruptError{c.path, err}
	}
	if h.Format == c.shape.format() && c.alien != "" {
		c.newer = fmt.Sprintf("records of kind %q", c.alien)
	}
	if h.Format > c.shape.format() {
		c.newer = fmt.Sprintf("format %d", h.Format)
	}
	c.stale = c.stale || h.Format < c.shape.format()
	switch {
	case c.bad != nil:
		return &CorruptError{c.path, c.bad}
	case h.Tx != t.tx:
		return &CorruptError{c.path, fmt.Errorf("its records are of commit %d, its newest commit is %d: pages are missing, or another program wrote to it", h.Tx, t.tx)}
	case h.Job != job:
		return &OtherJobError{c.path, job, h.Job}
	case c.newer != "":
		return &NewerError{c.path, h.Written, c.newer}
	case h.Format < 1:
		return &CorruptError{c.path, fmt.Errorf("format %d was never written", h.Format)}
	case c.sum != h.Sum || !c.counted(h.Counts):
		return &CorruptError{c.path, fmt.Errorf("records are missing, or older than they should be: %v are there, and %v should be", c.counts, h.Counts)}
	}
	return nil
}

func (c *check) record(bucket, key, value []byte) error {
	kind := Kind(bucket)
	if kind == headKind {
		if string(key) != headKey || c.head != nil {
			return fmt.Errorf("%q is not the head", key)
		}
		c.head = value
		return nil
	}
	if !known(string(bucket)) && c.alien == "" {
		c.alien = string(bucket)
	}
	version, _, err := decode(kind, key, value)
	switch {
	case err != nil && c.bad == nil:
		c.bad = err
	case version > c.shape.version(kind) && known(string(bucket)):
		c.newer = fmt.Sprintf("records of kind %s in schema %d", kind, version)
	case version < c.shape.version(kind):
		c.stale = true
	}
	c.counts[kind]++
	c.sum += weight(kind, key, value)
	return nil
}

// counted compares without regard to kinds of which there are none.
func (c *check) counted(want map[Kind]int) bool {
	for k, n := range want {
		if c.counts[k] != n {
			return false
		}
	}
	for k, n := range c.counts {
		if want[k] != n {
			return false
		}
	}
	return true
}
