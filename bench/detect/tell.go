package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"vigil/bench/result"
)

// reportOf makes the rows: no healthy job has a verdict, and each hang is found within what the rules allow.
func reportOf(all []measured) *result.Report {
	report := &result.Report{}
	for _, m := range all {
		report.Add(result.Row{Name: m.rhythm.name + ": false verdicts", Unit: "verdicts", Value: float64(m.well.verdicts + m.early), N: m.well.gaps}, result.AtMost(0))
		report.Add(result.Row{Name: m.rhythm.name + ": false verdicts of a fixed 120 s", Unit: "verdicts", Value: float64(m.well.fixed), N: m.well.gaps}, nil)
		for _, h := range hangs() {
			found, missed := m.times(h.name)
			report.Add(result.Row{Name: m.rhythm.name + ": " + h.name + ", not found", Unit: "hangs", Value: float64(missed), N: len(found) + missed}, result.AtMost(0))
			if len(found) == 0 {
				continue
			}
			bound := time.Duration(0)
			for _, o := range m.hangs[h.name] {
				bound = max(bound, o.bound)
			}
			report.Add(result.Row{Name: m.rhythm.name + ": " + h.name, Unit: "s", Value: found.At(1) / 1000, N: len(found)}, result.AtMost(bound.Seconds()))
		}
	}
	return report
}

// printTable prints what a person wants to know.
func printTable(w io.Writer, all []measured) error {
	fmt.Fprintf(w, "until a hang is found (the latest of %d), and verdicts on healthy jobs\n", repeats)
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(out, "rhythm\tstep\tlongest\t")
	for _, h := range hangs() {
		fmt.Fprintf(out, "%s\t", h.name)
	}
	fmt.Fprintln(out, "false\tof steps\tfalse at 120 s\t")
	for _, m := range all {
		fmt.Fprintf(out, "%s\t%s\t%s\t", m.rhythm.name, short(m.well.typical), short(m.well.longest))
		for _, h := range hangs() {
			found, missed := m.times(h.name)
			switch {
			case missed > 0 || len(found) == 0:
				fmt.Fprint(out, "never\t")
			default:
				fmt.Fprintf(out, "%s\t", short(time.Duration(found.At(1)*float64(time.Millisecond))))
			}
		}
		fmt.Fprintf(out, "%d\t%d\t%d\t\n", m.well.verdicts+m.early, m.well.gaps, m.well.fixed)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	fmt.Fprintln(w)
	for _, m := range all {
		fmt.Fprintf(w, "%s: %s\n", m.rhythm.name, m.rhythm.what)
	}
	fmt.Fprintln(w)
	for _, h := range hangs() {
		fmt.Fprintf(w, "%s: %s\n", h.name, h.what)
	}
	fmt.Fprintln(w, "\nA watchdog with a fixed limit of 120 s finds each hang after 120 s, and fails the healthy jobs as often as the last column says. torchrun watches"+
		"\nno progress: a hang in a collective ends by the process group's timeout (PyTorch's default: 10 min with NCCL, 30 min otherwise), any other never.")
	return nil
}

// short says a duration in a few characters.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 3*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < 3*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}
