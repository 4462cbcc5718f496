package warm

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
)

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it cannot fail for this clock
	return ts.Nano()
}

// BenchmarkFirstLine measures, side by side, how long a program that imports torch needs from the call that
// starts it to the line after that import: by a process that stands ready, forked at the call, the same without a
// cgroup leaf, and executed.
func BenchmarkFirstLine(b *testing.B) {
	if !hasModule(b, "torch") {
		b.Skip("this Python has no torch")
	}
	for _, way := range []string{"ready", "forked", "forked without leaf", "executed"} {
		b.Run(way, func(b *testing.B) {
			after := time.Hour
			if way == "ready" {
				after = time.Millisecond
			}
			bench := newBench(b, Options{Preload: []string{"torch"}, SpareAfter: after})
			if way == "forked without leaf" {
				bench.server.o.Leaf = ""
			}
			bench.file("first.py", "import torch, time\nprint(time.monotonic_ns())\n")
			bench.fork(bench.spec("first.py")).end(b)
			var took, called []int64
			for b.Loop() {
				s := bench.spec("first.py")
				if way == "forked without leaf" {
					s.Leaf = ""
				}
				if way == "ready" {
					bench.spares(1)
				}
				var back int64
				began := monotonic()
				start := bench.keeper.Start
				if way != "executed" {
					start = func(s proc.Spec) (*proc.Process, error) { return bench.server.Fork(b.Context(), s) }
				}
				r := bench.start(s, func(s proc.Spec) (*proc.Process, error) {
					p, err := start(s)
					back = monotonic()
					return p, err
				})
				out, _ := r.end(b)
				at, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
				if err != nil {
					b.Fatal(err)
				}
				took, called = append(took, at-began), append(called, back-began)
			}
			slices.Sort(took)
			slices.Sort(called)
			b.ReportMetric(float64(took[len(took)/2])/1e6, "ms/first-line-median")
			b.ReportMetric(float64(took[len(took)*9/10])/1e6, "ms/first-line-p90")
			b.ReportMetric(float64(called[len(called)/2])/1e6, "ms/call-median")
			b.ReportMetric(float64(bench.server.Status().Memory)/(1<<20), "MiB/fork-server")
		})
	}
}
