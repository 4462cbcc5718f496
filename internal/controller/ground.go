package controller

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/devices"
	"vigil/internal/journal"
	"vigil/internal/launcher/local"
	"vigil/internal/placement"
	"vigil/internal/proc"
	"vigil/internal/wire/crowd"
)

// ground is what a run stands on: what it has opened of the machine.
type ground struct {
	uid     string
	host    string
	boot    string
	epoch   uint64 // of this controller among those of the run
	resumed bool   // the run was begun by an earlier controller
	// rebooted: no process that the journal knows lives, and its pids may be strangers'.
	rebooted bool
	was      journal.Run // the run that the journal knew when it was opened; zero: none
	heard    time.Time   // when the journal was written last, before this controller; zero: it was not there
	again    string      // the command that starts a controller of the run again; empty: not known
	reopens  bool        // the run was closed, and is to go on
	// reopening is what changes in the journal then.
	reopening []journal.Entry
	living    map[string][]survivor // services of runs of the state directory, this one's too, before anything was done
	owed      []local.Obligation    // of other runs
	journal   *journal.Journal
	kept      groundRecord // of the run
	secret    string       // the job's, for services
	token     string       // of the HTTP interface; may be empty
	home      string       // the state directory
	folder    *stateFolder // the same, kept
	state     string       // folder of the run
	logs      string
	// incidents is the folder of what is kept of them: ID.json, and evidence in ID/.
	incidents string
	runtime   proc.Dir
	keeper    *proc.Keeper
	claim     *devices.Claim
	// deviceVariable shows workers their devices; those that reserve none have it as shown says, nil: as it is.
	deviceVariable string
	shown          *string
	close          func() error // of the journal
	ports          *proc.Ports
	nodes          []placement.Node
	http           net.Listener
	metrics        net.Listener // of --metrics-listen; may be nil
	socket         net.Listener // for services
	needs          needs
	streams        *crowd.Streams // of the HTTP interface
	reserve        *proc.Reserve  // descriptors for what must be started
}

// openGround opens everything or nothing; what it has opened is on the stack of endings.
func openGround(ctx context.Context, o *Options, log *slog.Logger, end *endings) (*ground, error) {
	g := &ground{again: o.Command.Again, needs: needsOf(o)}
	var err error
	if err := g.needs.check(); err != nil {
		return nil, err
	}
	if g.host, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("find this machine's name: %w", err)
	}
	if g.boot, err = bootID(); err != nil {
		return nil, fmt.Errorf("find this machine's boot: %w", err)
	}
	security, err := o.security()
	if err != nil {
		return nil, err
	}
	g.token = security.Token
	if err := g.openDirs(o, log, end); err != nil {
		return nil, g.ifOpen(err)
	}
	if err := g.openHTTP(o, security, end); err != nil {
		return nil, err
	}
	if !g.resumed { // else what lives of it is counted
		if err := g.needs.checkTasks(); err != nil {
			return nil, err
		}
	}
	if _, _, known := proc.ProcessRoom(); known {
		proc.SpareThreads(4 + min(g.needs.services, 64))
	}
	g.reserve = proc.HoldBack(heldBack(proc.FileLimit()))
	if err := g.openMachine(ctx, o, log, end); err != nil {
		return nil, err
	}
	if g.socket, err = g.listen(); err != nil {
		return nil, g.notNow(err)
	}
	end.add("socket", func(context.Context) error { return ignoreClosed(g.socket.Close()) })
	return g, nil
}

// notNow marks what the machine has against going on with an open run.
func (g *ground) notNow(err error) error {
	if err == nil || !g.resumed {
		return err
	}
	return &StaysOpenError{UID: g.uid, Err: err, Again: g.again}
}

// listen opens the socket for services. Its name is the run's, so that services find the next controller
// where they had the last; the state directory's lock says that there is no other.
func (g *ground) listen() (net.Listener, error) {
	sum := sha256.Sum256([]byte(g.uid))
	path := filepath.Join(g.runtime.Path(), "c-"+hex.EncodeToString(sum[:8])+".sock")
	if _, err := proc.RemoveStale(path); err != nil {
		return nil, err
	}
	if err := proc.CheckSocketPath(path); err != nil {
		return nil, err
	}
	l, err := proc.ListenUnix(path)
	if err != nil {
		return nil, err
	}
	return crowd.Hold(l, g.needs.callers()), nil
}

