package controller

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"golang.org/x/sync/errgroup"

	"vigil/internal/health"
	"vigil/internal/journal"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// adopt takes over the services of an earlier controller that live, the ports of their workers, and what it
// could not end. What is left of the other services is ended. It returns how many services live.
func (w *crew) adopt(ctx context.Context) (int, error) {
	leases, err := journal.Read[leaseRecord](w.ground.journal, journal.Lease)
	if err != nil {
		return 0, err
	}
	for name, l := range leases {
		for _, port := range l.Ports {
			if err := w.ground.ports.Claim(port); err != nil {
				w.log.Warn("a port of "+name+" is not ours any more", "error", err)
			}
		}
		w.leased[role.Name(name)], w.ports[role.Name(name)] = l.Ports, l.Named
	}
	services, err := journal.Read[serviceRecord](w.ground.journal, journal.Service)
	if err != nil {
		return 0, err
	}
	owed, err := w.ground.obligations()
	if err != nil {
		return 0, err
	}
	for _, o := range owed {
		w.log.Warn("an earlier controller could not end all of a service; it is tried again", "left", o.String())
		w.launcher.Owe(o)
	}
	living := 0
	for _, s := range services {
		id := rpc.ServiceID{Role: s.Role, Index: s.Index}
		service, err := w.launcher.Adopt(s.Role, s.Index, s.Incarnation, s.who())
		if err != nil {
			w.log.Info("service "+id.String()+" has ended while there was no controller", "pid", s.PID)
			if _, err := w.launcher.Clear(ctx, s.Role, s.Index); err != nil {
				w.log.Error("what service "+id.String()+" has left is not ended", "error", err)
			}
			w.forgetService(id)
			continue
		}
		living++
		m := &member{id: id, service: service}
		w.mu.Lock()
		w.members[id] = m
		w.mu.Unlock()
		go w.watch(m)
	}
	return living, nil
}

// keepService records a service that was started.
func (w *crew) keepService(m *member, incarnation int) {
	w.ground.journal.Write(journal.Put(journal.Service, m.id.String(), serviceRecord{
		Role: m.id.Role, Index: m.id.Index, Incarnation: incarnation, PID: m.service.PID(), Start: m.service.StartTime(),
	}))
}

func (w *crew) forgetService(id rpc.ServiceID) {
	w.ground.journal.Write(journal.Delete(journal.Service, id.String()))
}

// Lives waits, bounded, until every service that lives has told what it holds, and returns that.
func (w *crew) Lives(ctx context.Context) map[role.Name]map[int]role.Life {
	ctx, cancel := context.WithTimeout(ctx, adoptTime)
	defer cancel()
	var group errgroup.Group
	for _, n := range w.opts.Job.Names() {
		for _, m := range w.of(n) {
			group.Go(func() error {
				waiting, cancel := context.WithCancel(ctx)
				defer cancel()
				go func() {
					select {
					case <-m.service.Done():
						cancel()
					case <-waiting.Done():
					}
				}()
				if err := w.hub.WaitJoined(waiting, m.id, m.service.PID()); err != nil {
					return fmt.Errorf("service %s does not register: %w", m.id, err)
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		w.log.Warn("not every service that lives has been taken over", "error", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[role.Name]map[int]role.Life{}
	for id, lives := range w.told {
		if _, ours := w.members[id]; !ours {
			continue
		}
		if out[id.Role] == nil {
			out[id.Role] = map[int]role.Life{}
		}
		maps.Copy(out[id.Role], lives)
	}
	return out
}

// wasThere notes a life that has not just begun: its service has told of it again.
func (w *crew) wasThere(life role.Life) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.there[life] = true
}

// beganEarlier says whether a life was there before its service told this controller of it.
func (w *crew) beganEarlier(life role.Life) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.there[life]
}

// hears notes which lives a service holds, and what a worker has said while there was no controller.
func (w *crew) hears(id rpc.ServiceID, s rpc.WorkerState) {
	w.mu.Lock()
	if w.told[id] == nil {
		w.told[id] = map[int]role.Life{}
	}
	w.told[id][s.Life.Rank] = s.Life
	w.mu.Unlock()
	if s.Past == nil {
		return
	}
	past := health.Past{At: s.Past.At, Step: s.Past.Step, Guessed: s.Past.Guessed}
	for _, p := range s.Past.Phases {
		past.Phases = append(past.Phases, health.PastPhase{Name: p.Name, Began: p.Began})
	}
	w.store.Recall(s.Life, past)
}

// fell reports a worker that has ended while there was no controller, or whose end the one before has
// heard of and not repaired.
func (w *crew) fell(s rpc.WorkerState) {
	rec, err := w.store.Record(s.Life.Role)
	if err != nil || !rec.TaskRunning || s.Exit == nil {
		return
	}
	w.store.Report(role.Failure{Life: s.Life, Cause: role.Exited, Detail: s.Exit.String(), Exit: s.Exit})
}

// admit refuses services that this controller has neither started nor taken over: those of an earlier
// life, that turn up late, are to end.
func (w *crew) admit(r rpc.Registration) error {
	w.mu.Lock()
	known := w.launching[r.ID]
	w.mu.Unlock()
	if known != nil { // it may be that one, or one of its place that nobody knows
		<-known
	}
	w.mu.Lock()
	m, ok := w.members[r.ID]
	w.mu.Unlock()
	if !ok || m.service.PID() != r.PID {
		return fmt.Errorf("pid %s is no service of this run", strconv.Itoa(r.PID))
	}
	return nil
}
