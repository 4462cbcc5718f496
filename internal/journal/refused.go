package journal

import (
	"fmt"
	"slices"
)

// mostRefused bounds how many records are remembered as refused; all are counted.
const mostRefused = 1000

// refusals are the records whose newest change was refused: what the next controller reads of them is older than what
// holds, or nothing.
type refusals struct {
	now   map[id]error
	total int
}

// take forgets a refusal: a later change of the record was taken.
func (r *refusals) take(e Entry) {
	if e.clear {
		r.now = nil
		return
	}
	delete(r.now, id{e.kind, e.key})
}

// refuse notes that the journal did not take these entries, and says so where that is news. The caller has j.mu.
func (j *Journal) refuse(err error, entries ...Entry) {
	j.refused.total++
	if j.refused.now == nil {
		j.refused.now = map[id]error{}
	}
	news := false
	for _, e := range entries {
		at := id{e.kind, e.key}
		was, known := j.refused.now[at]
		news = news || !known || was.Error() != err.Error()
		if known || len(j.refused.now) < mostRefused {
			j.refused.now[at] = err
		}
	}
	if news {
		j.log.Warn("a record was refused: the next controller would not know it", "journal", j.path, "records", len(entries), "err", err)
	}
}

// Refused says which records hold something older than what was to be written last, as sentences in the order of their
// kinds and keys, and how many writes were refused since Open.
func (j *Journal) Refused() (records []string, writes int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for at, err := range j.refused.now {
		records = append(records, fmt.Sprintf("the journal has no newest record of %s %s: %v", at.kind, at.key, err))
	}
	slices.Sort(records)
	return records, j.refused.total
}
