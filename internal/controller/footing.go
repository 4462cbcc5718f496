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

// footing is what holds while files of the runtime directory are made again.
type footing struct {
	mu     sync.Mutex
	end    bool  // the socket is being closed
	failed error // why files could not be made again
}

// followFooting makes again what is removed from the runtime directory, and returns what ends that.
func (c *Controller) followFooting() func(context.Context) error {
	end := every(lookAtFooting, func() { _ = c.regain() }) // what fails has been said, and has ended the job
	return func(ctx context.Context) error {
		c.footing.mu.Lock()
		c.footing.end = true
		c.footing.mu.Unlock()
		return end(ctx)
	}
}

// regain makes again what has been removed from the runtime directory: the directory, the controller's
// socket, the leases of ports. Sessions with services are not touched, and services
// make their own files again. Where that cannot be done the job is stopped, with that as its one reason:
// every repair would fail of it.
func (c *Controller) regain() error {
	c.footing.mu.Lock()
	defer c.footing.mu.Unlock()
	if c.footing.end || c.footing.failed != nil {
		return c.footing.failed
	}
	if c.footing.failed = c.regainLocked(); c.footing.failed != nil {
		c.engine.StopJob(c.footing.failed.Error(), 1)
	}
	return c.footing.failed
}

func (c *Controller) regainLocked() error {
	g := c.ground
	path, dir := g.socket.Addr().String(), g.runtime.Path()
	noSocket, noLeases := proc.Gone(path), proc.Gone(g.ports.Folder())
	if !noSocket && !noLeases {
		return nil
	}
	c.log.Warn("files were removed from the runtime directory while the job runs: making them again", "dir", dir)
	if err := g.runtime.Restore(); err != nil {
		return fmt.Errorf("the runtime directory %s was removed while the job ran, and cannot be made again: %w", dir, err)
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
	return nil
}
