// Detect measures how soon hangs are found and whether healthy jobs are left alone: made rhythms of training jobs, and
// hangs of each kind in them, are played in fake time through the health table and the judgement of CPU time that
// controller and services use. It prints a table, writes bench/out/detect.json, and on request the picture of the docs.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"vigil/bench/result"
)

// fixed is the limit of a watchdog that learns nothing.
const fixed = 2 * time.Minute

// repeats is in how many plays each hang happens, each with chances of its own and at another step.
const repeats = 3

func main() {
	out := flag.String("out", filepath.Join("bench", "out"), "folder of detect.json")
	plot := flag.String("plot", "", "where to draw the picture; empty: nowhere")
	flag.Parse()
	if err := run(*out, *plot); err != nil {
		fmt.Fprintln(os.Stderr, "detect:", err)
		os.Exit(1)
	}
}

func run(out, plot string) error {
	all := playAll(rhythms(), repeats)
	if err := printTable(os.Stdout, all); err != nil {
		return err
	}
	report := reportOf(all)
	if err := report.Write(out, "detect"); err != nil {
		return err
	}
	if plot != "" {
		if err := os.WriteFile(plot, picture(all), 0o644); err != nil {
			return fmt.Errorf("draw: %w", err)
		}
	}
	if missed := report.Missed(); len(missed) > 0 {
		return fmt.Errorf("%d rows miss their target, the first is %s", len(missed), missed[0].Name)
	}
	return nil
}

// healthy is what became of a job that was well.
type healthy struct {
	gaps             int // between two steps
	verdicts         int // ours; each is false
	fixed            int // gaps that a fixed limit on them would not have borne
	typical, longest time.Duration
}

// measured is what was measured of one rhythm.
type measured struct {
	rhythm rhythm
	well   healthy
	hangs  map[string][]outcome
	early  int // verdicts before the hang
}

// playAll plays everything, rhythms side by side, each hang so often.
func playAll(all []rhythm, repeats int) []measured {
	out := make([]measured, len(all))
	var work sync.WaitGroup
	for i, r := range all {
		work.Go(func() {
			m := measured{rhythm: r, well: playHealthy(r), hangs: map[string][]outcome{}}
			for n, h := range hangs() {
				for k := range repeats {
					o, early := findHang(r, h, uint64(100*n+k+1), k*3)
					if early {
						m.early++
						continue
					}
					m.hangs[h.name] = append(m.hangs[h.name], o)
				}
			}
			out[i] = m
		})
	}
	work.Wait()
	return out
}

// playHealthy plays a job that is well for its whole time. After a verdict its next life begins.
func playHealthy(r rhythm) healthy {
	h := healthy{}
	p := newPlay(r, 1)
	var gaps result.Samples
	p.steps = func(gap time.Duration) {
		gaps = append(gaps, gap)
		if gap > fixed {
			h.fixed++
		}
	}
	for p.now.Sub(began) < r.lasts {
		if f := p.second(); len(f) > 0 {
			h.verdicts += len(f)
			p.begin()
		}
	}
	h.gaps = len(gaps)
	h.typical = time.Duration(gaps.At(0.5) * float64(time.Millisecond))
	h.longest = time.Duration(gaps.At(1) * float64(time.Millisecond))
	return h
}

// times returns how long the hangs of a kind took to be found, and how many were not.
func (m measured) times(kind string) (found result.Samples, missed int) {
	for _, o := range m.hangs[kind] {
		if o.found {
			found = append(found, o.took)
		} else {
			missed++
		}
	}
	return found, missed
}
