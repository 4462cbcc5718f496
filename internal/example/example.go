// Package example is the worker of the built-in job, which runs when no job file is given: five
// roles that learn one small task. The actor improves a policy, rollout and actor_fwd follow the
// policy that it saves, critic and advantages fit what they need; each prints a loss that falls. A
// worker needs no other to be alive. Actor and critic keep checkpoints and go on from them.
package example

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

const (
	period     = 200 * time.Millisecond // of a step
	saveEvery  = 10                     // steps between two checkpoints
	printEvery = 5                      // steps between two lines of output
)

// ErrTerminated says that the worker was ended by a signal and not by vigil's word. It is no good
// end: the training is not done.
var ErrTerminated = errors.New("terminated by a signal")

// Command returns the hidden subcommand "example-worker ROLE". It ends with exit status 0 when it is
// told STOP=1, and its Execute returns ErrTerminated after SIGTERM or SIGINT; either way the
// stateful roles have saved.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:    "example-worker ROLE",
		Short:  "Run one worker of the built-in example job",
		Hidden: true,
		Args:   cobra.ExactArgs(1),

		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			w := fromEnvironment(args[0], os.Getenv)
			w.Out = cmd.OutOrStdout()
			return w.Run(ctx)
		},
	}
}

// Worker is one worker of the example job. Its fields are what the environment tells it.
type Worker struct {
	Role   string // actor, rollout, critic, actor_fwd or advantages
	Rank   int
	Resume int64         // VIGIL_RESUME_STEP: where a role without state goes on
	Notify string        // NOTIFY_SOCKET; empty: nobody listens
	Inbox  string        // VIGIL_INBOX; empty: nobody speaks
	Dir    string        // VIGIL_EXAMPLE_DIR: of the checkpoints of all roles
	Period time.Duration // of a step
	Out    io.Writer
}

func fromEnvironment(role string, env func(string) string) Worker {
	w := Worker{Role: role, Notify: env("NOTIFY_SOCKET"), Inbox: env("VIGIL_INBOX"), Dir: env("VIGIL_EXAMPLE_DIR"), Period: period}
	w.Rank, _ = strconv.Atoi(env("VIGIL_RANK"))
	w.Resume, _ = strconv.ParseInt(env("VIGIL_RESUME_STEP"), 10, 64)
	if w.Dir == "" {
		job, _, _ := strings.Cut(env("VIGIL_LIFE"), "/")
		if job == "" {
			job = "alone"
		}
		w.Dir = filepath.Join(os.TempDir(), fmt.Sprintf("vigil-example-%d-%s", os.Getuid(), job))
	}
	return w
}

func (w Worker) folder(role string, rank int) folder {
	return folder(filepath.Join(w.Dir, role, strconv.Itoa(rank)))
}

func (w Worker) stateful() bool { return w.Role == "actor" || w.Role == "critic" }

// Run steps until it is told to stop, which is nil, or until ctx ends, which is ErrTerminated. Any
// other error is a role that there is not, or an inbox or a checkpoint that cannot be written.
func (w Worker) Run(ctx context.Context) error {
	learn, ok := lessons(w.followed)[w.Role]
	if !ok {
		return fmt.Errorf("run example worker: no role %q (there are actor, rollout, critic, actor_fwd, advantages)", w.Role)
	}
	orders, closeInbox, err := inbox(w.Inbox)
	if err != nil {
		return err
	}
	defer closeInbox()
	v := newVoice(w.Notify)
	defer v.close()
	m := w.begin()
	v.insist("READY=1", "STATUS=learning")
	tick := time.NewTicker(w.Period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return w.end(m, v, why(orders))
		case o := <-orders:
			if o.stop {
				return w.end(m, v, nil)
			}
			m.Step = o.step
			v.insist("X_VIGIL_ACK=" + o.seq)
		case <-tick.C:
			if err := w.step(&m, learn, v); err != nil {
				v.insist("X_VIGIL_ERROR=" + err.Error())
				return err
			}
		}
	}
}

// why tells a wanted end from another: vigil says STOP=1 and sends the signal in the same moment.
func why(orders <-chan order) error {
	moment := time.NewTimer(250 * time.Millisecond)
	defer moment.Stop()
	for {
		select {
		case o := <-orders:
			if o.stop {
				return nil
			}
		case <-moment.C:
			return ErrTerminated
		}
	}
}

// begin returns what the worker knows at the start: its checkpoint, or nothing at the step where its
// role is to go on.
func (w Worker) begin() mind {
	m := mind{Step: max(w.Resume, 0)}
	if !w.stateful() {
		return m
	}
	if saved, ok := w.folder(w.Role, w.Rank).load(w.Resume); ok {
		fmt.Fprintf(w.Out, "role=%s rank=%d resumed from checkpoint step=%d (asked for %d)\n", w.Role, w.Rank, saved.Step, w.Resume)
		return saved
	}
	if w.Resume > 0 {
		fmt.Fprintf(w.Out, "role=%s rank=%d has no checkpoint, counts on from step=%d with nothing learned\n", w.Role, w.Rank, w.Resume)
	}
	return m
}

// step learns once, says so, and now and then prints and saves.
func (w Worker) step(m *mind, learn lesson, v voice) error {
	m.Step++
	loss := learn(m, w.chance(m.Step))
	v.say("X_VIGIL_STEP=" + strconv.FormatInt(m.Step, 10))
	if m.Step%printEvery == 0 {
		fmt.Fprintf(w.Out, "role=%s rank=%d step=%d loss=%.4f\n", w.Role, w.Rank, m.Step, loss)
	}
	if w.stateful() && m.Step%saveEvery == 0 {
		return w.save(*m, v)
	}
	return nil
}

// chance returns the randomness of one step. It depends on the step, so that a life that goes on
// from a checkpoint learns what the life before it would have learned.
func (w Worker) chance(step int64) *rand.Rand {
	seed := uint64(w.Rank)
	for _, c := range w.Role {
		seed = seed*31 + uint64(c)
	}
	return rand.New(rand.NewPCG(seed, uint64(step)))
}

func (w Worker) save(m mind, v voice) error {
	if err := w.folder(w.Role, w.Rank).save(m); err != nil {
		return err
	}
	v.insist("X_VIGIL_CHECKPOINT=" + strconv.FormatInt(m.Step, 10))
	return nil
}

// end saves what a stateful role has learned and returns why it ends.
func (w Worker) end(m mind, v voice, why error) error {
	v.insist("STOPPING=1")
	if w.stateful() && m.Step > 0 {
		if err := w.save(m, v); err != nil {
			return err
		}
	}
	fmt.Fprintf(w.Out, "role=%s rank=%d stopped at step=%d\n", w.Role, w.Rank, m.Step)
	return why
}

// followed returns the newest policy that rank 0 of the actor has saved, or the untrained one.
func (w Worker) followed() policy {
	m, _ := w.folder("actor", 0).load(0)
	return m.Policy
}
