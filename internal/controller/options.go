package controller

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"vigil/internal/devices"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/settings"
	"vigil/internal/wire/httpapi"
)

// DefaultHTTP is where the HTTP interface listens.
const DefaultHTTP = "127.0.0.1:8000"

// Options is what a controller is told.
type Options struct {
	Job     *job.Job
	JobFile string // empty: built in, or of one role
	Version string
	Self    []string // the program that is a service when "service" is added; default: this one
	Environ []string // what services and workers inherit

	UseHealthCheck   bool
	MaxGlobalRestart int
	NoProgressLives  int
	GlobalRestart    string        // "keep": services that are well and empty are kept; "full": all are replaced
	HeartbeatTimeout time.Duration // 0: learned
	StartTimeout     time.Duration
	CheckInterval    time.Duration
	ControllerGrace  time.Duration

	HTTP      string
	TLSCert   string
	TLSKey    string
	TokenFile string
	Insecure  bool
	token     string // that was in TokenFile; a pipe can be read once

	PrivateMetrics bool   // other users of the machine do not get metrics and probes either
	MetricsListen  string // HOST:PORT where only those are served, to everybody; empty: nowhere

	StateDir string // of the job; empty: the user's
	// StateLock is the lock of StateDir, where the one that has chosen that has it already; the controller gives it back.
	StateLock   *proc.FileLock
	Notes       []string // what the user is to know of the choices that were made for these options
	ForgetState bool     // give up a run that is open, and a journal that cannot be read
	Resume      bool     // go on with the last run, also where that is closed
	// Script has every ordered end close the run, but for a TERM after which a scheduler is to start it again.
	Script         bool
	Requeue        bool    // there is such a scheduler
	Command        Command // that has made these options
	ApplyOnRestart bool    // roles whose definition has changed have the new one from their next restart on
	DieAtWrite     string  // for tests: N or N:after, the write of the journal at which the controller kills itself
	RuntimeDir     string
	GPUs           string
	FakeGPUs       int
	FakeNodes      int
	WaitGPUs       time.Duration
	Inventory      *devices.Inventory // what is there, where that is known already; nil: it is looked for
	ShowDevices    bool               // workers that reserve no devices are shown all of the inventory
	// DevicesUnknown is why nobody can say which devices there are; Inventory has none then.
	DevicesUnknown error
	// DevicesGuessed has living workers keep as many devices each as they were started with: how many the job's roles
	// reserve was not asked for.
	DevicesGuessed bool

	ForwardSignal []string // signals that are handed on to the workers, such as USR1

	OnIncident  string        // command that is told of incidents; empty: none
	HookTimeout time.Duration // of one run of that command or of a worker hook; 0: the default

	KeepRuns      int           // newest runs whose folders are kept in the state directory; 0: all
	KeepIncidents time.Duration // a run that had incidents is kept for so long beyond them; 0: no longer than others
	KeepSize      string        // of all runs together, such as 10Gi; 0: without bound
	KeepLives     int           // newest lives of each role whose logs are kept; 0: all

	LogFormat   string
	LogLevel    string
	StatusEvery time.Duration // between two lines that say how every role stands; 0: none

	Stderr io.Writer // logs and failure reports
	Output io.Writer // is given what the workers of Tee print
	// Tee names whose output is shown, each line after role and rank: all, ROLE or ROLE:RANK.
	Tee     []string
	Origins map[string]settings.Origin // where each flag's value came from
}

