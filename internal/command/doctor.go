package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"vigil/internal/controller"
	"vigil/internal/event"
	"vigil/internal/role"
	"vigil/internal/settings"
	"vigil/internal/wire/httpapi"
)

// chart is everything that the doctor looks at.
type chart struct {
	status
	Incidents []httpapi.Incident
	Groups    []httpapi.PlacementGroup
	Events    []event.Event
}

// finding is one answer of the doctor.
type finding struct {
	question string
	well     bool
	answer   string
}

// doctorCommand answers the questions that people have when a repair did not come or did not help.
func (p *program) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "doctor", Short: "Say from the live state why a repair did not come, failed, or did not help", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, tokenFile := settings.Peek(cmd.Flags(), p.environ, "http"), settings.Peek(cmd.Flags(), p.environ, "token-file")
			c, err := examine(cmd.Context(), addr, tokenFile)
			if err != nil {
				return err
			}
			return printFindings(p.stdout, c.diagnose(time.Now()))
		},
	}
	cmd.Flags().String("http", controller.DefaultHTTP, "the controller's HTTP address, HOST:PORT or URL")
	cmd.Flags().String("token-file", "", "file with the bearer token")
	return cmd
}

// examine asks the controller for everything.
func examine(ctx context.Context, addr, tokenFile string) (chart, error) {
	var c chart
	var err error
	if c.status, err = ask(ctx, addr, tokenFile); err != nil {
		return c, err
	}
	var incidents httpapi.IncidentList
	var groups httpapi.GroupList
	var events httpapi.EventList
	err = askAll(ctx, addr, tokenFile, map[string]any{"/api/v1/incidents": &incidents, "/api/v1/placement_groups": &groups, "/api/v1/events?limit=10000": &events})
	c.Incidents, c.Groups, c.Events = incidents.Incidents, groups.Groups, events.Events
	return c, err
}

// diagnose answers every question from the chart.
func (c chart) diagnose(now time.Time) []finding {
	return []finding{c.repairs(), c.reports(), c.silence(now), c.globalFailures(), c.leftovers(), c.budget(), c.placement(), c.steps(), c.newLives(now), c.quarantine()}
}

func (c chart) repairs() finding {
	f := finding{question: "is anything repaired at all?", well: c.Job.HealthCheck, answer: "health check is on"}
	if !f.well {
		f.answer = "health check is off: any failure stops the job; start with --use-health-check"
	}
	return f
}

func (c chart) reports() finding {
	f := finding{question: "have failures been seen?", well: true, answer: "none so far"}
	if len(c.Incidents) > 0 {
		last := c.Incidents[0]
		f.answer = fmt.Sprintf("%d; the newest: %s, %s (%s) -> %s by %s", len(c.Incidents), last.Role, last.Cause, last.Detail, cmp.Or(string(last.Action), "not decided yet"), cmp.Or(last.Rule, "no rule yet"))
	}
	for _, r := range c.Roles {
		if !r.Healthy {
			f.well = false
			f.answer += fmt.Sprintf("; %s is unhealthy: %s", r.Name, *r.Error)
		}
	}
	return f
}

// silence says who is not heard, and so found by its exit only.
func (c chart) silence(now time.Time) finding {
	f := finding{question: "does every role speak?", well: true, answer: "all do"}
	var mute []string
	for _, r := range c.Roles {
		if r.TaskRunning && strings.Contains(r.Why, "never sent a heartbeat") {
			mute = append(mute, fmt.Sprintf("%s has not, for %s: a hang of it is not found, its exit is", r.Name, now.Sub(r.LastHeartbeat).Round(time.Second)))
		}
	}
	if mute != nil {
		f.well, f.answer = false, strings.Join(mute, "; ")
	}
	return f
}

func (c chart) globalFailures() finding {
	f := finding{question: "did a move of a global restart fail?", well: true, answer: "no"}
	global := map[string]bool{}
	for _, e := range c.Events {
		if e.Kind == event.Decided && e.Action == role.Global {
			global[e.Incident] = true
		}
	}
	for _, e := range c.Events {
		if e.Kind == event.Moved && e.Error != "" && global[e.Incident] {
			f.well = false
			f.answer = fmt.Sprintf("[Global Restart] Failed to %s '%s': %s", e.Verb, e.Role, e.Error)
		}
	}
	return f
}

