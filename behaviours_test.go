package vigil

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// behaviourID matches the id of a row: the D, R, A, V, N and K of the list's sections, those of the card,
// and those of faults that were seen, by kind.
const behaviourID = `(?:[DRAVNK]|CARD|FAULT-[A-M])\d+`

// The list of behaviours is a promise: every row has a test that names it, and no test names a row
// that nobody can look up.
func TestEveryBehaviourHasATestAndEveryTestABehaviour(t *testing.T) {
	doc, err := os.ReadFile("docs/reference/behaviours.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (`+behaviourID+`) \| \S`).FindAllStringSubmatch(string(doc), -1) {
		listed[m[1]] = true
	}
	if len(listed) < 100 {
		t.Fatalf("only %d rows found in the list", len(listed))
	}
	shown := map[string][]string{}
	line := regexp.MustCompile(`shows:((?: ` + behaviourID + `)+)`)
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && path != "." && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, ".txtar") && !strings.HasSuffix(path, ".py") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range line.FindAllStringSubmatch(string(src), -1) {
			for _, id := range strings.Fields(m[1]) {
				shown[id] = append(shown[id], path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id := range listed {
		if len(shown[id]) == 0 {
			t.Errorf("no test shows %s", id)
		}
	}
	for id, where := range shown {
		if !listed[id] {
			slices.Sort(where)
			t.Errorf("%s is shown by %v and not listed", id, slices.Compact(where))
		}
	}
}
