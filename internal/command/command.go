// Package command is the command line of the controller: from arguments, environment and job file to
// Options, from Options to a run, from how that ended to the exit status.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"vigil/internal/controller"
	"vigil/internal/example"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/service"
	"vigil/internal/settings"
)

// The exit statuses of the controller beyond those that the policy names.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
	ExitLater  = 75 // the run is open, and the machine does not let it be gone on with now; EX_TEMPFAIL of sysexits(3)
)

// program is what all commands share.
type program struct {
	args           []string // the program's own name first
	environ        []string
	stdout, stderr io.Writer
	exit           int // of a job that ended
	inherited      proc.Inherited
}

// Main runs the program with its arguments, the program's own name first, and returns the exit
// status.
func Main(args, environ []string, stdout, stderr io.Writer) int {
	if status, was := proc.UnderFirst(stderr); was {
		return status
	}
	debug.SetTraceback("crash") // a crash is a death by a signal: Go's usual exit status for it, 2, is that of a refusal
	p := &program{args: args, environ: environ, stdout: stdout, stderr: stderr, inherited: proc.SealInherited()}
	root := p.root(filepath.Base(args[0]))
	root.SetArgs(args[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	ran, err := root.ExecuteC()
	switch {
	case err == nil:
		return p.exit
	case ran.Name() == "service":
		fmt.Fprintf(stderr, "service: %v\n", err)
		return service.Status(err)
	case errors.Is(err, example.ErrTerminated):
		return 128 + int(syscall.SIGTERM)
	}
	say(stderr, root.Name(), err)
	if open := new(controller.StaysOpenError); errors.As(err, &open) {
		return ExitLater
	}
	if usage := new(controller.UsageError); errors.As(err, &usage) {
		return ExitUsage
	}
	return ExitFailed
}

// say writes an error, each of its lines after the program's name.
func say(w io.Writer, name string, err error) {
	for line := range strings.Lines(strings.TrimRight(err.Error(), "\n")) {
		fmt.Fprintf(w, "%s: %s\n", name, strings.TrimRight(line, "\n"))
	}
}

// usage marks an error as a mistake in what was given.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &controller.UsageError{Err: err}
}

func (p *program) root(name string) *cobra.Command {
	o := &controller.Options{}
	cmd := &cobra.Command{
		Use:   name,
		Short: "Keep a multi-role training job alive",
		Long: `Keep a multi-role training job alive: start its roles, watch whether each is alive and gets on,
repair what breaks, and stop with a reason when repairing does not help.

Without --job a built-in example job runs. Every flag can also be given in the environment, as
VIGIL_OPT_ and its name in capitals with underscores, or in the job file under "controller".

Exit status: 0 done; 1 a budget is spent, a fatal error, or a failure without --use-health-check;
2 bad flags or job file; 75 the run is open and cannot be gone on with now, try again;
93 no progress, do not requeue; 128+n stopped by signal n.`,
		Example: fmt.Sprintf("  %[1]s --use-health-check --max-global-restart 3\n  %[1]s --job job.yaml\n  %[1]s run --nproc-per-node 4 -- train.py --epochs 3", name),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("%q is not a command; see %s --help", args[0], name))
			}
			return nil
		},
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.load(cmd.Flags(), o); err != nil {
				return err
			}
			return p.run(cmd, o)
		},
	}
	flagError := func(_ *cobra.Command, err error) error { return usage(err) }
	cmd.SetFlagErrorFunc(flagError)
	cmd.CompletionOptions.HiddenDefaultCmd = true
	addJobFlags(cmd.Flags(), o)
	cmd.AddCommand(p.runCommand(), p.statusCommand(), p.doctorCommand(), p.gpusCommand(), p.chaosCommand(), p.validateCommand(), p.policyCommand(), p.replayCommand(), p.versionCommand(), service.Command(), example.Command())
	return cmd
}

// addJobFlags declares the flags of a command that reads a job as the controller does.
func addJobFlags(fs *pflag.FlagSet, o *controller.Options) {
	fs.SortFlags = false
	fs.StringVar(&o.JobFile, "job", "", "job file; without one the built-in example job runs")
	controller.AddFlags(fs, o)
}

