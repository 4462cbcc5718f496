package vigil

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// levels says who may import whom: a package may import those of lower levels only, so that siblings
// do not know each other and nothing goes round in a circle. A package that is not named here does
// not belong anywhere yet.
var levels = [][]string{
	{"api", "internal/role", "internal/nearest"},
	{"internal/event", "internal/job", "internal/settings", "internal/accelerate", "internal/farewell", "internal/wire/caller", "internal/wire/crowd", "internal/retention"},
	{"internal/health", "internal/journal", "internal/restart", "internal/placement", "internal/devices", "internal/proc", "internal/example", "internal/wire/notify", "internal/wire/rpc", "internal/wire/roleapi", "internal/metrics", "internal/goodput"},
	{"internal/restart/engine", "internal/launcher/local", "internal/evidence", "internal/identity", "internal/warm", "internal/wire/httpapi", "internal/console"},
	{"internal/restart/memory", "internal/fleet"},
	{"internal/service", "internal/controller"},
	{"internal/command"},
	{"cmd/controller", "cmd/service"},
	{"bench/result"},
	{"bench/beside", "bench/detect", "bench/loop", "bench/restart", "bench/takeover"},
}

// source is one Go file of the tree, read for its imports and calls.
type source struct {
	path, pkg string // relative to the root, with slashes
	file      *ast.File
}

// sources returns every Go file that is not a test and not generated.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "tools"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".pb.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, source{filepath.ToSlash(path), filepath.ToSlash(filepath.Dir(path)), f})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func imports(f *ast.File) []string {
	var out []string
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		out = append(out, path)
	}
	return out
}

func levelOf(pkg string) int {
	return slices.IndexFunc(levels, func(l []string) bool { return slices.Contains(l, pkg) })
}

// Imports go down: whoever changes a package knows whom it can break, those above it.
func TestImportsGoDown(t *testing.T) {
	for _, s := range sources(t) {
		if s.pkg == "." || s.pkg == "internal/scenario" || strings.HasPrefix(s.pkg, "examples") || strings.HasPrefix(s.pkg, "e2e") || strings.HasPrefix(s.pkg, "deploy") {
			continue
		}
		at := levelOf(s.pkg)
		if at < 0 {
			t.Errorf("%s: package %s is on no level of arch_test.go", s.path, s.pkg)
			continue
		}
		for _, i := range imports(s.file) {
			to, ours := strings.CutPrefix(i, "vigil/")
			if ours && levelOf(to) >= at {
				t.Errorf("%s (level %d) imports %s (level %d): imports go down only", s.path, at, to, levelOf(to))
			}
		}
	}
}

// What judges is pure: it takes the time as an argument and opens nothing, so that every judgement can
// be tested as a line of a table, and replayed.
func TestWhatJudgesIsPure(t *testing.T) {
	pure := []string{"internal/role/", "internal/restart/", "internal/placement/", "internal/health/table.go", "internal/health/judge.go", "internal/health/limits.go", "internal/health/phase.go", "internal/health/gaps.go", "internal/health/cpu.go", "internal/health/view.go", "internal/health/worker.go"}
	forbidden := []string{"os", "net", "context", "sync", "sync/atomic", "math/rand", "math/rand/v2", "net/http", "os/exec", "io/fs", "log/slog", "syscall"}
	seen := 0
	for _, s := range sources(t) {
		if !slices.ContainsFunc(pure, func(p string) bool { return s.path == p || s.pkg+"/" == p }) {
			continue
		}
		seen++
		for _, i := range imports(s.file) {
			if slices.Contains(forbidden, i) {
				t.Errorf("%s imports %s: what judges takes values and returns values", s.path, i)
			}
		}
		for _, call := range clockReads(s.file) {
			t.Errorf("%s calls %s: what judges is told the time", s.path, call)
		}
	}
	if seen < 10 {
		t.Errorf("only %d files were looked at: the list is out of date", seen)
	}
}

// clockReads returns the calls of a file that read the clock.
func clockReads(f *ast.File) []string {
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until"}, sel.Sel.Name) {
				out = append(out, "time."+sel.Sel.Name)
			}
		}
		return true
	})
	return out
}

// Only those who act read the clock, so that whoever is surprised by a time knows where to look.
func TestOnlyThoseWhoActReadTheClock(t *testing.T) {
	readers := []string{"internal/health", "internal/journal", "internal/restart/engine", "internal/wire/rpc", "internal/wire/roleapi", "internal/wire/httpapi", "internal/proc", "internal/launcher/local", "internal/devices", "internal/evidence", "internal/warm", "internal/service", "internal/controller", "internal/command", "internal/example", "bench/loop", "bench/restart", "bench/takeover"}
	for _, s := range sources(t) {
		if len(clockReads(s.file)) > 0 && !slices.Contains(readers, s.pkg) {
			t.Errorf("%s reads the clock (%v) and %s is not among those who may", s.path, clockReads(s.file), s.pkg)
		}
	}
}

// A program that sleeps is late or early. It waits for what it waits for, with a bound.
func TestNobodySleeps(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && sel.Sel.Name == "Sleep" {
					t.Errorf("%s calls time.Sleep", s.path)
				}
			}
			return true
		})
	}
}

// Every package has a comment that a newcomer can start from, and a place in the description of the
// house.
func TestEveryPackageIsExplained(t *testing.T) {
	house, err := os.ReadFile("docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[string]bool{}
	for _, s := range sources(t) {
		explained[s.pkg] = explained[s.pkg] || s.file.Doc != nil
	}
	for pkg, has := range explained {
		if !has {
			t.Errorf("package %s has no comment", pkg)
		}
		if pkg != "." && !strings.Contains(string(house), "`"+pkg+"`") {
			t.Errorf("package %s is not in docs/ARCHITECTURE.md", pkg)
		}
	}
}

// Long files and functions hide things. Those that are long have a reason here.
func TestFilesAndFunctionsAreShort(t *testing.T) {
	const longestFile, longestFunction = 400, 60
	reasons := map[string]string{}
	for _, s := range sources(t) {
		src, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Count(string(src), "\n")
		if lines > longestFile && reasons[s.path] == "" {
			t.Errorf("%s has %d lines", s.path, lines)
		}
		start := func(p token.Pos) int { return strings.Count(string(src[:int(p)-int(s.file.FileStart)]), "\n") }
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := start(f.End()) - start(f.Pos()) + 1; n > longestFunction && reasons[s.path+":"+f.Name.Name] == "" {
				t.Errorf("%s: %s has %d lines", s.path, f.Name.Name, n)
			}
		}
	}
}
