package command

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vigil/internal/controller"
	"vigil/internal/role"
	"vigil/internal/settings"
	"vigil/internal/wire/httpapi"
)

// fault is one way to break a running job from outside.
type fault struct {
	name string
	what string
	do   func(*chaos, victim) error
}

// victim is a worker of the job.
type victim struct {
	role role.Name
	rank int
	pid  int
}

func (v victim) String() string { return fmt.Sprintf("%s rank %d (pid %d)", v.role, v.rank, v.pid) }

// faults are what chaos can do. Each is bounded: what is stopped is let run on.
var faults = []fault{
	{"kill", "SIGKILL to a worker", signalling(unix.SIGKILL)},
	{"segv", "SIGSEGV to a worker", signalling(unix.SIGSEGV)},
	{"term", "SIGTERM to a worker", signalling(unix.SIGTERM)},
	{"stop", "SIGSTOP to a worker", signalling(unix.SIGSTOP)},
	{"pause", "SIGSTOP to a worker, and SIGCONT 2 s later", pausing(2 * time.Second)},
	{"two", "SIGKILL to two workers at once", killTwo},
	{"kill-service", "SIGKILL to the service of a worker", ofParent(unix.SIGKILL)},
	{"stop-service", "SIGSTOP to the service of a worker", ofParent(unix.SIGSTOP)},
	{"pause-controller", "SIGSTOP to the controller, and SIGCONT 5 s later", pauseController},
	{"kill-controller", "SIGKILL to the controller: somebody must start it again", killController},
}

// chaos breaks a job for a while.
type chaos struct {
	ctx    context.Context
	chance *rand.Rand
	addr   string
	token  string
	state  status
	log    io.Writer
}

// chaosCommand is for those who want to see whether their job survives. It is not listed.
func (p *program) chaosCommand() *cobra.Command {
	var seed uint64
	var every, lasts time.Duration
	var only []string
	cmd := &cobra.Command{
		Use: "chaos", Short: "Break a running job of this machine at random, to see whether it survives", Args: noArgs, Hidden: true,
		Long: "Break a running job of this machine at random, to see whether it survives. Each line says what was done.\n\nFaults:\n" + listFaults(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			chosen, err := chooseFaults(only)
			if err != nil {
				return usage(err)
			}
			if every <= 0 || lasts <= 0 {
				return usage(fmt.Errorf("--every %s --for %s: want more than 0", every, lasts))
			}
			if seed == 0 {
				seed = rand.Uint64()
			}
			c := &chaos{ctx: cmd.Context(), chance: rand.New(rand.NewPCG(seed, 0)), log: p.stdout, //nolint:gosec // chance, not a secret
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
	cmd.Flags().StringSliceVar(&only, "fault", nil, "only these; default: all but kill-controller")
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
		return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.name == "kill-controller" }), nil
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

// run does one fault after the other. A job that has ended ends it, and so does ctx.
func (c *chaos) run(chosen []fault, every, lasts time.Duration) error {
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
		var err error
		if c.state, err = ask(c.ctx, c.addr, c.token); err != nil {
			return err
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
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.PID))
	return err == nil && strings.Contains("\x00"+string(environ), "\x00VIGIL_LIFE="+j.UID+"/")
}

func signalling(sig unix.Signal) func(*chaos, victim) error {
	return func(_ *chaos, v victim) error { return unix.Kill(v.pid, sig) }
}

func pausing(d time.Duration) func(*chaos, victim) error {
	return func(c *chaos, v victim) error { return c.pause(v.pid, d) }
}

// pause stops a process and lets it run on, whatever becomes of ctx.
func (c *chaos) pause(pid int, d time.Duration) error {
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ctx.Done():
	}
	return unix.Kill(pid, unix.SIGCONT)
}

func killTwo(c *chaos, v victim) error {
	all := c.victims()
	other := all[c.chance.IntN(len(all))]
	c.say("two: and %s", other)
	if err := unix.Kill(v.pid, unix.SIGKILL); err != nil {
		return err
	}
	if other.pid == v.pid {
		return nil
	}
	return unix.Kill(other.pid, unix.SIGKILL)
}

// ofParent sends a signal to the service of a worker, which is its parent.
func ofParent(sig unix.Signal) func(*chaos, victim) error {
	return func(_ *chaos, v victim) error {
		parent, err := parentOf(v.pid)
		if err != nil {
			return err
		}
		return unix.Kill(parent, sig)
	}
}

// parentOf returns the parent of a process (field 4 of /proc/PID/stat, proc(5)).
func parentOf(pid int) (int, error) {
	src, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	var state string
	var parent int
	_, rest, _ := strings.Cut(string(src[strings.LastIndexByte(string(src), ')'):]), " ")
	if _, err := fmt.Sscan(rest, &state, &parent); err != nil || parent <= 1 {
		return 0, fmt.Errorf("pid %d has no parent that could be its service", pid)
	}
	return parent, nil
}

func pauseController(c *chaos, _ victim) error { return c.pause(c.state.Job.PID, 5*time.Second) }

func killController(c *chaos, _ victim) error { return unix.Kill(c.state.Job.PID, unix.SIGKILL) }
