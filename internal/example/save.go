package example

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// kept is how many checkpoints of a rank stay.
const kept = 5

// folder is where one rank keeps its checkpoints: DIR/ROLE/RANK/STEP.json.
type folder string

// save writes a checkpoint so that a reader, or a crash at any instant, finds all of it or none of
// it. It removes the oldest beyond those kept, and those of later steps: the life that goes on from
// here takes another way.
func (d folder) save(m mind) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("save checkpoint %d: %w", m.Step, err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("save checkpoint %d: %w", m.Step, err)
	}
	if err := replace(d.path(m.Step), text); err != nil {
		return fmt.Errorf("save checkpoint %d: %w", m.Step, err)
	}
	steps := d.steps()
	for i, step := range steps {
		if step > m.Step || i < len(steps)-kept {
			_ = os.Remove(d.path(step)) // one too many does no harm
		}
	}
	return nil
}

func replace(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (d folder) path(step int64) string {
	return filepath.Join(string(d), strconv.FormatInt(step, 10)+".json")
}

// steps returns the steps of which there are checkpoints, ascending.
func (d folder) steps() []int64 {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil
	}
	var out []int64
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if n, err := strconv.ParseInt(name, 10, 64); ok && err == nil {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// load returns the newest checkpoint that is not beyond limit, or, with a limit of 0 or with none so
// old, the newest there is. One that cannot be read is passed over. It returns false without any.
func (d folder) load(limit int64) (mind, bool) {
	steps := d.steps()
	slices.Reverse(steps)
	if limit > 0 {
		slices.SortStableFunc(steps, func(a, b int64) int { return beyond(a, limit) - beyond(b, limit) })
	}
	for _, step := range steps {
		var m mind
		text, err := os.ReadFile(d.path(step))
		if err == nil && json.Unmarshal(text, &m) == nil && m.Step == step {
			return m, true
		}
	}
	return mind{}, false
}

func beyond(step, limit int64) int {
	if step > limit {
		return 1
	}
	return 0
}
