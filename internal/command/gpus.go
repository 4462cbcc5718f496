package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"vigil/internal/controller"
	"vigil/internal/devices"
	"vigil/internal/settings"
)

// gpuReport is what "gpus -o json" prints. A name that is printed once stays.
type gpuReport struct {
	Variable string     `json:"variable"` // that shows workers their devices
	Devices  []gpuEntry `json:"devices"`
	Queue    []gpuWait  `json:"queue"` // in the order of asking
}

type gpuEntry struct {
	ID       string       `json:"id"`
	UUID     string       `json:"uuid,omitempty"`
	Name     string       `json:"name,omitempty"`
	Memory   int64        `json:"memory,omitempty"` // bytes
	Ill      string       `json:"ill,omitempty"`    // what the tool says of its health, where that rules it out
	LockedBy []gpuProcess `json:"locked_by"`
	UsedBy   []gpuProcess `json:"used_by"`
}

type gpuProcess struct {
	Job     string     `json:"job,omitempty"`
	Command string     `json:"command,omitempty"`
	PID     int        `json:"pid,omitempty"` // missing where only root can see it
	UID     int        `json:"uid"`           // -1 where it is not known
	User    string     `json:"user,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Ended   bool       `json:"ended,omitempty"` // its workers live on
}

type gpuWait struct {
	Place   int      `json:"place"` // from 1
	Want    int      `json:"want"`
	Devices []string `json:"devices"` // of which it wants Want
	gpuProcess
}

// gpusCommand shows the devices of this machine, who has them, and who waits.
func (p *program) gpusCommand() *cobra.Command {
	var output, gpus, runtimeDir string
	fake := 0
	cmd := &cobra.Command{
		Use: "gpus", Short: "Show the devices of this machine, who has each of them, and the queue", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return usage(fmt.Errorf("-o %s: want json", output))
			}
			if runtimeDir = settings.Peek(cmd.Flags(), p.environ, "runtime-dir"); fake < 0 {
				return usage(fmt.Errorf("--fake-gpus %d: want 0 or more", fake))
			}
			report, problem, err := surveyGPUs(cmd.Context(), devices.Options{Fake: fake, Space: controller.FakeSpace(runtimeDir), Environ: p.environ}, gpus)
			if err != nil {
				return err
			}
			if problem != nil {
				fmt.Fprintf(p.stderr, "gpus: who uses them is not known: %v\n", problem)
			}
			if output == "json" {
				e := json.NewEncoder(p.stdout)
				e.SetIndent("", "  ")
				return e.Encode(report)
			}
			return report.print(p.stdout)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for the machine-readable form")
	cmd.Flags().StringVar(&gpus, "gpus", "", "only these devices: 4,5")
	cmd.Flags().IntVar(&fake, "fake-gpus", 0, "pretended devices instead")
	cmd.Flags().String("runtime-dir", "", "whose pretended devices")
	return cmd
}

// surveyGPUs gathers the report. problem is about the users alone.
func surveyGPUs(ctx context.Context, o devices.Options, gpus string) (r gpuReport, problem, err error) {
	if ctx == nil {
		ctx = context.Background()
	}
	inv, err := devices.All(ctx, o)
	if err == nil {
		inv, err = inv.Wish(gpus, 0)
	}
	if err != nil {
		return r, nil, err
	}
	r = gpuReport{Variable: inv.Variable, Devices: []gpuEntry{}, Queue: []gpuWait{}}
	seen, queue, problem := devices.Survey(ctx, inv)
	if seen == nil && problem != nil {
		return r, nil, problem
	}
	for _, d := range seen {
		e := gpuEntry{ID: d.ID, UUID: d.UUID, Name: d.Name, Memory: d.Memory, Ill: d.Ill, LockedBy: []gpuProcess{}, UsedBy: []gpuProcess{}}
		for _, h := range d.Holders {
			e.LockedBy = append(e.LockedBy, gpuProcessOf(h.Process, h.Job, "", h.Since))
		}
		for _, u := range d.Users {
			who := u.Process()
			e.UsedBy = append(e.UsedBy, gpuProcessOf(who, "", u.Command, who.Start))
		}
		r.Devices = append(r.Devices, e)
	}
	for i, w := range queue {
		r.Queue = append(r.Queue, gpuWait{i + 1, w.Want, w.Devices, gpuProcessOf(w.Process, w.Job, "", w.Since)})
	}
	return r, problem, nil
}

func gpuProcessOf(p devices.Process, job, command string, since time.Time) gpuProcess {
	g := gpuProcess{Job: job, Command: command, PID: p.PID, UID: p.UID, Ended: p.Ended}
	if p.UID >= 0 {
		g.User = p.UserName()
	}
	if !since.IsZero() {
		at := since.Truncate(time.Second)
		g.Since = &at
	}
	return g
}

// String names the process: "job train-1f2e3d4c, pid 4711, alice, since 2026-03-02 09:14:51".
func (g gpuProcess) String() string {
	var parts []string
	if g.Job != "" {
		parts = append(parts, g.Job)
	}
	if g.PID > 0 {
		parts = append(parts, fmt.Sprintf("pid %d", g.PID))
	}
	if g.Command != "" {
		parts = append(parts, g.Command)
	}
	switch {
	case g.User != "":
		parts = append(parts, g.User)
	case g.UID >= 0:
		parts = append(parts, fmt.Sprintf("uid %d", g.UID))
	}
	if g.Since != nil {
		parts = append(parts, "since "+g.Since.Local().Format(time.DateTime))
	}
	if g.Ended {
		parts = append(parts, "ended: its workers live on")
	}
	return strings.Join(parts, ", ")
}

func (r gpuReport) print(w io.Writer) error {
	if len(r.Devices) == 0 {
		_, err := fmt.Fprintln(w, "no devices")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tMODEL\tMEMORY\tLOCKED BY\tUSED BY")
	for _, d := range r.Devices {
		memory, name := "-", d.Name
		if d.Memory > 0 {
			memory = fmt.Sprintf("%d GiB", d.Memory>>30)
		}
		if d.Ill != "" {
			name += " (ill: " + d.Ill + ")"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", d.ID, dash(name), memory, processes(d.LockedBy), processes(d.UsedBy))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, q := range r.Queue {
		if _, err := fmt.Fprintf(w, "queue %d: %d of %s for %s\n", q.Place, q.Want, strings.Join(q.Devices, ","), q.gpuProcess); err != nil {
			return err
		}
	}
	return nil
}

func processes(all []gpuProcess) string {
	var out []string
	for _, g := range all {
		out = append(out, g.String())
	}
	return dash(strings.Join(out, "; "))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