// beginRun records the run, or that another controller goes on with it. From here on the run is open.
func (g *ground) beginRun(o *Options) error {
	if !g.resumed {
		run := journal.Run{UID: g.uid, Job: o.Job.Name, Host: g.host, BootID: g.boot, Began: time.Now(), Epoch: 1}
		var owed []journal.Entry
		for _, o := range g.owed {
			owed = append(owed, recordOf(o))
		}
		if err := g.journal.BeginRun(run, owed...); err != nil {
			return err
		}
		g.epoch = 1
	} else {
		if g.reopens {
			if err := g.journal.ReopenRun(g.reopening...); err != nil {
				return err
			}
		}
		epoch, err := g.journal.NextEpoch()
		if err != nil {
			return err
		}
		g.epoch = epoch
		if err := g.forgetProcesses(); err != nil {
			return err
		}
	}
	if err := g.journal.UpdateRun(func(r *journal.Run) {
		r.Host, r.BootID, r.JobDigest, r.Command, r.Folder, r.Left = g.host, g.boot, digest(o.Job), o.Command.Program, o.Command.Folder, nil
	}); err != nil {
		return err
	}
	g.kept.Secret, g.kept.HTTP = g.secret, g.http.Addr().String()
	ctx, cancel := context.WithTimeout(context.Background(), recordTime)
	defer cancel()
	return g.journal.Write(append(roleEntries(o.Job), journal.Put(journal.Ground, groundKey, g.kept))...).Wait(ctx)
}

// forgetProcesses drops what is recorded of processes that a boot has ended, not later than the boot is
// recorded.
func (g *ground) forgetProcesses() error {
	if !g.rebooted {
		return nil
	}
	services, err := journal.Read[serviceRecord](g.journal, journal.Service)
	if err != nil {
		return err
	}
	for key := range services {
		g.journal.Write(journal.Delete(journal.Service, key))
	}
	owed, err := journal.Read[obligationRecord](g.journal, journal.Obligation)
	for key := range owed {
		g.journal.Write(journal.Delete(journal.Obligation, key))
	}
	return err
}

// recordTime bounds the wait for the disk before a run begins.
const recordTime = 10 * time.Second

// openMachine becomes the keeper of processes, ends other runs, and claims ports and devices.
func (g *ground) openMachine(ctx context.Context, o *Options, log *slog.Logger, end *endings) error {
	var err error
	if g.keeper, err = proc.NewKeeper(proc.Options{Log: log}); err != nil {
		return g.notNow(err)
	}
	end.add("processes", func(context.Context) error { return g.keeper.Close() })
	if err := g.endOtherRuns(ctx, o.ForgetState, o.Job.Name, log); err != nil {
		return err
	}
	return g.claimMachine(ctx, o, log, end)
}

// claimMachine claims ports and devices.
func (g *ground) claimMachine(ctx context.Context, o *Options, log *slog.Logger, end *endings) error {
	var err error
	if g.ports, err = g.runtime.Ports(); err != nil {
		return g.notNow(err)
	}
	end.add("ports", func(context.Context) error { return g.ports.Close() })
	if err := g.keepGuess(o); err != nil {
		return err
	}
	need := 0
	for i := range o.Job.Roles {
		need += o.Job.Roles[i].Workers * o.Job.Roles[i].Resources.GPUs
	}
	if g.resumed { // who lives keeps what it has, also where the job needs less now
		need = max(need, len(g.kept.Devices))
	}
	if err := g.claimDevices(ctx, o, need, log); err != nil {
		return err
	}
	end.add("devices", func(context.Context) error { return g.claim.Close() })
	g.nodes, err = nodesOf(g.host, o.FakeNodes, g.claim.IDs())
	return err
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

// keptFirst puts those devices first that the run has had before.
func keptFirst(all []devices.Device, kept []string) []devices.Device {
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b devices.Device) int {
		return cmp.Compare(order(kept, a.ID), order(kept, b.ID))
	})
	return out
}

func order(list []string, word string) int {
	if i := slices.Index(list, word); i >= 0 {
		return i
	}
	return len(list)
}

// ours reports whether a process is a worker of this run: one that outlived a controller of it.
func (g *ground) ours(pid int) bool {
	return strings.HasPrefix(proc.Environ(pid)[proc.Mark], g.uid+"/")
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
