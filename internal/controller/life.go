package controller

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/journal"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/rpc"
)

// peersDelay is how long changes are gathered before the peers are told.
const peersDelay = 20 * time.Millisecond

// Run starts the workers of an incarnation on every service of the role, with ports that no life
// before it had.
func (w *crew) Run(ctx context.Context, name role.Name, incarnation int, step int64) error {
	back := w.ground.reserve.Lend()
	defer back()
	return lacking(w.runRole(ctx, name, incarnation, step))
}

func (w *crew) runRole(ctx context.Context, name role.Name, incarnation int, step int64) error {
	r, _ := w.opts.Job.Role(name)
	squads, err := w.places.squads(r)
	if err != nil {
		return err
	}
	if err := w.lease(ctx, r); err != nil {
		return err
	}
	var group errgroup.Group
	for i, order := range w.runOrders(r, squads, incarnation, step) {
		id := rpc.ServiceID{Role: name, Index: i}
		group.Go(func() error {
			_, err := w.hub.Call(ctx, id, &api.ToService{Order: &api.ToService_Run{Run: order}})
			return err
		})
	}
	return group.Wait()
}

// runOrders returns what each service of the role is told, by its index.
func (w *crew) runOrders(r *job.Role, squads []squad, incarnation int, step int64) []*api.Run {
	peers, peersJSON := w.peerAddresses(), w.peersJSON()
	w.mu.Lock()
	master := uint32(0)
	if got := w.leased[r.Name]; len(got) > 0 {
		master = uint32(got[0])
	}
	w.mu.Unlock()
	orders := make([]*api.Run, len(squads))
	for i, s := range squads {
		orders[i] = &api.Run{
			Incarnation: uint64(incarnation), ResumeStep: step, WorldSize: uint32(r.Workers), FirstRank: uint32(s.ranks[0]),
			GroupRank: uint32(i), GroupWorldSize: uint32(len(squads)), MasterAddr: proc.Loopback(), MasterPort: master,
			MaxRestarts: uint32(w.opts.MaxGlobalRestart), Peers: peers, PeersJson: peersJSON, ControllerUrl: w.workerURL(),
		}
		for _, rank := range s.ranks {
			visible := s.devices
			if r.Devices == job.DevicesOwn {
				visible = s.own[rank]
			}
			orders[i].Workers = append(orders[i].Workers, &api.Worker{Rank: uint32(rank), Attempt: 1, Devices: visible, Ports: w.portsOf(r.Name, rank)})
		}
	}
	return orders
}

// lease takes fresh ports for a life: one for its store, the first, and those that the role names for
// each rank.
func (w *crew) lease(ctx context.Context, r *job.Role) error {
	w.giveBack(r.Name)
	if err := w.stand(ctx); err != nil {
		return err
	}
	auto := 0
	for _, p := range r.Ports {
		if p.Number == 0 {
			auto++
		}
	}
	got, err := w.ground.ports.Lease(1 + auto*r.Workers)
	if err != nil {
		return err
	}
	named := map[int]map[string]int{}
	next := got[1:]
	for rank := range r.Workers {
		named[rank] = map[string]int{}
		for _, p := range r.Ports {
			named[rank][p.Name] = p.Number
			if p.Number == 0 {
				named[rank][p.Name], next = next[0], next[1:]
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leased[r.Name], w.ports[r.Name] = got, named
	w.ground.journal.Write(journal.Put(journal.Lease, string(r.Name), leaseRecord{got, named}))
	return nil
}

// giveBack ends the leases of a role's life.
func (w *crew) giveBack(name role.Name) {
	w.mu.Lock()
	got := w.leased[name]
	delete(w.leased, name)
	delete(w.ports, name)
	w.mu.Unlock()
	w.ground.journal.Write(journal.Delete(journal.Lease, string(name)))
	w.ground.ports.Release(got...)
	w.touch()
}

func (w *crew) portsOf(name role.Name, rank int) map[string]uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]uint32{}
	for k, v := range w.ports[name][rank] {
		out[k] = uint32(v)
	}
	return out
}

// peersOf returns where the role's workers can be reached.
func (w *crew) peersOf(name role.Name) []httpapi.Peer {
	rec, err := w.store.Record(name)
	if err != nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := []httpapi.Peer{}
	for _, k := range rec.Ranks {
		p := httpapi.Peer{Rank: k.Rank, Address: proc.Loopback(), Ports: map[string]int{}, State: stateShown(rec, k), Life: k.Life.String()}
		for n, port := range w.ports[name][k.Rank] {
			p.Ports[n] = port
		}
		out = append(out, p)
	}
	return out
}

// peerAddresses returns HOST:PORT of every worker that has ports, by role: its port named http, else
// the first by name.
func (w *crew) peerAddresses() map[string]string {
	out := map[string]string{}
	for _, n := range w.opts.Job.Names() {
		var all []string
		for _, p := range w.peersOf(n) {
			if address := mainAddress(p.Address, p.Ports); address != "" {
				all = append(all, address)
			}
		}
		if len(all) > 0 {
			out[string(n)] = strings.Join(all, ",")
		}
	}
	return out
}

// mainAddress is where a worker is reached: at its port named http, else the first by name; empty for one
// without ports.
func mainAddress(host string, ports map[string]int) string {
	if len(ports) == 0 {
		return ""
	}
	port, ok := ports["http"]
	if !ok {
		port = ports[slices.Min(slices.Collect(maps.Keys(ports)))]
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// peersJSON is the content of VIGIL_PEERS_FILE: {"roles":{ROLE:[worker...]}}, a worker as
// /api/v1/roles/{role}/workers shows it.
func (w *crew) peersJSON() string {
	file := struct {
		Roles map[role.Name][]httpapi.Peer `json:"roles"`
	}{map[role.Name][]httpapi.Peer{}}
	for _, n := range w.opts.Job.Names() {
		file.Roles[n] = w.peersOf(n)
	}
	src, err := json.Marshal(file)
	if err != nil {
		return "{}"
	}
	return string(src)
}

// touch says that the peers may have changed.
func (w *crew) touch() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// touchAfter says that the peers change now and again when that time has passed.
func (w *crew) touchAfter(d time.Duration) {
	w.touch()
	time.AfterFunc(d, w.touch)
}

// followPeers tells every service when the peers have changed, and returns what ends that.
func (w *crew) followPeers() func(context.Context) error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		told := ""
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.changed:
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(peersDelay):
			}
			if now := w.peersJSON(); now != told {
				told = now
				w.tellPeers(ctx, now)
			}
		}
	}()
	return func(context.Context) error {
		cancel()
		<-done
		return nil
	}
}

// tellPeers gives the file's new content to all services; one that cannot be reached gets it at its
// next Run.
func (w *crew) tellPeers(ctx context.Context, content string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var group errgroup.Group
	for _, r := range w.hub.Registrations() {
		if !r.Seed {
			group.Go(func() error {
				_, err := w.hub.Call(ctx, r.ID, &api.ToService{Order: &api.ToService_Peers{Peers: &api.Peers{Json: content}}})
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		w.log.Debug("tell peers", "error", err)
	}
}
