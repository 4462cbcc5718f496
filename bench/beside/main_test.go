package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Rows are matched by name, each shows the median of its runs, and a row that the earlier commit did not have
// has no ratio.
func TestRowsStandBesideThoseOfTheCommitBefore(t *testing.T) {
	before, now := tree{name: "v1", out: t.TempDir()}, tree{name: "now", out: t.TempDir()}
	put := func(tr tree, run int, text string) {
		t.Helper()
		if err := os.MkdirAll(tr.results(run), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tr.results(run), "loop.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(before, 0, `[{"name":"death","unit":"ms","value":10}]`)
	put(before, 1, `[{"name":"death","unit":"ms","value":30}]`)
	put(now, 0, `[{"name":"death","unit":"ms","value":25},{"name":"new","unit":"s","value":1}]`)
	put(now, 1, `[{"name":"death","unit":"ms","value":15},{"name":"new","unit":"s","value":1}]`)
	var out strings.Builder
	if err := compare(&out, "loop", 2, before, now); err != nil {
		t.Fatal(err)
	}
	got := [][]string{}
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Fields(line))
	}
	want := "loop v1 now unit now/before|death 20.000 20.000 ms 1.00|new - 1.000 s -"
	var lines []string
	for _, f := range got {
		lines = append(lines, strings.Join(f, " "))
	}
	if s := strings.Join(lines, "|"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}