// AddFlags declares the controller's flags on fs, with o as their target.
func AddFlags(fs *pflag.FlagSet, o *Options) {
	fs.BoolVar(&o.UseHealthCheck, "use-health-check", false, "repair what fails; without it any failure stops the job")
	fs.IntVar(&o.MaxGlobalRestart, "max-global-restart", 3, "how many global restarts may happen; the next one needed stops the job with exit 1")
	fs.IntVar(&o.NoProgressLives, "no-progress-lives", 0, "stop with exit 93 after so many lives of a role without a step gained; 0: never")
	fs.StringVar(&o.GlobalRestart, "global-restart", "keep", "keep: a global restart keeps services that are well and empty; full: it replaces all")
	fs.DurationVar(&o.HeartbeatTimeout, "heartbeat-timeout", 120*time.Second, "how long a role may be silent, 5s or more; unless given, the limit is learned and never shorter than 120s")
	fs.DurationVar(&o.StartTimeout, "start-timeout", 30*time.Minute, "how long a role may take to its first heartbeat, or to be ready")
	fs.DurationVar(&o.CheckInterval, "check-interval", time.Second, "how often silence is looked for")
	fs.DurationVar(&o.ControllerGrace, "controller-grace", 10*time.Minute, "how long services keep their workers going without a controller, for another to take them over; 0: not at all")
	fs.StringVar(&o.HTTP, "http", DefaultHTTP, "address of the HTTP interface, HOST:PORT")
	fs.StringVar(&o.TLSCert, "tls-cert", "", "certificate file of the HTTP interface, PEM")
	fs.StringVar(&o.TLSKey, "tls-key", "", "key file of the HTTP interface, PEM")
	fs.StringVar(&o.TokenFile, "token-file", "", "file with the bearer token that the HTTP interface asks for")
	fs.BoolVar(&o.Insecure, "insecure", false, "listen beyond loopback without TLS and token")
	fs.BoolVar(&o.PrivateMetrics, "private-metrics", false, "keep /metrics, /healthz and /readyz from other users of this machine too; with --token-file, the probes want the token")
	fs.StringVar(&o.MetricsListen, "metrics-listen", "", "second address, HOST:PORT, where only /metrics, /healthz and /readyz are served, to everybody who reaches it, without TLS and token")
	fs.StringVar(&o.StateDir, "state-dir", "", "folder of the job's state and logs (default: $XDG_STATE_HOME/vigil/NAME, where \"run\" has a name for each folder and command line)")
	fs.StringVar(&o.DieAtWrite, "die-at-write", "", "kill the controller at that write of its journal: N, N:after, or close for the last")
	_ = fs.MarkHidden("die-at-write") // it is there
	fs.BoolVar(&o.Resume, "resume", false, "go on with the last run, also where that is closed: from its step, under its uid, with everything to spend")
	fs.BoolVar(&o.ForgetState, "forget-state", false, "give up a run that an earlier controller has left open, end what lives of it, and set a journal aside that cannot be read")
	fs.BoolVar(&o.ApplyOnRestart, "apply-on-restart", false, "take over a run although its job file has changed: what cannot be applied to living workers is so from the role's next restart on")
	fs.StringVar(&o.RuntimeDir, "runtime-dir", "", "folder of sockets and locks (default: /run/vigil for root, else /tmp/vigil-UID)")
	fs.StringVar(&o.GPUs, "gpus", "", "devices that the job may use: 4,5 (these) or N (any N that are free); default: as many as its roles reserve")
	fs.IntVar(&o.FakeGPUs, "fake-gpus", 0, "pretend that there are so many devices")
	fs.IntVar(&o.FakeNodes, "fake-nodes", 0, "pretend that this machine is so many nodes, to try placement strategies")
	fs.DurationVar(&o.WaitGPUs, "wait-for-gpus", 0, "how long to wait in the queue for devices that others have, of any user of the machine; 0: exit 2 and name them")
	fs.StringSliceVar(&o.Tee, "tee", nil, "show what these workers print, each line after role and rank: all, ROLE or ROLE:RANK; may be given more than once")
	fs.StringSliceVar(&o.ForwardSignal, "forward-signal", nil, "hand these signals on to all workers, as for a scheduler's warning: USR1, USR2, XCPU, PWR, CONT")
	fs.DurationVar(&o.StatusEvery, "status-every", time.Minute, "how often the log says how every role stands; 0: never")
	fs.IntVar(&o.KeepRuns, "keep-runs", 20, "how many runs' folders are kept in the state directory, the newest; 0: all")
	fs.DurationVar(&o.KeepIncidents, "keep-incidents", 30*24*time.Hour, "for how long a run that had incidents is kept beyond --keep-runs; 0: no longer than others")
	fs.StringVar(&o.KeepSize, "keep-size", "10Gi", "how much room the runs in the state directory may take together, the newest first; 0: any")
	fs.IntVar(&o.KeepLives, "keep-lives", 50, "of how many lives of each role the logs are kept, the newest beside the first 3; 0: all")
	fs.StringVar(&o.OnIncident, "on-incident", "", "command, run by sh -c, that is given every incident as JSON on standard input: when it is decided and when it has ended")
	fs.DurationVar(&o.HookTimeout, "hook-timeout", hookTimeout, "how long one run of --on-incident or of a worker hook may take; what it has put into the background by then is ended too")
	fs.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	fs.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
}

// UsageError says that a job was not begun because something that was given is wrong: exit 2.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the mistake itself.
func (e *UsageError) Unwrap() error { return e.Err }

// StaysOpenError says that a run is open which cannot be gone on with now, and that nobody of it who lives was touched:
// the machine, and nothing that was given, keeps a controller from it, so that a later start may go well. Exit 75.
type StaysOpenError struct {
	UID   string
	Err   error
	Again string // the command that starts it again; empty: not known
}

func (e *StaysOpenError) Error() string {
	text := fmt.Sprintf("%v\nthe run %s stays open, and what lives of it is left alone: start the controller again", e.Err, e.UID)
	if e.Again != "" {
		text += ": " + e.Again
	}
	return text
}

// Unwrap returns what the machine has said.
func (e *StaysOpenError) Unwrap() error { return e.Err }

