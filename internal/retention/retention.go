// Package retention says which of what earlier runs, lives and incidents have left is removed, and removes it. What is
// removed is said where it lay, in a file thinned.log.
package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// NoteFile is the name of the file that says what was removed, in the folder where it lay.
const NoteFile = "thinned.log"

// noteSize is how large such a file grows, in bytes; then its older half goes.
const noteSize = 64 << 10

// Policy is how much is kept. What is zero bounds nothing.
type Policy struct {
	Runs      int           // newest ones, however they ended
	Incidents time.Duration // a run that had incidents is kept for so long after its end, beyond Runs too
	Bytes     int64         // of all runs together; beats the others
	Lives     int           // newest ones of each role, and of each rank within one; beside the first FirstLives
	Kept      int           // newest incidents of one run
}

// FirstLives is how many of a role's first lives are kept in any case: how a job began tells most.
const FirstLives = 3

// Run is the folder of one run.
type Run struct {
	UID       string
	Path      string
	Last      time.Time // when something of it was written last
	Bytes     int64
	Incidents int
	Held      bool // it is open, or lives, or is not known to be over: never removed
}

// Removal is something that goes, with why in words.
type Removal struct {
	Path  string
	What  string // such as: run tiny-0123abcd
	Why   string
	Bytes int64
}

// Thin says which runs go, the oldest first. Held ones count and stay.
func (p Policy) Thin(runs []Run, now time.Time) []Removal {
	newest := slices.Clone(runs)
	slices.SortFunc(newest, func(a, b Run) int { return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.UID, b.UID)) })
	var out []Removal
	var kept []Run
	total := int64(0)
	for i, r := range newest {
		recent := r.Incidents > 0 && p.Incidents > 0 && now.Sub(r.Last) < p.Incidents
		if !r.Held && p.Runs > 0 && i >= p.Runs && !recent {
			out = append(out, r.removal(fmt.Sprintf("--keep-runs %d", p.Runs)))
			continue
		}
		kept, total = append(kept, r), total+r.Bytes
	}
	for _, r := range slices.Backward(kept) {
		if p.Bytes > 0 && total > p.Bytes && !r.Held {
			out = append(out, r.removal(fmt.Sprintf("--keep-size %dMi", p.Bytes>>20)))
			total -= r.Bytes
		}
	}
	return out
}

func (r Run) removal(why string) Removal {
	return Removal{Path: r.Path, What: fmt.Sprintf("run %s, which wrote last at %s and had %d incidents", r.UID, r.Last.UTC().Format(time.RFC3339), r.Incidents), Why: why, Bytes: r.Bytes}
}

// Runs returns the runs of a state directory: folders of our own user that lie directly in it, are named as is says and
// look like a run's. held says which must stay, whatever the policy.
func Runs(home string, is, held func(uid string) bool) ([]Run, error) {
	entries, err := os.ReadDir(home)
	if err != nil {
		return nil, fmt.Errorf("look for earlier runs: %w", err)
	}
	var out []Run
	for _, e := range entries {
		path := filepath.Join(home, e.Name())
		if !e.IsDir() || !is(e.Name()) || !ours(path) {
			continue
		}
		if st, err := os.Lstat(filepath.Join(path, "logs")); err != nil || !st.IsDir() {
			continue
		}
		r := Run{UID: e.Name(), Path: path, Held: held(e.Name())}
		r.Bytes, r.Last = measure(path)
		r.Incidents = len(numbers(filepath.Join(path, "incidents"), ".json"))
		out = append(out, r)
	}
	return out, nil
}

// ours says whether a path is a folder, and no link to one, of the user that we are.
func ours(path string) bool {
	st, err := os.Lstat(path)
	if err != nil || !st.IsDir() {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}

// measure adds up what lies below a folder, as it takes room on the disk.
func measure(path string) (bytes int64, last time.Time) {
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it has been removed meanwhile
		}
		if info, err := d.Info(); err == nil {
			if sys, ok := info.Sys().(*syscall.Stat_t); ok {
				bytes += sys.Blocks * 512
			}
			if info.ModTime().After(last) {
				last = info.ModTime()
			}
		}
		return nil
	})
	return bytes, last
}

