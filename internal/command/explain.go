package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"vigil/internal/controller"
	"vigil/internal/nearest"
	"vigil/internal/restart"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// question is a failure that policy --explain is asked about.
type question struct {
	asked    bool
	exitCode int
	signal   string
	message  string
	rank     int
	addr     string // of a running controller; empty: nothing is spent
}

const noExitCode = -1

func (q *question) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&q.asked, "explain", false, "say, line by line, what would be done now about a failure: policy --explain ROLE CAUSE")
	fs.IntVar(&q.exitCode, "exit-code", noExitCode, "with --explain: the process ended with this code")
	fs.StringVar(&q.signal, "signal", "", "with --explain: the process was killed by this signal")
	fs.StringVar(&q.message, "message", "", "with --explain: what the failure says")
	fs.IntVar(&q.rank, "rank", 0, "with --explain: the rank that failed")
	fs.StringVar(&q.addr, "addr", "", "with --explain: HTTP address of a running controller, HOST:PORT or URL, whose job has spent what it has; default: nothing is spent")
}

// args checks the arguments of the policy command.
func (q *question) args(given []string) error {
	switch {
	case q.asked && len(given) != 2:
		return usage(errors.New("policy --explain: want a role and a cause, such as: policy --explain critic exited --exit-code 3"))
	case !q.asked && len(given) > 0:
		return usage(fmt.Errorf("argument %q: want none without --explain", given[0]))
	case !q.asked && (q.exitCode != noExitCode || q.signal != "" || q.message != "" || q.addr != ""):
		return usage(errors.New("--exit-code, --signal, --message and --addr: want --explain ROLE CAUSE with them"))
	}
	return nil
}

// failure is what is asked about.
func (q *question) failure(o *controller.Options, name, cause string) (role.Failure, error) {
	f := role.Failure{Life: role.Life{Role: role.Name(name), Incarnation: 1, Rank: q.rank, Attempt: 1}, Cause: role.Cause(cause), Detail: q.message}
	r, ok := o.Job.Role(f.Life.Role)
	if !ok {
		return f, fmt.Errorf("there is no role %q; %s", name, meant(name, words(o.Job.Names()), "roles"))
	}
	if !slices.Contains(role.Causes(), f.Cause) {
		return f, fmt.Errorf("%q is no cause; %s", cause, meant(cause, words(role.Causes()), "causes"))
	}
	signal := strings.ToUpper(q.signal)
	if signal != "" && !strings.HasPrefix(signal, "SIG") {
		signal = "SIG" + signal
	}
	switch {
	case q.rank < 0 || q.rank >= r.Workers:
		return f, fmt.Errorf("--rank %d: %s has the ranks 0 to %d", q.rank, name, r.Workers-1)
	case signal != "" && q.exitCode != noExitCode:
		return f, errors.New("--exit-code and --signal: want one of them: no process ends both ways")
	case signal != "" && unix.SignalNum(signal) == 0:
		return f, fmt.Errorf("--signal %s: want the name of a signal, such as SEGV", q.signal)
	case q.exitCode != noExitCode && (q.exitCode < 0 || q.exitCode > 255):
		return f, fmt.Errorf("--exit-code %d: want 0 to 255", q.exitCode)
	case signal != "":
		f.Exit = &role.Exit{Signal: signal}
	case q.exitCode != noExitCode:
		f.Exit = &role.Exit{Code: q.exitCode}
	}
	if f.Exit != nil && f.Detail == "" {
		f.Detail = f.Exit.String()
	}
	return f, nil
}

func words[T ~string](names []T) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return out
}

func meant(word string, known []string, kind string) string {
	if near := nearest.Word(word, known); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return fmt.Sprintf("the %s are %s", kind, strings.Join(known, ", "))
}

// policyIn is the policy that the options ask for.
func policyIn(o *controller.Options) restart.Policy {
	check := restart.HealthCheckIsOff
	if o.UseHealthCheck {
		check = restart.HealthCheckOn
	}
	return restart.PolicyOf(o.Job, check, o.MaxGlobalRestart, o.NoProgressLives)
}

// explain prints what would be done about a failure, and why.
func (p *program) explain(ctx context.Context, o *controller.Options, q *question, name, cause string) error {
	f, err := q.failure(o, name, cause)
	if err != nil {
		return usage(err)
	}
	policy, ledger := policyIn(o), restart.NewLedger()
	r, _ := o.Job.Role(f.Life.Role)
	at := restart.Standing{Available: r.Workers - 1}
	if q.addr != "" {
		if policy, ledger, at, err = spentAt(ctx, o, q.addr, f.Life); err != nil {
			return err
		}
	}
	w := p.stdout
	fmt.Fprintf(w, "%s fails now: %s", f.Subject(), f.Cause)
	if f.Detail != "" {
		fmt.Fprintf(w, ", %s", f.Line())
	}
	fmt.Fprintf(w, "\n  global restarts spent %d of %d, of %s %d in place\n", ledger.Global, policy.MaxGlobal, name, ledger.Roles[f.Life.Role].InPlace)
	return printLines(w, restart.Explain(policy, ledger, at, f), restart.Decide(policy, ledger, map[role.Name]restart.Standing{f.Life.Role: at}, []role.Failure{f}))
}

// spentAt asks a running controller what its job has spent, and how the role stands.
func spentAt(ctx context.Context, o *controller.Options, addr string, life role.Life) (p restart.Policy, l restart.Ledger, at restart.Standing, err error) {
	p, l = policyIn(o), restart.NewLedger()
	var j httpapi.Job
	var list httpapi.RoleList
	if err := askAll(ctx, addr, o.TokenFile, map[string]any{"/api/v1/job": &j, "/api/v1/roles": &list}); err != nil {
		return p, l, at, err
	}
	if j.Name != o.Job.Name {
		return p, l, at, usage(fmt.Errorf("the job at %s is %s, not %s: give its job file with --job", addr, j.Name, o.Job.Name))
	}
	p.HealthCheck, p.MaxGlobal, l.Global = j.HealthCheck, j.MaxGlobalRestarts, j.GlobalRestarts
	for _, r := range list.Roles {
		l.Roles[r.Name] = restart.Spent{InPlace: r.RestartCount, EverBegan: r.Incarnation > 0}
		if r.Name != life.Role {
			continue
		}
		at = restart.Standing{Step: r.CurrentStep, Checkpoint: r.CurrentStep}
		for _, k := range r.Workers {
			if k.State == role.WorkerReady && k.Rank != life.Rank {
				at.Available++
			}
		}
	}
	return p, l, at, nil
}

func printLines(w io.Writer, lines []restart.Line, d restart.Decision) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range lines {
		mark := "-"
		if l.Fits {
			mark = "*"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", mark, l.Rule, l.Why)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, inWords(d))
	return err
}

// inWords says what a decision does.
func inWords(d restart.Decision) string {
	switch {
	case d.Alone:
		return fmt.Sprintf("restart of %s rank %d alone", d.Roles[0], d.Rank)
	case d.Action == role.InPlace:
		return "restart in place of " + restart.Names(d.Roles)
	case d.Action == role.Global:
		return "global restart of " + restart.Names(d.Roles)
	case d.Action == role.Stop:
		return fmt.Sprintf("stop of the job, exit %d", d.Exit)
	default:
		return "nothing is done"
	}
}