// Check says everything that is wrong with the options, a line for each. It opens nothing.
func (o *Options) Check() error {
	var wrong []error
	say := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf(format, args...))
		}
	}
	say(o.Job == nil, "there is no job")
	say(o.MaxGlobalRestart < 0, "--max-global-restart %d: want 0 or more", o.MaxGlobalRestart)
	say(o.NoProgressLives < 0, "--no-progress-lives %d: want 0 or more", o.NoProgressLives)
	say(o.GlobalRestart != "keep" && o.GlobalRestart != "full", "--global-restart %q: want keep or full", o.GlobalRestart)
	say(o.HeartbeatTimeout != 0 && o.HeartbeatTimeout < 5*time.Second, "--heartbeat-timeout %s: want 5s or more", o.HeartbeatTimeout)
	say(o.StartTimeout <= 0, "--start-timeout %s: want more than 0", o.StartTimeout)
	say(o.CheckInterval < 10*time.Millisecond || o.CheckInterval > time.Minute, "--check-interval %s: want 10ms to 1m", o.CheckInterval)
	say(o.HookTimeout < 0 || o.HookTimeout > 0 && o.HookTimeout < time.Second, "--hook-timeout %s: want 1s or more", o.HookTimeout)
	say(o.ControllerGrace < 0, "--controller-grace %s: want 0 or more", o.ControllerGrace)
	say(o.FakeGPUs < 0, "--fake-gpus %d: want 0 or more", o.FakeGPUs)
	say(o.FakeNodes < 0 || o.FakeNodes > 1000, "--fake-nodes %d: want 0 to 1000", o.FakeNodes)
	say(o.Resume && o.ForgetState, "--resume and --forget-state: want one of them")
	say(o.StatusEvery < 0, "--status-every %s: want 0 or more", o.StatusEvery)
	say(o.KeepRuns < 0, "--keep-runs %d: want 0 or more", o.KeepRuns)
	say(o.KeepIncidents < 0, "--keep-incidents %s: want 0 or more", o.KeepIncidents)
	say(o.KeepLives < 0, "--keep-lives %d: want 0 or more", o.KeepLives)
	if _, err := o.retention(); err != nil {
		wrong = append(wrong, err)
	}
	say(o.WaitGPUs < 0, "--wait-for-gpus %s: want 0 or more", o.WaitGPUs)
	say((o.TLSCert == "") != (o.TLSKey == ""), "--tls-cert and --tls-key: want both or neither")
	say(o.PrivateMetrics && o.MetricsListen != "", "--private-metrics and --metrics-listen: want one of them")
	if _, _, err := net.SplitHostPort(o.MetricsListen); o.MetricsListen != "" {
		say(err != nil, "--metrics-listen %q: want HOST:PORT", o.MetricsListen)
	}
	if _, err := o.journalFault(); err != nil {
		wrong = append(wrong, err)
	}
	if _, err := ParseForward(o.ForwardSignal); err != nil {
		wrong = append(wrong, err)
	}
	if o.Job != nil {
		if _, err := selectOutput(o.Job, o.Tee); err != nil {
			wrong = append(wrong, err)
		}
	}
	if _, err := NewLogger(io.Discard, o.LogFormat, o.LogLevel); err != nil {
		wrong = append(wrong, err)
	}
	security, err := o.security()
	if err != nil {
		wrong = append(wrong, err)
	} else if err := httpapi.CheckBind(o.HTTP, security); err != nil {
		wrong = append(wrong, fmt.Errorf("--http %s: %w", o.HTTP, err))
	}
	return errors.Join(wrong...)
}

// security returns what protects the HTTP interface.
func (o *Options) security() (httpapi.Security, error) {
	s := httpapi.Security{CertFile: o.TLSCert, KeyFile: o.TLSKey, Insecure: o.Insecure}
	if o.TokenFile == "" {
		return s, nil
	}
	var err error
	if o.token == "" {
		o.token, err = ReadToken(o.TokenFile)
	}
	s.Token = o.token
	return s, err
}

// StateHome is where the state of all jobs of this user lies: $XDG_STATE_HOME/vigil, by default
// $HOME/.local/state/vigil. A relative one of these is refused: it would mean another folder from each working directory.
// The error names the flag that helps.
func StateHome() (string, error) {
	home, below, from := os.Getenv("XDG_STATE_HOME"), "vigil", "XDG_STATE_HOME"
	if home == "" {
		home, below, from = os.Getenv("HOME"), filepath.Join(".local", "state", "vigil"), "HOME"
	}
	switch {
	case home == "":
		return "", errors.New("find the state directory: neither XDG_STATE_HOME nor HOME is set: give --state-dir")
	case !filepath.IsAbs(home):
		return "", fmt.Errorf("find the state directory: %s is %q, which is no absolute path: set it, or give --state-dir", from, home)
	}
	return filepath.Join(home, below), nil
}
