package job

import (
	"fmt"
	"regexp"
	"strconv"

	"vigil/internal/nearest"
)

// maxValues bounds the values that are read: aliases let a small file name one value many times.
const maxValues = 200_000

// reader reads a tree into a Job by the descriptions of the keys. It goes on after a problem, so that
// all of a file's problems are told at once.
type reader struct {
	src      *source
	problems []Problem
	path     string
	keyPlace place // of the key whose value is being read
	values   int
}

// wrong tells a problem with the value n of the current key.
func (r *reader) wrong(n *node, what, fix string) {
	if n.form != formBroken {
		r.wrongAt(n.place, r.path, what, fix)
	}
}

func (r *reader) wrongAt(at place, key, what, fix string) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, r.src.problem(at, key, what, fix))
	}
}

// within reads the value of one key or item, if not too many have been read.
func (r *reader) within(path string, keyPlace, at place, read func()) {
	if r.values++; r.values > maxValues {
		if r.values == maxValues+1 {
			r.wrongAt(at, path, fmt.Sprintf("aliases make more than %d values of this file", maxValues), "")
		}
		return
	}
	oldPath, oldPlace := r.path, r.keyPlace
	r.path, r.keyPlace = path, keyPlace
	r.src.places[path] = at
	read()
	r.path, r.keyPlace = oldPath, oldPlace
}

// item reads one item of a list.
func (r *reader) item(i int, n *node, read func()) {
	r.within(r.path+"["+strconv.Itoa(i)+"]", n.place, n.place, read)
}

// sub is the path of a key under the current one.
func (r *reader) sub(key string) string {
	if !plainKey.MatchString(key) {
		key = strconv.Quote(shorten(key))
	}
	if r.path == "" {
		return key
	}
	return r.path + "." + key
}

var plainKey = regexp.MustCompile(`^[\w-]{1,60}$`)

// mapping reads a mapping whose keys are known.
func (r *reader) mapping(n *node, keys []Key, t target) {
	if n.form != formMapping {
		r.wrong(n, n.say(), "want a mapping, such as {"+keys[0].Name+": ...}")
		return
	}
	found := map[string]bool{}
	for _, e := range n.entries {
		k, ok := find(keys, e.key)
		if !ok {
			r.wrongAt(e.place, r.sub(e.key), "unknown key", meant(e.key, keys))
			continue
		}
		found[e.key] = true
		r.within(r.sub(e.key), e.place, e.value.place, func() { k.read(r, t, e.value) })
	}
	for _, k := range keys {
		if k.Required && !found[k.Name] {
			at := r.keyPlace
			if at == (place{}) {
				at = n.place
			}
			r.wrongAt(at, r.path, fmt.Sprintf("%q is missing", k.Name), "")
		}
	}
}

func find(keys []Key, name string) (Key, bool) {
	for _, k := range keys {
		if k.Name == name {
			return k, true
		}
	}
	return Key{}, false
}

func meant(key string, keys []Key) string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.Name
	}
	if word := nearest.Word(key, names); word != "" {
		return fmt.Sprintf("did you mean %q?", word)
	}
	if len(names) == 1 {
		return fmt.Sprintf("the only key here is %q", names[0])
	}
	return "the keys here are " + conjunction(names)
}

// names reads a mapping whose keys the user chooses.
func (r *reader) names(n *node, rule nameRule, read func(name string, value *node)) {
	if n.form != formMapping {
		r.wrong(n, n.say(), "want a mapping of names to values")
		return
	}
	taken := map[string]place{}
	for _, e := range n.entries {
		name, fix := rule.check(e.key)
		if fix != "" {
			r.wrongAt(e.place, r.sub(e.key), fmt.Sprintf("the name %q", shorten(e.key)), fix)
			continue
		}
		if first, twice := taken[name]; twice {
			r.wrongAt(e.place, r.sub(e.key), fmt.Sprintf("%q stands here a second time", name), fmt.Sprintf("it stands first in line %d", first.line))
			continue
		}
		taken[name] = e.place
		r.within(r.sub(name), e.place, e.value.place, func() { read(name, e.value) })
	}
}
