package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"vigil/bench/result"
)

// Targets, ms.
const (
	warmKill      = 130
	warmException = 150
	coldOverIdeal = 1.1
	partOfRival   = 1.0 / 20
)

// of returns the samples of a supervisor and a fault, and of those the times of the jobs that came back.
func (b *bench) of(rival, fault string) (all []sample, took result.Samples) {
	for _, s := range b.samples {
		if s.Rival != rival || s.Fault != fault {
			continue
		}
		all = append(all, s)
		if s.Back {
			took = append(took, s.Took)
		}
	}
	return all, took
}

// faultNames in the order in which they are told.
var faultNames = []string{killName, raiseName, blockedName, stopName, superName, bothName, duringName}

// tell makes the rows.
func (b *bench) tell() {
	ideal, right := b.median(idealName, killName), b.median(rightName, killName)
	for _, fault := range faultNames {
		for _, r := range rivals() {
			all, took := b.of(r.name, fault)
			if len(all) == 0 {
				continue
			}
			var limit result.Limit
			switch {
			case r.name == warmName && fault == killName:
				limit = result.AtMost(warmKill)
			case r.name == warmName && fault == raiseName:
				limit = result.AtMost(warmException)
			case r.name == coldName && fault == killName && ideal > 0:
				limit = result.AtMost(coldOverIdeal * ideal)
			}
			name := r.name + ": " + fault
			b.report.Measured(name, took, limit, nil)
			var all0 result.Limit
			if r.vigil {
				all0 = result.AtMost(0)
			}
			b.report.Add(result.Row{Name: name + ", not come back", Unit: fmt.Sprintf("of %d", len(all)), Value: float64(len(all) - len(took)), N: len(all)}, all0)
		}
	}
	if warm := b.median(warmName, killName); warm > 0 && right > 0 {
		b.report.Add(result.Row{Name: "vigil, warm: kill, part of torchrun's time", Unit: "", Value: warm / right, N: b.repeats}, result.AtMost(partOfRival))
	}
}

// median of the jobs that came back, ms; 0 without any.
func (b *bench) median(rival, fault string) float64 {
	_, took := b.of(rival, fault)
	return took.At(0.5)
}

// stageMedian is when the last rank of a supervisor was so far after a kill, ms since the fault.
func (b *bench) stageMedian(rival, fault, stage string) (float64, bool) {
	all, _ := b.of(rival, fault)
	var found result.Samples
	for _, s := range all {
		if at, ok := s.Stages[stage]; ok {
			found = append(found, time.Duration(at*float64(time.Millisecond)))
		}
	}
	return found.At(0.5), len(found) > 0
}

// printStages says where the time went.
func (b *bench) printStages(w io.Writer) error {
	stages := slices.Concat(repairStages, jobStages)
	fmt.Fprintln(w, "\nmedian ms since the fault, of the last rank:")
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, stage := range append([]string{""}, stages...) {
		fmt.Fprint(out, stage, "\t")
	}
	fmt.Fprintln(out)
	for _, fault := range faultNames {
		for _, r := range rivals() {
			if _, took := b.of(r.name, fault); len(took) == 0 || fault == superName {
				continue
			}
			fmt.Fprint(out, r.name+": "+fault, "\t")
			for _, stage := range stages {
				at, ok := b.stageMedian(r.name, fault, stage)
				if !ok {
					fmt.Fprint(out, "\t")
					continue
				}
				fmt.Fprintf(out, "%.0f\t", at)
			}
			fmt.Fprintln(out)
		}
	}
	if at, ok := b.stageMedian(coldName, superName, longestPause); ok {
		fmt.Fprintf(w, "while vigil's controller was killed and started again, rank 0 paused for %.0f ms at most between two steps\n", at)
	}
	return out.Flush()
}
