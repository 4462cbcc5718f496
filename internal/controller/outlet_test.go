package controller

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/role"
)

// gate is a reader that takes nothing until it is opened.
type gate struct {
	open chan struct{}
	printed
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) Write(b []byte) (int, error) {
	<-g.open
	return g.printed.Write(b)
}

func TestWhoReadsNothingHoldsUpNobodyAndFindsBeginningAndEndWithTheGapCounted(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		g := newGate()
		o := newOutlet(g, format)
		const records = 40_000
		size := 0
		for i := range records {
			line := fmt.Sprintf("%06d %s\n", i, strings.Repeat("x", 92))
			size += len(line)
			if n, err := o.Write([]byte(line)); n != len(line) || err != nil {
				t.Fatalf("write: %d, %v", n, err)
			}
		}
		close(g.open)
		if err := o.flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		at, gaps := 0, 0
		for line := range strings.Lines(g.String()) {
			if strings.Contains(line, "nobody read it") {
				gaps++
				at += leftOut(t, format, line)
				continue
			}
			if want := fmt.Sprintf("%06d %s\n", at, strings.Repeat("x", 92)); line != want {
				t.Fatalf("%s: got %.20q... where %.8q was due", format, line, want)
			}
			at++
		}
		if gaps != 1 || at != records {
			t.Errorf("%s: %d gaps, and the last record is %d of %d", format, gaps, at, records)
		}
		if kept := len(g.String()); kept < outletHalf || kept > 2*outletHalf+1000 || kept >= size {
			t.Errorf("%s: %d bytes of %d were kept", format, kept, size)
		}
	}
}

// leftOut reads how many records the line says are missing.
func leftOut(t *testing.T, format, line string) int {
	t.Helper()
	said := struct{ Records int }{}
	var err error
	if format == "json" {
		err = json.Unmarshal([]byte(line), &said)
	} else {
		_, err = fmt.Sscanf(line[strings.Index(line, "records="):], "records=%d", &said.Records)
	}
	if err != nil || said.Records == 0 {
		t.Fatalf("%q says nothing of a gap: %v", line, err)
	}
	return said.Records
}

func TestAReaderWhoIsBackIsToldOnceForEachGap(t *testing.T) {
	g := newGate()
	o := newOutlet(g, "text")
	big := bytes.Repeat([]byte("x"), outletHalf)
	for range 5 {
		_, _ = o.Write(append(bytes.Clone(big), '\n'))
	}
	close(g.open)
	_ = o.flush(t.Context())
	_, _ = o.Write([]byte("after\n"))
	_ = o.flush(t.Context())
	if said := g.String(); strings.Count(said, "nobody read it") != 1 || !strings.HasSuffix(said, "\nafter\n") {
		t.Errorf("%d notes; it ends with %q", strings.Count(said, "nobody read it"), said[max(0, len(said)-40):])
	}
}

func TestAReaderWhoReadsNothingAtTheEndDoesNotKeepTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		defer close(g.open)
		o := newOutlet(g, "text")
		_, _ = o.Write([]byte("x\n"))
		began := time.Now()
		_ = o.flush(t.Context())
		if took := time.Since(began); took != outletFarewell {
			t.Errorf("it waited %s", took)
		}
	})
}

// A terminal that is held does not hold up a repair, and the log is whole when it is let go.
func TestARepairIsMadeWhileNobodyReadsTheLog(t *testing.T) {
	g := newGate()
	p := beginWith(t, strings.ReplaceAll(sleepers, "distributed: none", "distributed: none, restart: {on_failure: in_place, backoff: {base: 0}}"),
		func(o *Options) { o.Stderr, o.LogLevel = g, "debug" })
	p.ready(t)
	kill(t, p, "b")
	p.until(t, "b repaired", func() bool {
		rec, err := p.store.Record("b")
		return err == nil && rec.Ready && rec.Incarnation == 2 && p.engine.Status("b").State == role.Running
	})
	if said := g.String(); said != "" {
		t.Fatalf("it was read: %q", said)
	}
	close(g.open)
	p.until(t, "the log comes", func() bool {
		return strings.Contains(g.String(), "job started") && strings.Contains(g.String(), "b rank 0 failed")
	})
}

// kill ends the worker of a role.
func kill(t *testing.T, p *play, name role.Name) {
	t.Helper()
	rec, err := p.store.Record(name)
	if err != nil || len(rec.Ranks) == 0 || rec.Ranks[0].PID < 2 {
		t.Fatalf("no worker of %s: %+v, %v", name, rec, err)
	}
	process, err := os.FindProcess(rec.Ranks[0].PID)
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}
