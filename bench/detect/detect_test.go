package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"vigil/bench/result"
)

// Shortened plays: a job whose data stalls by chance is left alone, and a hang of it is found in each way; busy data
// loaders on crowded CPUs hide none. make bench plays all of them at their length.
//
// shows: FAULT-E1 FAULT-E2
func TestHealthyJobsAreLeftAloneAndHangsOfEachKindAreFound(t *testing.T) {
	t.Parallel()
	var some []rhythm
	for _, r := range rhythms() {
		switch r.name {
		case "data stalls", "crowded CPUs", "starved for an hour":
			r.lasts, r.history = 4*time.Hour, min(r.history, 2*time.Hour)
			some = append(some, r)
		}
	}
	all := playAll(some, 1)
	report := reportOf(all)
	if len(report.Rows) != len(some)*(2+2*len(hangs())) {
		t.Errorf("%d rows", len(report.Rows))
	}
	for _, row := range report.Missed() {
		t.Errorf("%s: %.0f %s, want at most %.0f", row.Name, row.Value, row.Unit, *row.Target)
	}
	for _, m := range all {
		if found, _ := m.times("live-lock"); m.rhythm.crowd > 0 && found.At(1) > result.Milliseconds(5*time.Minute) {
			t.Errorf("%s: a live-lock among busy data loaders is found after %.0f s", m.rhythm.name, found.At(1)/1000)
		}
	}
	for text := xml.NewDecoder(strings.NewReader(string(picture(all)))); ; {
		if _, err := text.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
