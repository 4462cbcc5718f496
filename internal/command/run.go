package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vigil/internal/controller"
	"vigil/internal/devices"
	"vigil/internal/job"
	"vigil/internal/settings"
)

// oneRole is what "run" takes beyond the controller's flags.
type oneRole struct {
	controller.Options
	workers     string
	nodes       string
	standalone  bool
	maxRestarts int
	module      bool
	noPython    bool
	logDir      string
}

// runCommand is the job of one role without a file, for people who come from torchrun.
func (p *program) runCommand() *cobra.Command {
	r := &oneRole{}
	cmd := &cobra.Command{
		Use:   "run [flags] [--] SCRIPT|PROGRAM [ARGS...]",
		Short: "Run one role, main, with so many workers, and keep it alive; torchrun's flags are understood",
		Long: `Run one role, main, with so many workers, and keep it alive.

A script that ends in .py is run by python3, as torchrun does it, unless --no-python says otherwise;
any other program is run as it is. Health check is on, a failure restarts all workers, their output
is shown with a prefix for each rank, and the HTTP interface is on a free loopback port.`,
		Example: "  vigil run --nproc-per-node 4 -- train.py --epochs 3\n  vigil run --workers 2 -- python3 train.py\n  vigil run --standalone --nproc-per-node gpu -m pkg.train",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("run: want a script or program, such as: run --workers 4 -- python train.py"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.loadOneRole(cmd.Flags(), r, args); err != nil {
				return err
			}
			return p.run(cmd.Context(), &r.Options)
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // what follows the script is its own
	fs.SortFlags = false
	fs.StringVar(&r.workers, "workers", "1", "how many workers: a number, cpu, gpu or auto")
	fs.StringVar(&r.workers, "nproc-per-node", "1", "the same, by torchrun's name")
	fs.StringVar(&r.nodes, "nnodes", "1", "torchrun's; this machine is the only node")
	fs.BoolVar(&r.standalone, "standalone", false, "torchrun's; always so")
	fs.IntVar(&r.maxRestarts, "max-restarts", 3, "the same as --max-global-restart, by torchrun's name")
	fs.BoolVarP(&r.module, "module", "m", false, "run the script as a Python module")
	fs.BoolVar(&r.noPython, "no-python", false, "run the program as it is, also if it ends in .py")
	fs.StringVar(&r.logDir, "log-dir", "", "folder of the run's state and logs; the same as --state-dir")
	controller.AddFlags(fs, &r.Options)
	setDefault(fs, "use-health-check", "true")
	setDefault(fs, "http", "127.0.0.1:0")
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		name = strings.ReplaceAll(name, "_", "-") // torchrun takes both
		if name == "nproc-per-node" {
			name = "workers"
		}
		return pflag.NormalizedName(name)
	})
	return cmd
}

// setDefault gives a flag another default.
func setDefault(fs *pflag.FlagSet, name, value string) {
	f := fs.Lookup(name)
	f.DefValue = value
	_ = f.Value.Set(value) // a constant of ours
}

// loadOneRole makes the job of the command line.
func (p *program) loadOneRole(fs *pflag.FlagSet, r *oneRole, args []string) error {
	r.Environ, r.Stderr, r.Output, r.Version = p.environ, p.stderr, p.stdout, version()
	if r.nodes != "1" && r.nodes != "1:1" {
		return usage(fmt.Errorf("--nnodes %s: only this machine can be used; want 1", r.nodes))
	}
	workers, err := countWorkers(r)
	if err != nil {
		return usage(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	command := r.command(args)
	if r.Job, err = job.OneRole(nameOf(args[0]), workers, command, dir); err != nil {
		return usage(err)
	}
	if err := p.apply(fs, &r.Options, ""); err != nil {
		return err
	}
	if fs.Changed("max-restarts") {
		if fs.Changed("max-global-restart") && r.MaxGlobalRestart != r.maxRestarts {
			return usage(errors.New("--max-restarts and --max-global-restart: want one of them"))
		}
		r.MaxGlobalRestart = r.maxRestarts
	}
	if r.logDir != "" {
		if fs.Changed("state-dir") {
			return usage(errors.New("--log-dir and --state-dir: want one of them"))
		}
		r.StateDir = r.logDir
	}
	if r.Origins["http"].Source == settings.Default {
		r.HTTP = "127.0.0.1:0"
	}
	return nil
}

// command is what a worker runs: a Python script by python3, anything else as it is.
func (r *oneRole) command(args []string) []string {
	switch {
	case r.module:
		return append([]string{"python3", "-u", "-m"}, args...)
	case strings.HasSuffix(args[0], ".py") && !r.noPython:
		return append([]string{"python3", "-u"}, args...)
	default:
		return slices.Clone(args)
	}
}

// countWorkers reads torchrun's ways of saying how many.
func countWorkers(r *oneRole) (int, error) {
	gpus := func() (int, error) {
		inv, err := devices.Find(context.Background(), devices.Options{GPUs: r.GPUs, Fake: r.FakeGPUs, Environ: r.Environ})
		return len(inv.Devices), err
	}
	switch r.workers {
	case "cpu":
		return runtime.NumCPU(), nil
	case "gpu":
		n, err := gpus()
		if err == nil && n == 0 {
			err = errors.New("--workers gpu: this machine has none")
		}
		return n, err
	case "auto":
		if n, err := gpus(); err != nil || n > 0 {
			return n, err
		}
		return runtime.NumCPU(), nil
	}
	n, err := strconv.Atoi(r.workers)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("--workers %s: want a number from 1, cpu, gpu or auto", r.workers)
	}
	return n, nil
}

// nameOf is the job's name: that of the script.
func nameOf(script string) string {
	name := script[strings.LastIndexAny(script, "/")+1:]
	if base, ok := strings.CutSuffix(name, ".py"); ok && base != "" {
		name = base
	}
	return name
}
