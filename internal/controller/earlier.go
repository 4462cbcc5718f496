package controller

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"vigil/internal/wire/httpapi"
)

// mostEarlier is how many incidents of earlier controllers are shown.
const mostEarlier = 200

// leftOpen is what is said of an incident whose controller died before its repair had ended.
const leftOpen = "its controller ended before the repair did; the next one has gone on with it"

// load takes in the incidents that earlier controllers of the run have kept, newest first: their files, and
// what was recorded of those whose file was not written in time. The error says which files cannot be
// understood; they are left out.
func (n *incidents) load(recorded map[string]httpapi.Incident) error {
	files, err := os.ReadDir(n.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	type numbered struct {
		number int
		path   string
	}
	var all []numbered
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".json")
		if number, err := strconv.Atoi(name); ok && err == nil {
			all = append(all, numbered{number, filepath.Join(n.dir, f.Name())})
		}
	}
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(b.number, a.number) })
	var wrong []error
	for _, one := range all[:min(len(all), mostEarlier)] {
		var i httpapi.Incident
		src, err := os.ReadFile(one.path)
		if err == nil {
			err = json.Unmarshal(src, &i)
		}
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		if i.Open {
			i.Open, i.Error = false, leftOpen
		}
		n.earlier = append(n.earlier, i)
	}
	for id, i := range recorded {
		if !slices.ContainsFunc(n.earlier, func(known httpapi.Incident) bool { return known.ID == id }) {
			if i.Open {
				i.Open, i.Error = false, leftOpen
			}
			n.earlier = append(n.earlier, i)
		}
	}
	slices.SortFunc(n.earlier, func(a, b httpapi.Incident) int { return cmp.Compare(numberOf(b), numberOf(a)) })
	return errors.Join(wrong...)
}

func numberOf(i httpapi.Incident) int {
	n, _ := strconv.Atoi(i.ID) // ours are numbers
	return n
}

// before returns the incidents of earlier controllers, newest first, without their events.
func (n *incidents) before() []httpapi.Incident {
	out := slices.Clone(n.earlier)
	for i := range out {
		out[i].Events = nil
	}
	return out
}
