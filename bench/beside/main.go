// Beside runs the benchmarks of an earlier commit and of this tree in turns, and prints their rows side by side
// with the ratio of each: a noisy machine is as noisy for both.
//
//	beside [-ref COMMIT] [-runs N] BENCHMARK...
//
// A BENCHMARK is the name of a folder of bench, with its flags in the same argument: "restart -n 10".
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"vigil/bench/result"
)

// tree is a checkout and where its programs and results go.
type tree struct {
	name, source, out string
}

func main() {
	ref := flag.String("ref", "HEAD~1", "commit to compare with")
	runs := flag.Int("runs", 1, "how often each benchmark runs in each tree; the median of each row is shown")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*ref, *runs, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "beside:", err)
		os.Exit(1)
	}
}

func run(ref string, runs int, benchmarks []string) (err error) {
	folder, err := os.MkdirTemp("", "vigil-beside-")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	here, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find this tree: %w", err)
	}
	before := tree{ref, filepath.Join(folder, "source"), filepath.Join(folder, "before")}
	now := tree{"now", here, filepath.Join(folder, "now")}
	if err := command(here, "git", "worktree", "add", "--quiet", "--detach", before.source, ref); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, command(here, "git", "worktree", "remove", "--force", before.source)) }()
	for _, b := range benchmarks {
		args := strings.Fields(b)
		for _, t := range []tree{before, now} {
			if err := t.build(args[0]); err != nil {
				return err
			}
		}
		for i := range runs {
			for _, t := range []tree{before, now} {
				fmt.Fprintf(os.Stderr, "%s of %s, %d of %d\n", args[0], t.name, i+1, runs)
				if err := t.measure(args, i); err != nil {
					return err
				}
			}
		}
		if err := compare(os.Stdout, args[0], runs, before, now); err != nil {
			return err
		}
	}
	return nil
}

// command runs a program in a folder; what it says goes to standard error.
func command(folder, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = folder, os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// build makes the tree's own controller and benchmark: part of what is measured runs inside the benchmark.
func (t tree) build(benchmark string) error {
	for _, pkg := range []string{"./cmd/controller", "./bench/" + benchmark} {
		if err := command(t.source, "go", "build", "-trimpath", "-o", t.out+string(filepath.Separator), pkg); err != nil {
			return fmt.Errorf("build %s of %s: %w", pkg, t.name, err)
		}
	}
	return nil
}

func (t tree) results(run int) string { return filepath.Join(t.out, fmt.Sprint("run", run)) }

// measure runs the benchmark once. That a row misses its target is no error here.
func (t tree) measure(args []string, run int) error {
	all := append(slices.Clone(args[1:]), "-out", t.results(run), "-controller", filepath.Join(t.out, "controller"))
	err := command(t.source, filepath.Join(t.out, args[0]), all...)
	if _, missing := os.Stat(filepath.Join(t.results(run), args[0]+".json")); missing != nil {
		return errors.Join(missing, err)
	}
	return nil
}

// values returns what the runs have measured, by row, and the rows in their order.
func (t tree) values(benchmark string, runs int) (rows []result.Row, all map[string][]float64, err error) {
	all = map[string][]float64{}
	for i := range runs {
		text, err := os.ReadFile(filepath.Join(t.results(i), benchmark+".json"))
		if err != nil {
			return nil, nil, fmt.Errorf("read results: %w", err)
		}
		var got []result.Row
		if err := json.Unmarshal(text, &got); err != nil {
			return nil, nil, fmt.Errorf("read results of %s: %w", t.name, err)
		}
		for _, r := range got {
			all[r.Name] = append(all[r.Name], r.Value)
		}
		rows = got
	}
	return rows, all, nil
}

// compare prints the medians of both trees.
func compare(w io.Writer, benchmark string, runs int, before, now tree) error {
	_, was, err := before.values(benchmark, runs)
	if err != nil {
		return err
	}
	rows, is, err := now.values(benchmark, runs)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%s\t%s\tnow\tunit\tnow/before\t\n", benchmark, before.name)
	for _, r := range rows {
		old, ok := was[r.Name]
		if !ok {
			fmt.Fprintf(out, "%s\t-\t%.3f\t%s\t-\t\n", r.Name, median(is[r.Name]), r.Unit)
			continue
		}
		ratio := "-"
		if m := median(old); m != 0 {
			ratio = fmt.Sprintf("%.2f", median(is[r.Name])/m)
		}
		fmt.Fprintf(out, "%s\t%.3f\t%.3f\t%s\t%s\t\n", r.Name, median(old), median(is[r.Name]), r.Unit, ratio)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}

// median returns the middle value, of an even number the mean of the middle two.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
