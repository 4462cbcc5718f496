package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vigil/internal/proc"
	"vigil/internal/wire/rpc"
)

// The exit codes of a service.
const (
	ExitDone           = 0
	ExitFailed         = 1              // such as: the controller did not take its registration
	ExitUsage          = 2              // bad flags
	ExitLacks          = proc.ExitLacks // a limit of the machine kept it from starting; the last line names it
	ExitControllerLost = 75             // without its controller for longer than its grace; EX_TEMPFAIL of sysexits(3)
)

// UsageError says what is wrong with the flags, or with the environment that they are also read from.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the mistake itself.
func (e *UsageError) Unwrap() error { return e.Err }

// Status returns the exit code for what Command has returned.
func Status(err error) int {
	if err == nil {
		return ExitDone
	}
	if _, ok := errors.AsType[*UsageError](err); ok {
		return ExitUsage
	}
	if errors.Is(err, rpc.ErrControllerLost) || errors.Is(err, rpc.ErrReplaced) {
		return ExitControllerLost
	}
	if proc.LackOf(err) != nil {
		return ExitLacks
	}
	return ExitFailed
}

// Main is the program: it runs a service with these arguments, without the program's own name, and
// returns the exit code.
func Main(args []string, stderr io.Writer) int {
	if status, was := proc.UnderFirst(stderr); was {
		return status
	}
	proc.SealInherited()        // what the controller hands over is held here, by no worker
	debug.SetTraceback("crash") // a crash is a death by a signal, and no exit with 2
	cmd := Command()
	cmd.SetArgs(args)
	cmd.SetErr(stderr)
	err := cmd.Execute()
	if lack := proc.LackOf(err); lack != nil {
		err = lack
	}
	if err != nil {
		fmt.Fprintf(stderr, "service: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return Status(err)
}

// Command returns the program as a command, which the controller's program has too. Whoever executes
// it says its error, and exits with the Status of it.
func Command() *cobra.Command {
	v := &flagValues{}
	cmd := &cobra.Command{
		Use:   "service",
		Short: "Run and watch the workers of one role on this machine, for a controller",
		Long: `Run and watch the workers of one role on this machine, for a controller.

The controller starts services itself; this is not meant to be typed. Every flag can also
be given in the environment, as ` + envPrefix + ` and its name. The controller's address and the
token are read from there only: ` + envPrefix + `CONTROLLER, ` + envPrefix + `TOKEN.

Exit status: 0 told to leave, or stopped by a signal in order; 1 failed; 2 bad flags;
71 a limit of the machine kept it from starting; 75 stopped in order because the controller was gone for longer than --controller-grace,
which the service leaves a note of for the next controller.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &UsageError{fmt.Errorf("argument %q: want flags only", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnvironment(cmd.Flags(), v, os.LookupEnv); err != nil {
				return &UsageError{err}
			}
			o, err := v.resolve()
			if err != nil {
				return &UsageError{err}
			}
			return serve(cmd, o)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{err} })
	addFlags(cmd.Flags(), v)
	return cmd
}

// serve runs one service until its end.
func serve(cmd *cobra.Command, o Options) error {
	log, err := newLogger(cmd.ErrOrStderr(), o.LogFormat, o.LogLevel)
	if err != nil {
		return &UsageError{err}
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	s, err := New(o, log)
	if notOurs := new(proc.NotOursError); errors.As(err, &notOurs) {
		return &UsageError{err} // waiting does not help
	}
	if err != nil {
		return fmt.Errorf("start service %s/%d: %w", o.Role.Name, o.Index, err)
	}
	defer s.Close()
	return s.Run(ctx)
}

// SignalError is why a context has ended: a signal has told the program to stop.
type SignalError struct{ Signal unix.Signal }

func (e *SignalError) Error() string { return "told to stop by " + unix.SignalName(e.Signal) }

// untilSignal returns a context that ends at the first signal that stops a service, with a *SignalError for its
// cause. Further ones change nothing. A hang-up that whoever started the job wants ignored, as nohup does, stays
// ignored.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	stops := []os.Signal{unix.SIGTERM, unix.SIGINT}
	if !signal.Ignored(unix.SIGHUP) {
		stops = append(stops, unix.SIGHUP)
	}
	got := make(chan os.Signal, 1)
	signal.Notify(got, stops...)
	go func() {
		select {
		case s := <-got:
			cancel(&SignalError{s.(unix.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		cancel(nil)
	}
}

// newLogger returns a logger of that format (text, json) and least level (debug, info, warn, error).
func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: least}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format %q: want text or json", format)
}
