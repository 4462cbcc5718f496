package journal

import (
	"fmt"
	"path/filepath"
	"testing"
)

// How many commits a second the disk below the temporary directory makes, with its syncs.
func BenchmarkCommit(b *testing.B) {
	s := quick()
	s.noSync = false
	j := mustOpen(b, newPath(b), s)
	for i := 0; b.Loop(); i++ {
		write(b, j, Put(Role, "actor", i), Put(Ledger, "all", i))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
}

// How long Write takes while commits are under way all the time.
func BenchmarkWrite(b *testing.B) {
	s := quick()
	s.noSync = false
	j := mustOpen(b, newPath(b), s)
	for i := 0; b.Loop(); i++ {
		j.Write(Put(Role, "actor", i), Put(Plan, fmt.Sprint(i%100), i))
	}
}

// One commit of 10,000 records.
func BenchmarkPut10000Keys(b *testing.B) {
	s := quick()
	s.noSync = false
	j := mustOpen(b, newPath(b), s)
	for i := 0; b.Loop(); i++ {
		entries := make([]Entry, 10_000)
		for k := range entries {
			entries[k] = Put(Plan, fmt.Sprint(k), i)
		}
		write(b, j, entries...)
	}
}

// Opening and checking a file of 10,000 records.
func BenchmarkOpen10000Keys(b *testing.B) {
	path := filepath.Join(b.TempDir(), "journal")
	j := mustOpen(b, path, quick())
	for k := range 10_000 {
		j.Write(Put(Plan, fmt.Sprint(k), k))
	}
	must(b, j.Close())
	for b.Loop() {
		j, err := Open(path, Options{Job: "tiny"})
		must(b, err)
		must(b, j.Close())
	}
}
