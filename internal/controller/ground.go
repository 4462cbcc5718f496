package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"vigil/internal/devices"
	"vigil/internal/placement"
	"vigil/internal/proc"
	"vigil/internal/wire/httpapi"
)

// ground is what a run stands on: what it has opened of the machine.
type ground struct {
	uid    string
	host   string
	secret string // the job's, for services
	token  string // of the HTTP interface; may be empty
	state  string // folder of the run
	logs   string
	// incidents is the folder of what is kept of them: ID.json, and evidence in ID/.
	incidents string
	runtime   proc.Dir
	keeper    *proc.Keeper
	ports     *proc.Ports
	nodes     []placement.Node
	http      net.Listener
	socket    net.Listener // for services
}

// openGround opens everything or nothing; what it has opened is on the stack of endings.
func openGround(ctx context.Context, o *Options, log *slog.Logger, end *endings) (*ground, error) {
	g := &ground{uid: o.Job.Name + "-" + randomHex(4), secret: randomHex(16)}
	var err error
	if g.host, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("find this machine's name: %w", err)
	}
	security, err := o.security()
	if err != nil {
		return nil, err
	}
	g.token = security.Token
	if err := g.openDirs(o, end); err != nil {
		return nil, err
	}
	if g.http, err = httpapi.Open(o.HTTP, security); err != nil {
		return nil, fmt.Errorf("--http: %w", err)
	}
	end.add("http listener", func(context.Context) error { return ignoreClosed(g.http.Close()) })
	if err := g.openMachine(ctx, o, log, end); err != nil {
		return nil, err
	}
	path, err := g.runtime.Socket("controller")
	if err != nil {
		return nil, err
	}
	if g.socket, err = proc.ListenUnix(path); err != nil {
		return nil, err
	}
	end.add("socket", func(context.Context) error { return ignoreClosed(g.socket.Close()) })
	return g, nil
}

// openDirs makes the state and runtime directories. A state directory has one controller.
func (g *ground) openDirs(o *Options, end *endings) error {
	home := o.StateDir
	if home == "" {
		all, err := StateHome()
		if err != nil {
			return err
		}
		home = filepath.Join(all, o.Job.Name)
	}
	home, err := filepath.Abs(home)
	if err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	g.state = filepath.Join(home, g.uid)
	g.logs = filepath.Join(g.state, "logs")
	g.incidents = filepath.Join(g.state, "incidents")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	lock, err := proc.Lock(filepath.Join(home, "controller.lock"))
	if held := new(proc.LockedError); errors.As(err, &held) {
		return fmt.Errorf("the state directory %s has a controller already (pid %d)", home, held.PID)
	} else if err != nil {
		return fmt.Errorf("use the state directory: %w", err)
	}
	end.add("state lock", func(context.Context) error { return lock.Unlock() })
	for _, dir := range []string{g.logs, g.incidents} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the run's directory: %w", err)
		}
	}
	if g.runtime, err = proc.OpenDir(o.RuntimeDir); err != nil {
		return fmt.Errorf("open the runtime directory: %w", err)
	}
	_, err = g.runtime.Sweep()
	return err
}

// openMachine becomes the keeper of processes and claims ports and devices.
func (g *ground) openMachine(ctx context.Context, o *Options, log *slog.Logger, end *endings) error {
	var err error
	if g.ports, err = g.runtime.Ports(); err != nil {
		return err
	}
	end.add("ports", func(context.Context) error { return g.ports.Close() })
	need := 0
	for i := range o.Job.Roles {
		need += o.Job.Roles[i].Workers * o.Job.Roles[i].Resources.GPUs
	}
	inv, err := devices.Find(ctx, devices.Options{GPUs: o.GPUs, Need: need, Fake: o.FakeGPUs, Environ: o.Environ})
	if err != nil {
		return err
	}
	claim, err := devices.Take(ctx, inv, devices.ClaimOptions{Dir: filepath.Join(g.runtime.Path(), "devices"), Job: g.uid, Wait: o.WaitGPUs,
		Say: func(err error) { log.Info("waiting for devices", "why", err) }})
	if err != nil {
		return err
	}
	end.add("devices", func(context.Context) error { return claim.Close() })
	if g.nodes, err = nodesOf(g.host, o.FakeNodes, claim.IDs()); err != nil {
		return err
	}
	if g.keeper, err = proc.NewKeeper(proc.Options{Log: log}); err != nil {
		return err
	}
	end.add("processes", func(context.Context) error { return g.keeper.Close() })
	return nil
}

// nodesOf describes this machine as one node, or as so many that share it.
func nodesOf(host string, fake int, ids []string) ([]placement.Node, error) {
	has, err := devices.Machine()
	if err != nil {
		return nil, err
	}
	if fake == 0 {
		return []placement.Node{{Name: host, CPUs: has.CPUs, Memory: has.Memory, Devices: ids, Well: true}}, nil
	}
	nodes := make([]placement.Node, fake)
	for i := range nodes {
		nodes[i] = placement.Node{Name: host + "-" + strconv.Itoa(i), CPUs: has.CPUs / float64(fake), Memory: has.Memory / int64(fake), Well: true}
		per := (len(ids) + fake - 1) / fake
		nodes[i].Devices = ids[min(i*per, len(ids)):min((i+1)*per, len(ids))]
	}
	return nodes, nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func signalName(s unix.Signal) string { return unix.SignalName(s) }