// load fills the options in: flags beat environment beats job file beats defaults.
func (p *program) load(fs *pflag.FlagSet, o *controller.Options) error {
	o.Environ, o.Stderr, o.Output, o.Version, o.Command = p.environ, p.stderr, p.stdout, version(), p.commandLine("", fs)
	path := settings.Peek(fs, p.environ, "job")
	if path == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		o.Job = job.Builtin(exe)
	} else {
		var err error
		if o.Job, err = job.Load(path); err != nil {
			return usage(err)
		}
		if err := o.Job.CheckFlags(settings.Known(fs)); err != nil {
			return usage(err)
		}
	}
	o.JobFile, o.Command.Program = path, path
	return p.apply(fs, o)
}

// apply sets the flags that the command line has left alone.
func (p *program) apply(fs *pflag.FlagSet, o *controller.Options) error {
	origins, err := settings.Apply(fs, p.environ, o.Job.Controller, o.JobFile)
	if err != nil {
		return usage(err)
	}
	o.Origins = origins
	if _, port, err := net.SplitHostPort(o.HTTP); err == nil && origins["http"].Source == settings.Default {
		o.HTTP = net.JoinHostPort(proc.Loopback(), port) // a machine may have IPv6 only
	}
	if origins["heartbeat-timeout"].Source == settings.Default {
		o.HeartbeatTimeout = 0 // learned
	} else if o.HeartbeatTimeout == 0 {
		return usage(errors.New("--heartbeat-timeout 0s: want 5s or more"))
	}
	return nil
}

// run runs a job to its end. The first signal stops it in order, the second kills everything.
func (p *program) run(cmd *cobra.Command, o *controller.Options) error {
	if err := p.closeInherited(cmd.Flags(), o.Job); err != nil {
		return usage(err)
	}
	ctx, kill := context.WithCancelCause(cmp.Or(cmd.Context(), context.Background()))
	defer kill(nil)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, stopSignals()...)
	defer signal.Stop(signals)
	outliveReaders()
	done := make(chan struct{})
	defer close(done)
	warnings := awaitWarnings(o)
	defer signal.Stop(warnings)
	made := make(chan *controller.Controller, 1)
	go func() {
		first, c := awaitSignal(signals, made, done)
		switch {
		case first == nil:
			return
		case c == nil: // still being made: nothing has been started
			kill(&signalError{*first})
			return
		}
		c.Stop(*first)
		if second := awaitSecond(signals, done); second != nil {
			kill(fmt.Errorf("stopped at once by a second signal (%s)", unix.SignalName(*second)))
		}
	}()
	c, err := controller.New(ctx, *o)
	if early := new(signalError); errors.As(context.Cause(ctx), &early) {
		p.exit = 128 + int(early.signal)
		if err == nil {
			err = c.Close()
		} else {
			err = nil
		}
		say(p.stderr, "controller", errors.Join(early, err))
		return nil
	}
	if err != nil {
		return p.tellEnd(err)
	}
	made <- c
	defer c.Told()
	go forward(warnings, c, done)
	out, err := c.Run(ctx)
	p.exit = out.Exit
	switch early, open := new(signalError), new(controller.StaysOpenError); {
	case errors.As(context.Cause(ctx), &early): // it came in the moment between
		p.exit = 128 + int(early.signal)
	case errors.As(err, &open):
		return err
	case err != nil && p.exit == ExitDone:
		p.exit = ExitFailed
	}
	return nil
}

// tellEnd gives the exit of a run that has ended and whose controller was killed before it could; other errors it
// returns.
func (p *program) tellEnd(err error) error {
	ended := new(controller.EndedError)
	if !errors.As(err, &ended) {
		return err
	}
	p.exit = ended.Exit
	say(p.stderr, "controller", ended)
	ended.Told()
	return nil
}

// version is the version that this program was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v, dirty := info.Main.Version, ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			if v == "" || v == "(devel)" {
				v = s.Value[:min(12, len(s.Value))]
			}
		case "vcs.modified":
			if s.Value == "true" && !strings.Contains(v, "dirty") {
				dirty = "+dirty"
			}
		}
	}
	return v + dirty
}

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(p.stdout, "vigil", version())
			return err
		},
	}
}

// noArgs refuses arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("argument %q: want none", args[0]))
	}
	return nil
}
