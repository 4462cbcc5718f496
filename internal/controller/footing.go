package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	"vigil/internal/proc"
)

// lookAtFooting is how often the controller looks whether its files in the runtime directory are still
// there.
const lookAtFooting = time.Second

// footingPatience bounds how long a repair waits for a runtime directory that cannot be used.
const footingPatience = 45 * time.Second

// footing is what holds while files of the runtime directory are made again.
type footing struct {
	patience time.Duration
	mu       sync.Mutex
	end      bool   // the socket is being closed
	trouble  string // why the directory cannot be used now, as it was said last; empty: it can
	restored int    // how often files were made again
}

// look says whether the directory cannot be used now, and how often files in it were made again.
func (f *footing) look() (trouble bool, restored int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trouble != "", f.restored
}

// followFooting makes again what is removed from the runtime directory, and returns what ends that.
func (c *Controller) followFooting() func(context.Context) error {
	end := every(lookAtFooting, func() { _ = c.regain() }) // what fails has been said, and is tried again
	return func(ctx context.Context) error {
		c.footing.mu.Lock()
		c.footing.end = true
		c.footing.mu.Unlock()
		return end(ctx)
	}
}

// stand waits until the runtime directory can be used: every start needs it, and none can do without. Where that takes
// too long the job is stopped, with that as its one reason and its run open, for no restart would help.
func (c *Controller) stand(ctx context.Context) error {
	late := time.NewTimer(c.footing.patience)
	defer late.Stop()
	again := time.NewTicker(lookAtFooting)
	defer again.Stop()
	for {
		err := c.regain()
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		case <-late.C:
			c.engine.StopJob(err.Error(), exitLater)
			return err
		}
	}
}

// exitLater is the exit of a job that cannot go on now and may later: its run stays open.
const exitLater = 75

// regain makes again what has been removed from the runtime directory: the directory, the controller's
// socket, the leases of ports. Sessions with services are not touched, and services
// make their own files again. A directory that is not ours is not used: that is said once, and tried again.
func (c *Controller) regain() error {
	c.footing.mu.Lock()
	defer c.footing.mu.Unlock()
	if c.footing.end {
		return nil
	}
	err := c.regainLocked()
	switch {
	case err == nil && c.footing.trouble != "":
		c.log.Info("the runtime directory can be used again", "dir", c.ground.runtime.Path())
		c.footing.trouble = ""
	case err != nil && err.Error() != c.footing.trouble:
		c.log.Warn("running workers go on, and none can be started until the runtime directory can be used", "error", err)
		c.footing.trouble = err.Error()
	}
	return err
}

func (c *Controller) regainLocked() error {
	g := c.ground
	path, dir := g.socket.Addr().String(), g.runtime.Path()
	noSocket, noLeases := proc.Gone(path), proc.Gone(g.ports.Folder())
	if err := g.runtime.Restore(); err != nil {
		return fmt.Errorf("the runtime directory %s is not what it was when the job began, and is not used: %w", dir, err)
	}
	if !noSocket && !noLeases {
		return nil
	}
	if c.footing.trouble == "" {
		c.log.Warn("files were removed from the runtime directory while the job runs: making them again", "dir", dir)
	}
	if noSocket {
		l, err := proc.ListenUnix(path)
		if err != nil {
			return fmt.Errorf("the controller's socket was removed while the job ran, and cannot be made again: %w", err)
		}
		go func() { // until the hub stops, which closes it
			if err := c.hub.Serve(l); err != nil {
				c.log.Error("serve services at the socket that was made again", "error", err)
			}
		}()
	}
	if err := g.ports.Restore(); err != nil {
		if proc.Gone(g.ports.Folder()) {
			return fmt.Errorf("the folder of port leases was removed while the job ran, and cannot be made again: %w", err)
		}
		c.log.Warn("a port of this job is another's as well", "error", err)
	}
	c.footing.restored++
	return nil
}