// numbers returns those entries of a folder that are a decimal number with that ending, ascending.
func numbers(dir, ending string) []int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		stem, is := strings.CutSuffix(e.Name(), ending)
		if n, err := strconv.Atoi(stem); is && err == nil && n >= 0 && strconv.Itoa(n) == stem {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// beyond returns those of ascending numbers that are neither among the first nor among the newest, nor from least on.
func beyond(all []int, first, newest, least int) []int {
	if newest <= 0 || len(all) <= first+newest {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(all[first:len(all)-newest]), func(n int) bool { return n >= least })
}

// ThinLives says which log folders of a role's lives go. Dir is LOGS/ROLE with a folder for each incarnation, and in it
// one for each rank and attempt. Incarnations from current on, and the one before, stay.
func (p Policy) ThinLives(dir string, current int) []Removal {
	var out []Removal
	for _, n := range beyond(numbers(dir, ""), FirstLives, p.Lives, current-1) {
		path := filepath.Join(dir, strconv.Itoa(n))
		out = append(out, Removal{Path: path, What: fmt.Sprintf("the logs of incarnation %d", n), Why: fmt.Sprintf("--keep-lives %d, and the first %d", p.Lives, FirstLives)})
	}
	now := filepath.Join(dir, strconv.Itoa(current))
	attempts := map[string][]int{}
	entries, _ := os.ReadDir(now) // there may be none yet
	for _, e := range entries {
		rank, attempt, ok := strings.Cut(e.Name(), ".")
		if n, err := strconv.Atoi(attempt); ok && err == nil {
			attempts[rank] = append(attempts[rank], n)
		}
	}
	for rank, all := range attempts {
		slices.Sort(all)
		for _, n := range beyond(all, FirstLives, p.Lives, all[len(all)-1]-1) {
			out = append(out, Removal{Path: filepath.Join(now, fmt.Sprintf("%s.%d", rank, n)), What: fmt.Sprintf("the logs of rank %s, attempt %d of incarnation %d", rank, n, current),
				Why: fmt.Sprintf("--keep-lives %d, and the first %d", p.Lives, FirstLives)})
		}
	}
	return out
}

// ThinLarge says which log folders of lives go, the oldest of all roles first, so that what lies below a run's folder
// takes no more room than Bytes. Current are the incarnations of its roles; these and the ones before stay.
func (p Policy) ThinLarge(run, logs string, current map[string]int) []Removal {
	if p.Bytes <= 0 {
		return nil
	}
	total, _ := measure(run)
	if total <= p.Bytes {
		return nil
	}
	type life struct {
		path string
		last time.Time
		size int64
	}
	var all []life
	for name, inc := range current {
		for _, n := range numbers(filepath.Join(logs, name), "") {
			if n < inc-1 {
				one := life{path: filepath.Join(logs, name, strconv.Itoa(n))}
				one.size, one.last = measure(one.path)
				all = append(all, one)
			}
		}
	}
	slices.SortFunc(all, func(a, b life) int { return a.last.Compare(b.last) })
	var out []Removal
	for _, one := range all {
		if total <= p.Bytes {
			break
		}
		total -= one.size
		out = append(out, Removal{Path: one.path, What: "the logs of incarnation " + filepath.Base(one.path), Why: fmt.Sprintf("--keep-size %dMi", p.Bytes>>20), Bytes: one.size})
	}
	return out
}

// ThinIncidents says which incidents of a run go: their files DIR/N.json and their evidence DIR/N. Those from least on
// stay.
func (p Policy) ThinIncidents(dir string, least int) []Removal {
	var out []Removal
	for _, ending := range []string{".json", ""} {
		for _, n := range beyond(numbers(dir, ending), 0, p.Kept, least) {
			what := fmt.Sprintf("incident %d", n)
			if ending == "" {
				what = fmt.Sprintf("the evidence of incident %d", n)
			}
			out = append(out, Removal{Path: filepath.Join(dir, strconv.Itoa(n)+ending), What: what, Why: fmt.Sprintf("%d incidents are kept", p.Kept)})
		}
	}
	return out
}

// Remove removes what is to go and says it in NoteFile beside each, until ctx ends. It returns what is gone; the error
// says what is not.
func Remove(ctx context.Context, all []Removal, now time.Time) ([]Removal, error) {
	var gone []Removal
	var errs []error
	said := map[string]string{}
	for _, r := range all {
		if ctx.Err() != nil {
			break
		}
		if err := os.RemoveAll(r.Path); err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, r)
		dir := filepath.Dir(r.Path)
		said[dir] += fmt.Sprintf("%s removed %s: %s\n", now.UTC().Format(time.RFC3339), r.What, r.Why)
	}
	for dir, lines := range said {
		errs = append(errs, note(filepath.Join(dir, NoteFile), lines))
	}
	return gone, errors.Join(errs...)
}

// note adds lines to a file of which the older half goes when it has grown too large.
func note(path, lines string) error {
	was, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("say what was removed: %w", err)
	}
	text := string(was) + lines
	if len(text) > noteSize {
		text = text[len(text)-noteSize/2:]
		_, text, _ = strings.Cut(text, "\n")
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return fmt.Errorf("say what was removed: %w", err)
	}
	return os.Rename(path+".new", path)
}
