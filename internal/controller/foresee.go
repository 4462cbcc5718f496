package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/nearest"
	"vigil/internal/restart"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// PolicyIn is the policy that the options ask for.
func PolicyIn(o *Options) restart.Policy {
	onOff := restart.HealthCheckIsOff
	if o.UseHealthCheck {
		onOff = restart.HealthCheckOn
	}
	return restart.PolicyOf(o.Job, onOff, o.MaxGlobalRestart, o.NoProgressLives)
}

// Foresee says what would be done about a failure in a job that has spent nothing, with all workers ready and at
// its newest checkpoint. The error says what is wrong with the question.
func Foresee(o *Options, q *httpapi.Question) (httpapi.Forecast, error) {
	f, err := failureOf(o.Job, q)
	if err != nil {
		return httpapi.Forecast{}, err
	}
	standing := map[role.Name]restart.Standing{}
	for i := range o.Job.Roles {
		r := &o.Job.Roles[i]
		at := restart.Standing{Available: r.Workers}
		if r.Name == f.Life.Role {
			at.Available--
		}
		standing[r.Name] = at
	}
	p := PolicyIn(o)
	return forecast(p, f, restart.Foresee(p, restart.NewLedger(), standing, f, time.Now())), nil
}

// Foresee says what would be done about a failure now.
func (v view) Foresee(q *httpapi.Question) (httpapi.Forecast, error) {
	f, err := failureOf(v.opts.Job, q)
	if err != nil {
		return httpapi.Forecast{}, fmt.Errorf("%w: %w", httpapi.ErrQuestion, err)
	}
	rec, _ := v.store.Record(f.Life.Role)
	lost := slices.ContainsFunc(rec.Ranks, func(k health.RankRecord) bool {
		return k.Rank == f.Life.Rank && k.State == role.WorkerReady && !k.Unwell && !k.Held
	})
	return forecast(v.engine.Policy, f, v.engine.Foresee(f, lost)), nil
}

// failureOf is the failure that is asked about.
func failureOf(j *job.Job, q *httpapi.Question) (role.Failure, error) {
	f := role.Failure{Life: role.Life{Role: q.Role, Incarnation: 1, Rank: q.Rank, Attempt: 1}, Cause: q.Cause, Detail: q.Message}
	r, ok := j.Role(q.Role)
	if !ok {
		return f, fmt.Errorf("there is no role %q; %s", q.Role, nearestOf(string(q.Role), j.Names(), "roles"))
	}
	if !slices.Contains(role.Causes(), q.Cause) {
		return f, fmt.Errorf("%q is no cause; %s", q.Cause, nearestOf(string(q.Cause), role.Causes(), "causes"))
	}
	signal := strings.ToUpper(q.Signal)
	if signal != "" && !strings.HasPrefix(signal, "SIG") {
		signal = "SIG" + signal
	}
	switch {
	case q.Rank < 0 || q.Rank >= r.Workers:
		return f, fmt.Errorf("rank %d: %s has the ranks 0 to %d", q.Rank, q.Role, r.Workers-1)
	case signal != "" && q.ExitCode != httpapi.NoExitCode:
		return f, fmt.Errorf("exit code %d and signal %s: want one of them: no process ends both ways", q.ExitCode, q.Signal)
	case signal != "" && unix.SignalNum(signal) == 0:
		return f, fmt.Errorf("signal %s: want the name of a signal, such as SEGV", q.Signal)
	case q.ExitCode != httpapi.NoExitCode && (q.ExitCode < 0 || q.ExitCode > 255):
		return f, fmt.Errorf("exit code %d: want 0 to 255", q.ExitCode)
	case signal != "":
		f.Exit = &role.Exit{Signal: signal}
	case q.ExitCode != httpapi.NoExitCode:
		f.Exit = &role.Exit{Code: q.ExitCode}
	}
	if f.Exit != nil && f.Detail == "" {
		f.Detail = f.Exit.String()
	}
	return f, nil
}

func nearestOf[T ~string](word string, known []T, kind string) string {
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	if near := nearest.Word(word, names); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return fmt.Sprintf("the %s are %s", kind, strings.Join(names, ", "))
}

// forecast is the answer as the wire has it.
func forecast(p restart.Policy, f role.Failure, c restart.Forecast) httpapi.Forecast {
	d := c.Decision
	out := httpapi.Forecast{
		Role: f.Life.Role, Rank: f.Life.Rank, Cause: f.Cause, Detail: f.Line(), GlobalRestarts: c.Spent.Global, MaxGlobalRestarts: p.MaxGlobal,
		RestartCount: c.Spent.Roles[f.Life.Role].InPlace, Action: d.Action, Roles: d.Roles, Alone: d.Alone, WaitSeconds: c.Wait.Seconds(),
	}
	if d.Action == role.Stop {
		out.ExitCode = &d.Exit
	}
	for _, l := range c.Lines {
		out.Lines = append(out.Lines, httpapi.PolicyLine{Rule: string(l.Rule), Fits: l.Fits, Why: l.Why})
	}
	return out
}
