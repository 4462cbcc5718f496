package command

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vigil/internal/accelerate"
	"vigil/internal/controller"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/settings"
)

// oneRole is what "run" takes beyond the controller's flags.
type oneRole struct {
	controller.Options
	workers     string
	nodes       string
	nodeRank    int
	standalone  bool
	maxRestarts int
	module      bool
	noPython    bool
	python      string
	accelerate  string // file of "accelerate config"
	logDir      string
	preload     []string
	user        string
	wandb       string
	perWorker   int // devices of each worker; -1: by what there is
	requeue     bool
	name        string
}

// runCommand is the job of one role without a file, for people who come from torchrun.
func (p *program) runCommand() *cobra.Command {
	r := &oneRole{}
	cmd := &cobra.Command{
		Use:   "run [flags] [--] SCRIPT|PROGRAM [ARGS...]",
		Short: "Run one role, main, with so many workers, and keep it alive; torchrun's flags are understood",
		Long: `Run one role, main, with so many workers, and keep it alive.

A script that ends in .py is run by python3, or by what --python names, unless --no-python says
otherwise; any other program is run as it is. Health check is on, a failure restarts all workers,
their output is shown with a prefix for each rank (--tee ROLE:RANK narrows that), and the HTTP
interface is on a free loopback port.

A run is known by the folder and the script's command line, or by --name: the same command goes on
with a run that was left open, begins beside one that is alive, and begins a new one after one that
has ended in order; --resume goes on with that too.`,
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
			return p.run(cmd, &r.Options)
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // what follows the script is its own
	fs.SortFlags = false
	fs.StringVar(&r.workers, "workers", "1", "how many workers: a number, cpu, gpu or auto")
	fs.StringVar(&r.workers, "nproc-per-node", "1", "the same, by torchrun's name")
	fs.StringVar(&r.nodes, "nnodes", "1", "torchrun's; this machine is the only node")
	fs.IntVar(&r.nodeRank, "node-rank", 0, "torchrun's; this machine is node 0")
	fs.BoolVar(&r.standalone, "standalone", false, "torchrun's; always so")
	fs.IntVar(&r.maxRestarts, "max-restarts", 3, "the same as --max-global-restart, by torchrun's name")
	fs.BoolVarP(&r.module, "module", "m", false, "run the script as a Python module")
	fs.StringVar(&r.python, "python", "python3", "interpreter of a script or module, such as .venv/bin/python")
	fs.StringVar(&r.accelerate, "accelerate-config", "", "file that \"accelerate config\" has written: workers and environment as accelerate launch has them")
	fs.StringSliceVar(&r.preload, "preload", nil, "modules that a fork server imports once, so that workers start in hundredths of a second: torch,... or auto")
	addWhoseFlags(fs, r)
	fs.StringVar(&r.wandb, "wandb", string(job.WandBNone), "resume: rank 0 goes on with one run of Weights & Biases over all restarts, by WANDB_RUN_ID and WANDB_RESUME; none: it is given neither")
	fs.BoolVar(&r.noPython, "no-python", false, "run the program as it is, also if it ends in .py")
	fs.IntVar(&r.perWorker, "gpus-per-worker", -1, "devices that each worker reserves, locked for this run; 0: none, and what is visible stays so (default: one each where there are several workers)")
	fs.StringVar(&r.logDir, "log-dir", "", "folder of the run's state and logs; the same as --state-dir")
	addSettledFlags(fs)
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

// loadOneRole makes the job of the command line. The flags come first, wherever they are from: they
// say what the job is.
func (p *program) loadOneRole(fs *pflag.FlagSet, r *oneRole, args []string) error {
	r.Environ, r.Stderr, r.Output, r.Version, r.Command = p.environ, p.stderr, p.stdout, version(), p.commandLine("run", fs)
	r.Job = &job.Job{}
	if err := p.apply(fs, &r.Options); err != nil {
		return err
	}
	if err := r.settle(fs, args); err != nil {
		return usage(err)
	}
	p.noteSettledFlags(fs)
	launch, err := p.readAccelerate(fs, r)
	if err != nil {
		return usage(err)
	}
	r.takeGPUs(launch.Environ)
	workers, err := countWorkers(r)
	if err != nil {
		return usage(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		return usage(fmt.Errorf("the working directory is gone: cd into it again, or into another: %w", err))
	}
	if r.Job, err = job.OneRole(nameOf(args[0]), workers, r.command(args), dir); err != nil {
		return usage(err)
	}
	main := &r.Job.Roles[0]
	main.Env, main.Preload, main.WandB, main.User = launch.Environ, r.preload, job.WandB(r.wandb), r.user
	if launch.Alone && workers == 1 {
		main.Distributed = job.None
	}
	if err := p.settleDevices(r, main); err != nil {
		return usage(err)
	}
	return p.choose(fs, r, args, dir)
}

// settle gives the controller's flags what torchrun's flags and the one-role job mean, and refuses what
// cannot be had.
func (r *oneRole) settle(fs *pflag.FlagSet, args []string) error {
	switch {
	case r.nodes != "1" && r.nodes != "1:1":
		return fmt.Errorf("--nnodes %s: only this machine can be used; want 1", r.nodes)
	case r.nodeRank != 0:
		return fmt.Errorf("--node-rank %d: only this machine can be used; want 0", r.nodeRank)
	case r.wandb != string(job.WandBNone) && r.wandb != string(job.WandBResume):
		return fmt.Errorf("--wandb %s: want none or resume", r.wandb)
	case r.Origins["python"].Source == settings.Flag && !r.interpreted(args):
		return fmt.Errorf("--python %s: %q is neither a .py file nor, with -m, a module, so it would run nothing", r.python, args[0])
	}
	if fs.Changed("max-restarts") {
		if fs.Changed("max-global-restart") && r.MaxGlobalRestart != r.maxRestarts {
			return errors.New("--max-restarts and --max-global-restart: want one of them")
		}
		r.MaxGlobalRestart = r.maxRestarts
	}
	if r.logDir != "" {
		if fs.Changed("state-dir") {
			return errors.New("--log-dir and --state-dir: want one of them")
		}
		r.StateDir = r.logDir
	}
	if r.Origins["http"].Source == settings.Default {
		r.HTTP = net.JoinHostPort(proc.Loopback(), "0")
	}
	r.Script = true
	r.Requeue = r.requeue || slices.ContainsFunc(r.Environ, isSlurmJob)
	if r.Origins["tee"].Source == settings.Default {
		r.Tee = []string{controller.TeeAll}
	}
	return nil
}

// isSlurmJob says whether a variable is that of a job of Slurm, which a scheduler may start again.
func isSlurmJob(pair string) bool {
	id, is := strings.CutPrefix(pair, "SLURM_JOB_ID=")
	return is && id != ""
}

// interpreted says whether the worker's program is a script or module that Python runs.
func (r *oneRole) interpreted(args []string) bool {
	return r.module || strings.HasSuffix(args[0], ".py") && !r.noPython
}

// readAccelerate returns what accelerate launch would do, and sets the number of workers unless the
// command line says it; nothing without --accelerate-config.
func (p *program) readAccelerate(fs *pflag.FlagSet, r *oneRole) (launch accelerate.Launch, err error) {
	if r.accelerate == "" {
		return launch, nil
	}
	if launch, err = accelerate.Read(r.accelerate); err != nil {
		return launch, err
	}
	if !fs.Changed("workers") {
		if launch.Workers == 0 {
			return launch, fmt.Errorf("--accelerate-config %s: it leaves num_processes open; say --workers", r.accelerate)
		}
		r.workers = strconv.Itoa(launch.Workers)
	}
	for _, note := range launch.Notes {
		fmt.Fprintf(p.stderr, "%s: %s\n", r.accelerate, note)
	}
	return launch, nil
}

// command is what a worker runs: a Python script by the interpreter, anything else as it is.
func (r *oneRole) command(args []string) []string {
	switch {
	case !r.interpreted(args):
		return slices.Clone(args)
	case r.module:
		return append([]string{r.python, "-u", "-m"}, args...)
	default:
		return append([]string{r.python, "-u"}, args...)
	}
}

// countWorkers reads torchrun's ways of saying how many.
func countWorkers(r *oneRole) (int, error) {
	gpus := func() (int, error) {
		inv, err := r.inventory()
		return inv.Want, err
	}
	switch r.workers {
	case "cpu":
		return runtime.NumCPU(), nil
	case "gpu":
		n, err := gpus()
		if r.DevicesUnknown != nil {
			return 1, nil // the run does not begin
		}
		if err == nil && n == 0 {
			err = errors.New("--workers gpu: this machine has none")
		}
		return n, err
	case "auto":
		n, err := gpus()
		if r.DevicesUnknown != nil {
			return 1, nil
		}
		if err != nil || n > 0 {
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

// countsDevices says whether the number of workers is that of the devices.
func (r *oneRole) countsDevices() bool { return r.workers == "gpu" || r.workers == "auto" }

// nameOf is the job's name: that of the script.
func nameOf(script string) string {
	name := script[strings.LastIndexAny(script, "/")+1:]
	if base, ok := strings.CutSuffix(name, ".py"); ok && base != "" {
		name = base
	}
	return name
}
