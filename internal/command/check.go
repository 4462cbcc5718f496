package command

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"vigil/internal/controller"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/settings"
)

// validateCommand checks a job file and starts nothing.
func (p *program) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a job file, and that its commands are there; start nothing",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(errors.New("validate: want one job file"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := job.Load(args[0])
			if err != nil {
				return usage(err)
			}
			if err := errors.Join(j.CheckFlags(settings.Known(cmd.Root().Flags())), j.Check(job.Machine{Environ: p.environ})); err != nil {
				return usage(err)
			}
			_, err = fmt.Fprintf(p.stdout, "%s: job %s is well: roles %s, started in %d levels\n", args[0], j.Name, restart.Names(j.Names()), len(j.Levels()))
			return err
		},
	}
}

// policyCommand prints what would be in force.
func (p *program) policyCommand() *cobra.Command {
	o, q, all := &controller.Options{}, &question{}, false
	cmd := &cobra.Command{
		Use: "policy [--explain ROLE CAUSE]", Short: "Print what happens when a role fails, every setting, and where it came from",
		Example: "  controller policy --job job.yaml\n  controller policy --job job.yaml --explain critic exited --exit-code 3\n  controller policy --job job.yaml --explain critic silent --addr 127.0.0.1:8000",
		Args:    func(_ *cobra.Command, args []string) error { return q.args(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.load(cmd.Flags(), o); err != nil {
				return err
			}
			if err := o.Check(); err != nil {
				return usage(err)
			}
			if q.asked {
				return p.explain(cmd.Context(), o, q, args[0], args[1])
			}
			if _, err := fmt.Fprint(p.stdout, controller.PrintPolicy(o)); err != nil || !all {
				return err
			}
			fmt.Fprintln(p.stdout)
			return settings.Print(p.stdout, cmd.Flags(), o.Origins)
		},
	}
	addJobFlags(cmd.Flags(), o)
	q.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&all, "all", false, "print every flag too, and where its value came from")
	return cmd
}
