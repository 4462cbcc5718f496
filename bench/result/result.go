// Package result is what every benchmark of vigil ends with: rows of measured values, a table for
// people and a file for programs. A row may have a target; one without, such as a floor or a peer, is
// there to be compared with.
package result

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// Row is one line of bench/out/NAME.json. Target and Pass are nil in a row without a target. Less
// is better in every row.
type Row struct {
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Value  float64  `json:"value"`
	Target *float64 `json:"target"`
	Pass   *bool    `json:"pass"`
	N      int      `json:"n"` // how many samples the value was taken from
}

// Limit gives a row its target; nil gives none.
type Limit func(Row) Row

// AtMost is a target that the value must not exceed.
func AtMost(target float64) Limit {
	return func(r Row) Row { return r.judged(target, r.Value <= target) }
}

// Below is a target that the value must not reach.
func Below(target float64) Limit {
	return func(r Row) Row { return r.judged(target, r.Value < target) }
}

func (r Row) judged(target float64, pass bool) Row {
	r.Target, r.Pass = &target, &pass
	return r
}

// Samples are durations of the same thing.
type Samples []time.Duration

// At returns the nearest-rank quantile q, from above 0 to 1, in milliseconds; 0 without samples.
func (s Samples) At(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(q * float64(len(s)))
	if float64(rank) < q*float64(len(s)) {
		rank++
	}
	return Milliseconds(sorted[min(max(rank, 1), len(s))-1])
}

// Milliseconds returns d in milliseconds.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Report gathers what one benchmark has measured.
type Report struct {
	Rows  []Row
	Notes []string // what the reader of the table must know

	measured []measured
}

type measured struct {
	name    string
	samples Samples
}

// Measured adds the distribution of samples to the table, and its median and 99th percentile as the
// rows "NAME median" and "NAME p99", each with its limit. Without samples it adds nothing.
func (r *Report) Measured(name string, s Samples, median, p99 Limit) {
	if len(s) == 0 {
		return
	}
	r.measured = append(r.measured, measured{name, s})
	r.Add(Row{Name: name + " median", Unit: "ms", Value: s.At(0.5), N: len(s)}, median)
	r.Add(Row{Name: name + " p99", Unit: "ms", Value: s.At(0.99), N: len(s)}, p99)
}

// Add adds a single value with its limit.
func (r *Report) Add(row Row, limit Limit) {
	if limit != nil {
		row = limit(row)
	}
	r.Rows = append(r.Rows, row)
}

// Note adds a sentence below the table.
func (r *Report) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Missed returns the rows that do not reach their target.
func (r *Report) Missed() []Row {
	var missed []Row
	for _, row := range r.Rows {
		if row.Pass != nil && !*row.Pass {
			missed = append(missed, row)
		}
	}
	return missed
}

// Print writes the table.
func (r *Report) Print(w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "ms\tn\tmedian\tp90\tp99\tworst\t")
	for _, m := range r.measured {
		fmt.Fprintf(out, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t\n", m.name, len(m.samples), m.samples.At(0.5), m.samples.At(0.9), m.samples.At(0.99), m.samples.At(1))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	fmt.Fprintln(w)
	out = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "value\tmeasured\ttarget\t\t")
	for _, row := range r.Rows {
		target, pass := "-", ""
		if row.Target != nil {
			target, pass = fmt.Sprintf("%.4g %s", *row.Target, row.Unit), "ok"
			if !*row.Pass {
				pass = "MISSED"
			}
		}
		fmt.Fprintf(out, "%s\t%.3f %s\t%s\t%s\t\n", row.Name, row.Value, row.Unit, target, pass)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, n)
	}
	return nil
}

// Write writes the rows to NAME.json in the folder, which is made where it is missing.
func (r *Report) Write(folder, name string) error {
	text, err := json.MarshalIndent(r.Rows, "", "  ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}
