package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"vigil/internal/devices"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/roleapi"
)

// Options is what a service is told at its start. The controller's address and the token come by the
// environment only, since everybody can read a command line.
type Options struct {
	Controller      string        // gRPC target of the controller, such as unix:///run/vigil/x.sock
	Token           string        // the job's secret; may be empty
	JobUID          string        // NAME-8hex
	JobName         string        // NAME
	Role            job.Role      // as the controller resolved it
	Index           int           // of the service within its role, from 0
	Node            string        // name of the machine
	Incarnation     int           // of the role at the start
	Epoch           uint64        // of the controller
	RuntimeDir      string        // for sockets; empty: the machine's default
	LogDir          string        // workers' logs go to LOGDIR/ROLE/INC/RANK.ATTEMPT/
	DeviceVariable  string        // by which workers are shown their devices; empty: CUDA_VISIBLE_DEVICES
	KernelLog       string        // where device errors are looked for; empty: /dev/kmsg
	IncidentDir     string        // evidence goes to INCIDENTDIR/ID/; empty: none is kept
	ControllerGrace time.Duration // how long it goes on without a controller
	HTTP            string        // HOST:PORT to listen on
	LogFormat       string        // text or json
	LogLevel        string        // debug, info, warn or error
}

// envPrefix begins the environment variables that our programs read their flags from.
const envPrefix = "VIGIL_OPT_"

// flagValues is Options before it has been checked.
type flagValues struct {
	Options
	role       string
	roleConfig string
}

// addFlags declares the flags of a service.
func addFlags(fs *pflag.FlagSet, v *flagValues) {
	fs.StringVar(&v.JobUID, "job-uid", "", "uid of the job, NAME-8hex")
	fs.StringVar(&v.JobName, "job-name", "", "name of the job")
	fs.StringVar(&v.role, "role", "", "role that it serves")
	fs.IntVar(&v.Index, "index", 0, "number of this service within its role")
	fs.StringVar(&v.Node, "node", "", "name of this machine (default: the host name)")
	fs.IntVar(&v.Incarnation, "incarnation", 1, "incarnation of the role at the start")
	fs.Uint64Var(&v.Epoch, "epoch", 0, "epoch of the controller")
	fs.StringVar(&v.RuntimeDir, "runtime-dir", "", "directory for sockets (default: /run/vigil, or /tmp/vigil-UID)")
	fs.StringVar(&v.LogDir, "log-dir", "", "directory for the workers' logs")
	fs.StringVar(&v.DeviceVariable, "device-variable", devices.CUDA, "environment variable by which workers are shown their devices")
	fs.StringVar(&v.KernelLog, "kernel-log", "", "file of the kernel's log, in which device errors are looked for (default: /dev/kmsg)")
	fs.StringVar(&v.IncidentDir, "incident-dir", "", "directory for evidence of workers before they are ended after a failure")
	fs.StringVar(&v.roleConfig, "role-config", "", "file with the role as the controller resolved it, JSON")
	fs.DurationVar(&v.ControllerGrace, "controller-grace", 0, "how long the workers go on without a controller")
	fs.StringVar(&v.HTTP, "http", net.JoinHostPort(proc.Loopback(), "0"), "address of the HTTP endpoints")
	fs.StringVar(&v.LogFormat, "log-format", "text", "text or json")
	fs.StringVar(&v.LogLevel, "log-level", "info", "debug, info, warn or error")
}

// fromEnvironment sets every flag that the command line left alone and the environment names, and
// what comes by the environment only. lookup is os.LookupEnv.
func fromEnvironment(fs *pflag.FlagSet, v *flagValues, lookup func(string) (string, bool)) error {
	var problems []error
	fs.VisitAll(func(f *pflag.Flag) {
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if text, ok := lookup(name); ok && !f.Changed && f.Name != "help" {
			if err := fs.Set(f.Name, text); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", name, err))
			}
		}
	})
	v.Controller, _ = lookup(envPrefix + "CONTROLLER")
	v.Token, _ = lookup(envPrefix + "TOKEN")
	return errors.Join(problems...)
}

// resolve checks the values and reads the role's file. The error has one line for each mistake.
func (v *flagValues) resolve() (Options, error) {
	o := v.Options
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	name, err := role.ParseName(v.role)
	if err != nil {
		wrong("--role: %w", err)
	}
	if o.Controller == "" {
		wrong("%sCONTROLLER is not set: want the controller's address, such as unix:///run/vigil/x.sock", envPrefix)
	}
	if o.JobUID == "" || strings.ContainsAny(o.JobUID, "/ \n") {
		wrong("--job-uid %q: want NAME-8hex", o.JobUID)
	}
	if o.JobName == "" {
		o.JobName = o.JobUID
	}
	if o.Index < 0 {
		wrong("--index %d: want 0 or more", o.Index)
	}
	if o.Incarnation < 1 {
		wrong("--incarnation %d: want 1 or more", o.Incarnation)
	}
	if o.ControllerGrace < 0 {
		wrong("--controller-grace %s: want 0 or more", o.ControllerGrace)
	}
	if host, _, err := net.SplitHostPort(o.HTTP); err != nil || !roleapi.IsLoopback(host) {
		wrong("--http %q: want a loopback address, HOST:PORT", o.HTTP)
	}
	if o.LogDir == "" {
		wrong("--log-dir is missing")
	}
	if o.Node == "" {
		if o.Node, err = os.Hostname(); err != nil {
			wrong("--node is missing and the host has no name: %w", err)
		}
	}
	if _, err := newLogger(os.Stderr, o.LogFormat, o.LogLevel); err != nil {
		wrong("%w", err)
	}
	if o.Role, err = readRole(v.roleConfig); err != nil {
		wrong("--role-config: %w", err)
	} else if o.Role.Name != name {
		wrong("--role-config %s: it describes role %q, not %q", v.roleConfig, o.Role.Name, name)
	}
	return o, errors.Join(problems...)
}

// readRole reads the role as the controller wrote it.
func readRole(path string) (job.Role, error) {
	if path == "" {
		return job.Role{}, errors.New("it is missing")
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return job.Role{}, fmt.Errorf("read role: %w", err)
	}
	var r job.Role
	if err := json.Unmarshal(src, &r); err != nil {
		return job.Role{}, fmt.Errorf("read role from %s: %w", path, err)
	}
	if len(r.Command) == 0 {
		return job.Role{}, fmt.Errorf("read role from %s: it has no command", path)
	}
	return r, nil
}
