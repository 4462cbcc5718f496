package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"vigil/internal/controller"
	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// replayCommand holds the policy against what runs have recorded.
func (p *program) replayCommand() *cobra.Command {
	o := &controller.Options{}
	cmd := &cobra.Command{
		Use:   "replay PATH...",
		Short: "Say what this policy would have decided about the recorded incidents of a run",
		Long: `Say what this policy would have decided about the recorded incidents of a run.

PATH is an incident's JSON file, a folder of them (STATE/UID/incidents), or a run's folder (STATE/UID).
The failures happen again in their order, under the policy of --job and the flags given, with nothing
spent at first. Lines that differ from what was decided then are marked with !.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("replay: want incidents: a file, or a folder such as STATE/UID/incidents"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.load(cmd.Flags(), o); err != nil {
				return err
			}
			if err := o.Check(); err != nil {
				return usage(err)
			}
			runs, err := findIncidents(args)
			if err != nil {
				return usage(err)
			}
			for _, r := range runs {
				past, err := r.read(o.Job)
				if err != nil {
					return usage(err)
				}
				if err := printReplay(p.stdout, r.folder, restart.Replay(controller.PolicyIn(o), past)); err != nil {
					return err
				}
			}
			if !o.UseHealthCheck {
				fmt.Fprintln(p.stdout, "health check is off here, so that nothing is repaired: see --use-health-check")
			}
			return nil
		},
	}
	addJobFlags(cmd.Flags(), o)
	return cmd
}

// recordedRun is the incidents of one run, in one folder.
type recordedRun struct {
	folder string
	files  []string
}

// findIncidents returns the incidents that paths name, by run.
func findIncidents(paths []string) ([]recordedRun, error) {
	var runs []recordedRun
	add := func(folder string, files ...string) {
		at := slices.IndexFunc(runs, func(r recordedRun) bool { return r.folder == folder })
		if at < 0 {
			runs, at = append(runs, recordedRun{folder: folder}), len(runs)
		}
		runs[at].files = append(runs[at].files, files...)
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("read incidents: %w", err)
		}
		path = filepath.Clean(path)
		if !info.IsDir() {
			add(filepath.Dir(path), path)
			continue
		}
		if sub := filepath.Join(path, "incidents"); isFolder(sub) {
			path = sub
		}
		files, err := filepath.Glob(filepath.Join(path, "*.json"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("read incidents: %s holds none: want a folder such as STATE/UID/incidents", path)
		}
		add(path, files...)
	}
	for i := range runs {
		slices.Sort(runs[i].files)
		runs[i].files = slices.Compact(runs[i].files)
	}
	return runs, nil
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// read reads the incidents of the run, which must be of the job.
func (r recordedRun) read(j *job.Job) ([]restart.Past, error) {
	var incidents []httpapi.Incident
	for _, file := range r.files {
		src, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read incident: %w", err)
		}
		var i httpapi.Incident
		if err := json.Unmarshal(src, &i); err != nil {
			return nil, fmt.Errorf("read incident %s: %w", file, err)
		}
		if i.ID == "" || i.Cause == "" || i.Detected.IsZero() {
			return nil, fmt.Errorf("read incident %s: it has no id, cause or time: want a file such as STATE/UID/incidents/1.json", file)
		}
		if _, ok := j.Role(i.Role); !ok {
			return nil, fmt.Errorf("read incident %s: job %s has no role %q: give the job file of that run with --job", file, j.Name, i.Role)
		}
		incidents = append(incidents, i)
	}
	slices.SortStableFunc(incidents, func(a, b httpapi.Incident) int { return a.Detected.Compare(b.Detected) })
	var past []restart.Past
	reached := map[role.Name]int64{}
	for _, i := range incidents {
		step, known := stepOf(i)
		if !known { // it was stopped, or failed before: taken for progress
			step = reached[i.Role] + 1
		}
		reached[i.Role] = max(reached[i.Role], step)
		past = append(past, pastOf(i, step, filepath.Join(r.folder, i.ID)))
	}
	return past, nil
}

// stepOf is the step that the role had when it failed, as its repair has read it.
func stepOf(i httpapi.Incident) (int64, bool) {
	for _, e := range i.Events {
		if e.Kind == event.Moved && e.Verb == string(restart.ReadStep) && e.Role == i.Role && e.Step != nil {
			return *e.Step, true
		}
	}
	return 0, false
}

// pastOf is an incident as the policy sees it. evidence is the folder of what was kept of it.
func pastOf(i httpapi.Incident, step int64, evidence string) restart.Past {
	f := role.Failure{Life: role.Life{Role: i.Role, Incarnation: i.Incarnation, Rank: i.Rank, Attempt: 1}, Cause: i.Cause, Detail: i.Detail,
		Fatal: restart.Rule(i.Rule) == restart.Fatal, At: i.Detected, Log: i.Log}
	for _, e := range i.Events {
		if e.Kind != event.Failure {
			continue
		}
		f.Life.Attempt = max(1, e.Attempt)
		switch {
		case e.ExitCode != nil:
			f.Exit = &role.Exit{Code: *e.ExitCode, PID: e.PID}
		case e.Signal != "":
			f.Exit = &role.Exit{Signal: e.Signal, PID: e.PID}
		}
	}
	if f.Exit == nil {
		f.Exit = endIn(i.Detail)
	}
	if f.Exit != nil {
		f.Exit.Tail = tailIn(filepath.Join(evidence, string(i.Role), strconv.Itoa(i.Incarnation), fmt.Sprintf("%d.%d", i.Rank, f.Life.Attempt), "stderr.txt"))
	}
	past := restart.Past{ID: i.ID, Failure: f, Step: step, Action: i.Action, Rule: restart.Rule(i.Rule)}
	if i.Decided != nil {
		past.Decided = *i.Decided
	}
	if i.Started != nil {
		past.Started = *i.Started
	}
	return past
}

var endWords = regexp.MustCompile(`^(?:exit code ([0-9]{1,3})|(SIG[A-Z0-9]+))\b`)

// endIn finds in a failure's detail how the process ended; nil where it does not say so.
func endIn(detail string) *role.Exit {
	m := endWords.FindStringSubmatch(detail)
	switch {
	case m == nil:
		return nil
	case m[2] != "":
		return &role.Exit{Signal: m[2]}
	}
	code, _ := strconv.Atoi(m[1]) // digits
	return &role.Exit{Code: code}
}

// tailLines is how much of the kept standard error a rule's message is looked for in.
const tailLines = 20

// tailIn returns the end of what was kept of a worker's standard error, if anything was.
func tailIn(path string) []string {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	lines := strings.Split(strings.TrimRight(string(src), "\n"), "\n")
	return lines[max(0, len(lines)-tailLines):]
}

// printReplay writes a line for each decision, and what follows from them.
func printReplay(w io.Writer, folder string, replayed []restart.Replayed) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\n  INCIDENT\tDETECTED\tFAILED\tCAUSE\tTHEN\t\tNOW\t\tWHY\n", folder)
	differ, ended := 0, ""
	for _, r := range replayed {
		for k, b := range r.Past {
			mark, why := " ", ""
			if r.Differs() {
				mark = "!"
			}
			if k == 0 && r.Differs() {
				why = "\t" + role.Plain(r.Now.Why)
				differ++
			}
			action, rule := b.Action, b.Rule
			if action == "" {
				action, rule = "none", "-"
			}
			fmt.Fprintf(t, "%s %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s%s\n", mark, b.ID, b.Failure.At.UTC().Format("2006-01-02T15:04:05Z"), b.Failure.Subject(), b.Failure.Cause,
				action, rule, r.Now.Action, r.Now.Rule, why)
		}
		if r.Now.Action == role.Stop && !r.Over {
			ended = fmt.Sprintf("the job ends at incident %s now: exit %d, %s\n", r.Past[0].ID, r.Now.Exit, role.Plain(r.Now.Why))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d of %d decisions differ\n%s", differ, len(replayed), ended)
	return err
}
