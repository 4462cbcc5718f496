package journal

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// contents is every record of a journal by its kind and key, as the last commit left it.
type contents map[id][]byte

// with changes it as a commit of the batch changes the file.
func (c contents) with(b *batch) contents {
	if b.clear {
		c = contents{}
	}
	for at, e := range b.ops {
		if e.json == nil {
			delete(c, at)
		} else {
			c[at] = e.json
		}
	}
	var incidents []string
	for at := range c {
		if at.kind == Incident {
			incidents = append(incidents, at.key)
		}
	}
	if extra := len(incidents) - KeptIncidents; extra > 0 {
		slices.SortFunc(incidents, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		for _, key := range incidents[:extra] {
			delete(c, id{Incident, key})
		}
	}
	return c
}

// seen is how a file was right after the last write of ours.
type seen struct {
	size    int64
	changed time.Time
}

func (d *disk) look() {
	if info, err := d.file.Stat(); err == nil {
		d.seen = seen{info.Size(), info.ModTime()}
	}
}

// lost says how the file at the path has ceased to be the one that was written last; empty: it has not. What somebody has
// written into it is read and checked as a whole, once.
func (d *disk) lost() string {
	ours, err := d.file.Stat()
	if err != nil {
		return fmt.Sprintf("it cannot be looked at: %v", err)
	}
	there, err := os.Lstat(d.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && links(ours) > 0:
		return "somebody has moved it"
	case errors.Is(err, fs.ErrNotExist):
		return "somebody has removed it"
	case err != nil:
		return fmt.Sprintf("it cannot be looked at: %v", err)
	case !os.SameFile(ours, there):
		return "somebody has put another file in its place"
	case ours.Size() < d.seen.size:
		return "somebody has cut it short"
	case ours.Size() == d.seen.size && ours.ModTime().Equal(d.seen.changed):
		return ""
	}
	c := check{shape: d.shape, path: d.path, counts: map[Kind]int{}}
	if err := c.file(d.file, ours.Size(), d.job); err != nil {
		return fmt.Sprintf("somebody has written to it: %v", err)
	}
	d.look()
	return ""
}

func links(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink)
	}
	return 0
}

// restore writes everything that is known into a new file, which takes the name of the one that was lost, and goes on
// with it. A file that somebody has put there is set aside, unless another process has it open: that is a *HeldError.
func (d *disk) restore(all contents) error {
	if err := d.clearPath(); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(d.path), filepath.Base(d.path)+".new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	next := &disk{path: d.path, version: d.version, job: d.job, shape: d.shape, seams: d.seams, file: f}
	err = lock(f) // before it has its name, so that nobody else can have it
	if err == nil {
		err = next.begin(f.Name(), all)
	}
	if err == nil {
		err = name(f.Name(), d.path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(d.path))
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	d.leave()
	next.hold()
	next.look()
	*d = *next
	return nil
}

// begin makes a new file a journal with these records.
func (d *disk) begin(path string, all contents) error {
	return d.guarded(func() (err error) {
		if d.db, err = bolt.Open(path, 0o600, boltOptions(d.seams, d.file)); err != nil {
			return err
		}
		b := newBatch()
		for at, text := range all {
			b.ops[at] = Entry{kind: at.kind, key: at.key, json: text}
		}
		return d.db.Update(func(tx *bolt.Tx) error {
			h := &head{Format: d.shape.format(), Job: d.job, Made: d.version, Counts: map[Kind]int{}}
			if err := h.write(tx); err != nil {
				return err
			}
			return d.apply(tx, b)
		})
	})
}

// clearPath sets a file aside that stands where the journal was.
func (d *disk) clearPath() error {
	there, err := os.Lstat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if ours, err := d.file.Stat(); there.Mode().IsRegular() && (err != nil || !os.SameFile(ours, there)) {
		f, err := os.OpenFile(d.path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := lock(f); err != nil {
			return err
		}
	}
	_, err = setAside(d.path)
	return err
}

// leave lets the old file go. One whose pages can no longer be read keeps its memory: bolt may hold locks of its own.
func (d *disk) leave() {
	if d.faulted {
		_ = d.file.Close()
		return
	}
	_ = d.close()
}

// read returns every record of the file.
func (d *disk) read() (contents, error) {
	all := contents{}
	for _, k := range kinds {
		err := d.records(k, func(key, text []byte) { all[id{k, string(key)}] = bytes.Clone(text) })
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// mind looks whether the file is still there and whole, and writes it back if not. The error says why it cannot.
func (j *Journal) mind() error {
	how := j.disk.lost()
	if how == "" {
		return nil
	}
	return j.writeBack(how)
}

// writeBack puts the whole journal at its path again.
func (j *Journal) writeBack(how string) error {
	j.mu.Lock()
	all := maps.Clone(j.known)
	first := j.failing == nil
	j.mu.Unlock()
	if first {
		j.log.Warn("the journal is not what it was: writing it back whole", "journal", j.path, "why", how, "records", len(all))
	}
	if j.remake != nil {
		if err := j.remake(); err != nil {
			return fmt.Errorf("%s, and it cannot be written back: %w", how, err)
		}
	}
	if err := j.disk.restore(all); err != nil {
		return fmt.Errorf("%s, and it cannot be written back: %w", how, err)
	}
	j.mu.Lock()
	j.restored++
	j.mu.Unlock()
	return nil
}

// Restored counts how often the file was lost or spoiled, and written back whole, since Open.
func (j *Journal) Restored() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.restored
}
