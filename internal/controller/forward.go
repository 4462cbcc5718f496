package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
)

// forwardable are the signals that a scheduler warns with and that do not stop the job. SIGURG is not among them: the
// Go runtime sends it to itself all the time.
var forwardable = []syscall.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGXCPU, unix.SIGPWR, unix.SIGCONT}

// forwardLimit bounds how long services may take to hand a signal on.
const forwardLimit = 10 * time.Second

// ParseForward returns the signals that --forward-signal names, with or without SIG.
func ParseForward(names []string) ([]syscall.Signal, error) {
	var all []syscall.Signal
	var wrong []error
	for _, name := range names {
		sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(name)), "SIG"))
		if !slices.Contains(forwardable, sig) {
			var want []string
			for _, s := range forwardable {
				want = append(want, strings.TrimPrefix(unix.SignalName(s), "SIG"))
			}
			wrong = append(wrong, fmt.Errorf("--forward-signal %q: want some of %s", name, strings.Join(want, ", ")))
			continue
		}
		all = append(all, sig)
	}
	return all, errors.Join(wrong...)
}

// Warnings are the signals that are no order to stop and that somebody may expect an answer to. SIGCONT is not one: a
// scheduler sends it before it stops a job.
func Warnings(forward []syscall.Signal) []os.Signal {
	var all []os.Signal
	for _, s := range forwardable {
		if s != unix.SIGCONT || slices.Contains(forward, s) {
			all = append(all, s)
		}
	}
	return all
}

// Forward hands a signal on to the workers of all roles, if --forward-signal names it; else it is said that it was not.
func (c *Controller) Forward(sig syscall.Signal) {
	name := unix.SignalName(sig)
	if forward, err := ParseForward(c.opts.ForwardSignal); err != nil || !slices.Contains(forward, sig) {
		short := strings.TrimPrefix(name, "SIG")
		c.log.Warn(fmt.Sprintf("%s was received and is not handed on to the workers: --forward-signal %s does that", name, short))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), forwardLimit)
	defer cancel()
	c.log.Info(name + " is handed on to the workers")
	var group errgroup.Group
	for i := range c.opts.Job.Roles {
		r := &c.opts.Job.Roles[i]
		group.Go(func() error { return c.crew.forward(ctx, r, name) })
	}
	if err := group.Wait(); err != nil {
		c.log.Warn(name+" does not reach all workers", "error", err)
	}
}

// forward hands a signal on to the workers of one role.
func (w *crew) forward(ctx context.Context, r *job.Role, name string) error {
	return w.each(r.Name, func(m *member) error {
		_, err := w.hub.Call(ctx, m.id, &api.ToService{Order: &api.ToService_Forward{Forward: &api.Forward{Signal: name}}})
		return err
	})
}
