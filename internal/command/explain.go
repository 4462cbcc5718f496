package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"vigil/internal/controller"
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
	addr     string // of a running controller; empty: this job file, with nothing spent
}

func (q *question) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&q.asked, "explain", false, "say, line by line, what would be done now about a failure: policy --explain ROLE CAUSE")
	fs.IntVar(&q.exitCode, "exit-code", httpapi.NoExitCode, "with --explain: the process ended with this code")
	fs.StringVar(&q.signal, "signal", "", "with --explain: the process was killed by this signal")
	fs.StringVar(&q.message, "message", "", "with --explain: what the failure says")
	fs.IntVar(&q.rank, "rank", 0, "with --explain: the rank that failed")
	fs.StringVar(&q.addr, "addr", "", "with --explain: HTTP address of a running controller, HOST:PORT or URL: it says what it would do now, by its own policy; default: by this job file and these flags, with nothing spent")
}

// args checks the arguments of the policy command.
func (q *question) args(given []string) error {
	switch {
	case q.asked && len(given) != 2:
		return usage(errors.New("policy --explain: want a role and a cause, such as: policy --explain critic exited --exit-code 3"))
	case !q.asked && len(given) > 0:
		return usage(fmt.Errorf("argument %q: want none without --explain", given[0]))
	case !q.asked && (q.exitCode != httpapi.NoExitCode || q.signal != "" || q.message != "" || q.addr != ""):
		return usage(errors.New("--exit-code, --signal, --message and --addr: want --explain ROLE CAUSE with them"))
	}
	return nil
}

// explain prints what would be done about a failure, and why: by a running controller, or in a job that has
// spent nothing.
func (p *program) explain(ctx context.Context, o *controller.Options, q *question, name, cause string) error {
	asked := httpapi.Question{Role: role.Name(name), Cause: role.Cause(cause), Rank: q.rank, ExitCode: q.exitCode, Signal: q.signal, Message: q.message}
	if q.addr == "" {
		f, err := controller.Foresee(o, &asked)
		if err != nil {
			return usage(err)
		}
		return printForecast(p.stdout, &f)
	}
	values := url.Values{"role": {name}, "cause": {cause}, "rank": {strconv.Itoa(q.rank)}, "exit_code": {strconv.Itoa(q.exitCode)}, "signal": {q.signal}, "message": {q.message}}
	var f httpapi.Forecast
	err := askAll(ctx, q.addr, o.TokenFile, map[string]any{"/api/v1/policy/explain?" + values.Encode(): &f})
	if refused := new(answerError); errors.As(err, &refused) && refused.status == http.StatusUnprocessableEntity {
		return usage(err)
	} else if err != nil {
		return err
	}
	return printForecast(p.stdout, &f)
}

func printForecast(w io.Writer, f *httpapi.Forecast) error {
	subject := role.Failure{Life: role.Life{Role: f.Role, Rank: f.Rank}}.Subject()
	fmt.Fprintf(w, "%s fails now: %s", subject, f.Cause)
	if f.Detail != "" {
		fmt.Fprintf(w, ", %s", f.Detail)
	}
	fmt.Fprintf(w, "\n  global restarts spent %d of %d, of %s %d in place\n", f.GlobalRestarts, f.MaxGlobalRestarts, f.Role, f.RestartCount)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range f.Lines {
		mark := "-"
		if l.Fits {
			mark = "*"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", mark, l.Rule, l.Why)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, inWords(f))
	return err
}

// inWords says what would be done.
func inWords(f *httpapi.Forecast) string {
	wait := ""
	if f.WaitSeconds > 0 {
		wait = fmt.Sprintf(", after a back-off of %s at most", time.Duration(f.WaitSeconds*float64(time.Second)).Round(time.Millisecond))
	}
	switch {
	case f.Alone:
		return fmt.Sprintf("restart of %s rank %d alone%s", f.Role, f.Rank, wait)
	case f.Action == role.InPlace:
		return "restart in place of " + restart.Names(f.Roles) + wait
	case f.Action == role.Global:
		return "global restart of " + restart.Names(f.Roles) + wait
	case f.Action == role.Stop && f.ExitCode != nil:
		return fmt.Sprintf("stop of the job, exit %d", *f.ExitCode)
	default:
		return "nothing is done"
	}
}
