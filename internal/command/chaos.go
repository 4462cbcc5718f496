package command

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vigil/internal/controller"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/settings"
	"vigil/internal/wire/httpapi"
)

// chaos breaks a job for a while.
type chaos struct {
	ctx      context.Context
	chance   *rand.Rand
	addr     string
	token    string
	pause    time.Duration
	state    status
	log      io.Writer
	stopped  []proc.Ident // by a fault that does not let it run on by itself
	squeezed []string     // limits of cgroups
	daemons  []*exec.Cmd
}

// chaosCommand is for those who want to see whether their job survives. It is not listed.
func (p *program) chaosCommand() *cobra.Command {
	var seed uint64
	var every, lasts, pause time.Duration
	var only []string
	cmd := &cobra.Command{
		Use: "chaos", Short: "Break a running job of this machine at random, to see whether it survives", Args: noArgs, Hidden: true,
		Long: "Break a running job of this machine at random, to see whether it survives. Each line says what was done.\n\nFaults:\n" + listFaults(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen, err := chooseFaults(only)
			if err != nil {
				return usage(err)
			}
			if every <= 0 || lasts <= 0 || pause <= 0 {
				return usage(fmt.Errorf("--every %s --for %s --pause %s: want more than 0", every, lasts, pause))
			}
			if seed == 0 {
				seed = rand.Uint64()
			}
			c := &chaos{ctx: cmd.Context(), pause: pause, chance: rand.New(rand.NewPCG(seed, 0)), log: p.stdout, //nolint:gosec // chance, not a secret
				addr: settings.Peek(cmd.Flags(), p.environ, "http"), token: settings.Peek(cmd.Flags(), p.environ, "token-file")}
			if c.ctx == nil {
				c.ctx = context.Background()
			}
			c.say("seed %d, a fault every %s for %s", seed, every, lasts)
			return c.run(chosen, every, lasts)
		},
	}
	cmd.Flags().String("http", controller.DefaultHTTP, "the controller's HTTP address, HOST:PORT or URL")
	cmd.Flags().String("token-file", "", "file with the bearer token")
	cmd.Flags().Uint64Var(&seed, "seed", 0, "of the chance; 0: one is chosen and printed")
	cmd.Flags().DurationVar(&every, "every", 15*time.Second, "between two faults")
	cmd.Flags().DurationVar(&lasts, "for", 5*time.Minute, "how long")
	cmd.Flags().DurationVar(&pause, "pause", 5*time.Second, "how long what is paused, slowed or filled stays so")
	cmd.Flags().StringSliceVar(&only, "fault", nil, "only these; default: all but "+strings.Join(onlyByName, " and "))
	return cmd
}

func listFaults() string {
	var b strings.Builder
	for _, f := range faults {
		fmt.Fprintf(&b, "  %-17s %s\n", f.name, f.what)
	}
	return b.String()
}

// chooseFaults returns the faults of those names; without names all that a job survives by itself.
func chooseFaults(names []string) ([]fault, error) {
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return slices.Contains(onlyByName, f.name) }), nil
	}
	var chosen []fault
	for _, name := range names {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("--fault %s: there is none of that name; the faults are\n%s", name, listFaults())
		}
		chosen = append(chosen, faults[i])
	}
	return chosen, nil
}

func (c *chaos) say(format string, args ...any) {
	fmt.Fprintf(c.log, "%s %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// run does one fault after the other. A job that has ended ends it, and so does ctx. A controller that does not
// answer ends it only at the beginning: it may be one of the faults.
func (c *chaos) run(chosen []fault, every, lasts time.Duration) (err error) {
	if c.state, err = ask(c.ctx, c.addr, c.token); err != nil {
		return err
	}
	defer c.tidy()
	end := time.NewTimer(lasts)
	defer end.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return nil
		case <-end.C:
			c.say("done")
			return nil
		case <-tick.C:
		}
		if c.state, err = ask(c.ctx, c.addr, c.token); err != nil {
			c.say("the controller does not answer: %v", err)
			continue
		}
		if c.state.Job.Ended != nil {
			c.say("the job has ended: %s", c.state.Job.Why)
			return nil
		}
		all := c.victims()
		if len(all) == 0 {
			c.say("nobody runs: the job is %s", c.state.Job.State)
			continue
		}
		f, v := chosen[c.chance.IntN(len(chosen))], all[c.chance.IntN(len(all))]
		c.say("%s: %s", f.name, v)
		if err := f.do(c, v); err != nil {
			c.say("%s was not done: %v", f.name, err)
		}
	}
}

// tidy ends what the faults have left.
func (c *chaos) tidy() {
	for _, id := range c.stopped {
		if id.Alive() {
			_ = unix.Kill(id.PID, unix.SIGCONT) // it may have ended
		}
	}
	for _, limit := range c.squeezed {
		_ = os.WriteFile(limit, []byte("max"), 0) // it has ended with its worker, or not
	}
	for _, d := range c.daemons {
		_ = d.Process.Kill() // the same
		_ = d.Wait()
	}
}

// victims are the workers that run, in the order of the job.
func (c *chaos) victims() []victim {
	var all []victim
	for _, r := range c.state.Roles {
		for _, w := range r.Workers {
			if w.PID > 0 && (w.State == role.WorkerReady || w.State == role.WorkerStarting || w.State == role.WorkerQuarantined) && ofJob(w, c.state.Job) {
				all = append(all, victim{r.Name, w.Rank, w.PID})
			}
		}
	}
	return all
}

// ofJob reports whether the pid is still that of a process with the worker's mark, so that no stranger is
// hit who has the pid by now.
func ofJob(w httpapi.Worker, j httpapi.Job) bool {
	return strings.HasPrefix(proc.Environ(w.PID)[proc.Mark], j.UID+"/")
}