func (c chart) leftovers() finding {
	f := finding{question: "is something of an old life still there?", well: len(c.Job.Obligations) == 0, answer: "no"}
	if !f.well {
		f.answer = strings.Join(c.Job.Obligations, "; ")
	}
	return f
}

func (c chart) budget() finding {
	f := finding{question: "how much is left of the budget?", well: c.Job.GlobalRestarts < c.Job.MaxGlobalRestarts,
		answer: fmt.Sprintf("%d of %d global restarts are spent", c.Job.GlobalRestarts, c.Job.MaxGlobalRestarts)}
	count := map[string]int{}
	for _, i := range c.Incidents {
		if i.Cause != role.Operator {
			count[fmt.Sprintf("%s fails as %s (%s)", i.Role, i.Cause, i.Detail)]++
		}
	}
	var often []string
	for what, n := range count {
		if n > 1 {
			often = append(often, fmt.Sprintf("%dx %s", n, what))
		}
	}
	slices.Sort(often)
	if often != nil {
		f.answer += "; the same again and again: " + strings.Join(often, "; ")
	}
	return f
}

func (c chart) placement() finding {
	f := finding{question: "has every role its resources?", well: true, answer: "all placement groups are reserved"}
	for _, g := range c.Groups {
		if g.State != "RESERVED" {
			f.well = false
			f.answer = fmt.Sprintf("group %s is %s (%d of %d): %s", g.Name, g.State, g.Live, g.Needed, g.Why)
		}
	}
	return f
}

func (c chart) steps() finding {
	f := finding{question: "did every role go on from its step?", well: true, answer: "yes"}
	for _, e := range c.Events {
		switch e.Kind {
		case event.StepWentBack:
			f.well, f.answer = false, fmt.Sprintf("%s went back: %s", e.Role, e.Detail)
		case event.StateBehind:
			f.well, f.answer = true, fmt.Sprintf("%s went back: %s (its newest checkpoint)", e.Role, e.Detail)
		case event.StepAhead:
			f.well, f.answer = false, fmt.Sprintf("%s is ahead: %s", e.Role, e.Detail)
		case event.StepsApart:
			f.well, f.answer = false, fmt.Sprintf("%s: %s", e.Role, e.Detail)
		default: // says nothing of steps
		}
	}
	for _, r := range c.Roles { // also where the event is older than those that are kept
		if r.StepOff != "" && f.answer == "yes" {
			f.well, f.answer = false, fmt.Sprintf("%s began off its step: %s", r.Name, r.StepOff)
		}
	}
	return f
}

// newLives says who was begun again and has not been heard since: it may be waiting for its peers.
func (c chart) newLives(now time.Time) finding {
	f := finding{question: "do the new lives get on?", well: true, answer: "yes"}
	for _, r := range c.Roles {
		spoken := slices.ContainsFunc(r.Workers, func(w httpapi.Worker) bool { return w.Step != nil })
		if r.Incarnation > 1 && r.TaskRunning && !spoken && now.Sub(r.LastHeartbeat) > 30*time.Second {
			f.well = false
			f.answer = fmt.Sprintf("%s, life %d, has not spoken for %s: see its logs; its ranks may wait for each other", r.Name, r.Incarnation, now.Sub(r.LastHeartbeat).Round(time.Second))
		}
	}
	return f
}

// quarantine says which workers run and take no part, because nobody has admitted them.
func (c chart) quarantine() finding {
	f := finding{question: "do all ready workers take part?", well: true, answer: "yes"}
	var waiting []string
	for _, r := range c.Roles {
		for _, w := range r.Workers {
			if w.State == role.WorkerQuarantined {
				waiting = append(waiting, fmt.Sprintf("%s rank %d is quarantined until POST /%s/admit?worker=%d", r.Name, w.Rank, r.Name, w.Rank))
			}
		}
	}
	if waiting != nil {
		f.well, f.answer = false, strings.Join(waiting, "; ")
	}
	return f
}

// printFindings writes a line for each answer; what wants a look is marked.
func printFindings(w io.Writer, all []finding) error {
	for _, f := range all {
		mark := "ok  "
		if !f.well {
			mark = "LOOK"
		}
		if _, err := fmt.Fprintf(w, "%s  %-42s %s\n", mark, f.question, f.answer); err != nil {
			return err
		}
	}
	return nil
}
