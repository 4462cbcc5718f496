package vigil

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page that says who may do what names a test for each defence. None of them has been renamed or
// removed without it.
func TestEveryDefenceHasATest(t *testing.T) {
	page, err := os.ReadFile("docs/guides/security.md")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, m := range regexp.MustCompile("`(Test\\w+|Fuzz\\w+|\\w+\\.txtar)`").FindAllStringSubmatch(string(page), -1) {
		missing[m[1]] = true
	}
	if len(missing) < 12 {
		t.Fatalf("the page names %d tests only", len(missing))
	}
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		delete(missing, d.Name())
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		for name := range missing {
			if strings.Contains(string(src), "func "+name+"(") {
				delete(missing, name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range missing {
		t.Errorf("docs/guides/security.md names %s, which is not there", name)
	}
}
