package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/proc"
	"vigil/internal/role"
)

// killDeadline is how long a service may take to die of SIGKILL.
const killDeadline = 10 * time.Second

// Obligation is what is still there of a service although everything was done to end it.
type Obligation struct {
	Role    role.Name
	Index   int
	Since   time.Time
	Left    []proc.Holder
	Earlier bool     // an earlier run has left it: that it is still there is not this one's failure
	Devices []string // that it may use, where that is known
}

// String says "critic/0: not ended since 15:04:05: pid 4711 python3 (still there after SIGKILL)".
func (o Obligation) String() string {
	who := make([]string, len(o.Left))
	for i, h := range o.Left {
		who[i] = h.String()
	}
	return fmt.Sprintf("%s/%d: not ended since %s: %s", o.Role, o.Index, o.Since.Format(time.TimeOnly), strings.Join(who, ", "))
}

// Stop asks a service to end, by SIGTERM, and kills it when the grace is over or ctx ends; then it ends
// everything that the service had started and proves it. A service that is not there, or has ended, is
// only cleared. The report says who held on; the error says who is there still, which is an obligation
// from then on. The proof is not cut short by ctx.
func (l *Launcher) Stop(ctx context.Context, name role.Name, index int, grace time.Duration) (proc.StopReport, error) {
	id := slotID{name, index}
	place := l.slot(id)
	place.busy.Lock()
	defer place.busy.Unlock()
	if grace > 0 {
		ask(l.service(id))
	}
	return l.end(ctx, id, grace)
}

// StopAll stops every service of the job. All are asked before any is waited for. The reports are by
// the services' names.
func (l *Launcher) StopAll(ctx context.Context, grace time.Duration) (map[string]proc.StopReport, error) {
	ids := l.ids()
	if grace > 0 {
		for _, id := range ids {
			ask(l.service(id))
		}
	}
	reports := make([]proc.StopReport, len(ids))
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			place := l.slot(id)
			place.busy.Lock()
			defer place.busy.Unlock()
			reports[i], errs[i] = l.end(ctx, id, grace)
		})
	}
	all.Wait()
	byName := map[string]proc.StopReport{}
	for i, id := range ids {
		byName[id.String()] = reports[i]
	}
	return byName, errors.Join(errs...)
}

// Clear ends what is left of a service that has ended by itself, and proves it. It returns who was
// there. The error says that the service runs, or who is there still, which is an obligation from then
// on.
func (l *Launcher) Clear(ctx context.Context, name role.Name, index int) ([]proc.Holder, error) {
	id := slotID{name, index}
	place := l.slot(id)
	place.busy.Lock()
	defer place.busy.Unlock()
	if s := l.service(id); s != nil && !s.ended() {
		return nil, fmt.Errorf("clear service %s: pid %d still runs", id, s.PID())
	}
	return l.clear(ctx, id)
}

func (l *Launcher) ids() []slotID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []slotID
	for id := range l.slots {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b slotID) int { return strings.Compare(a.String(), b.String()) })
	return ids
}

// ask tells the service to end in order. One that is stopped is continued first, so that it hears.
func ask(s *Service) {
	if s == nil {
		return
	}
	_ = s.process.Signal(unix.SIGCONT) // that it has ended meanwhile is no error
	_ = s.process.Signal(unix.SIGTERM)
}

// end waits for a service that was asked, kills it if need be and clears the rest.
func (l *Launcher) end(ctx context.Context, id slotID, grace time.Duration) (proc.StopReport, error) {
	began := time.Now()
	var r proc.StopReport
	if s := l.service(id); s != nil && !wait(ctx, s, grace) {
		r.Held = append(r.Held, proc.Holder{
			Ident: s.process.Ident(), Name: "service " + s.ID,
			Why: fmt.Sprintf("still there %s after SIGTERM", time.Since(began).Round(time.Millisecond)),
		})
		r.Killed++
		if err := s.process.Signal(unix.SIGKILL); err != nil && !s.ended() {
			l.o.Log.Warn("service not killed", "service", s.ID, "err", err)
		}
		wait(context.WithoutCancel(ctx), s, killDeadline)
	}
	held, err := l.clear(context.WithoutCancel(ctx), id)
	for _, h := range held {
		if len(r.Held) == 0 || h.Ident != r.Held[0].Ident {
			r.Held = append(r.Held, h)
			r.Killed++
		}
	}
	var left *proc.LeftError
	if errors.As(err, &left) {
		r.Left = left.Left
	}
	r.Took = time.Since(began)
	return r, err
}

// wait waits until the service has ended, for d at most, and says whether it has.
func wait(ctx context.Context, s *Service, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-s.Done():
		return true
	case <-ctx.Done():
		return s.ended()
	}
}

// clear ends the tree of a service. The caller has the slot.
func (l *Launcher) clear(ctx context.Context, id slotID) ([]proc.Holder, error) {
	held, err := l.o.Keeper.Clear(ctx, l.tree(id))
	l.sweep()
	var left *proc.LeftError
	switch {
	case errors.As(err, &left):
		l.Owe(Obligation{Role: id.role, Index: id.index, Since: time.Now(), Left: left.Left})
		return held, fmt.Errorf("clear service %s: %w", id, err)
	case err != nil:
		return held, fmt.Errorf("clear service %s: %w", id, err)
	}
	l.clearShm(id)
	l.dropTreeNotes(l.treeNote(id))
	place := l.slot(id)
	l.mu.Lock()
	place.notes = nil
	l.mu.Unlock()
	return held, nil
}

// clearShm removes the shared memory that a service which has ended knew as its workers' and that
// nobody uses. Call it when nothing of the service lives.
func (l *Launcher) clearShm(id slotID) {
	removed, err := proc.ClearShm(proc.ShmNote(l.o.LogDir, string(id.role), id.index))
	if err != nil {
		l.o.Log.Warn("shared memory is left behind", "service", id.String(), "err", err)
	}
	if len(removed) > 0 {
		l.o.Log.Info("shared memory of a service removed", "service", id.String(), "files", removed)
	}
}

// tree is everything that the service has started. The mark names a role but no service, so it counts
// only while the role has no other service on this machine.
func (l *Launcher) tree(id slotID) proc.Tree {
	place := l.slot(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	t := proc.Tree{
		Sessions:   slices.Clone(place.notes),
		LeafPrefix: fmt.Sprintf("vigil-%s/%s.%d", l.o.JobUID, id.role, id.index),
		Mark:       fmt.Sprintf("%s/%s/", l.o.JobUID, id.role),
	}
	if place.service != nil {
		t.Sessions = append(t.Sessions, place.service.process.Ident())
	}
	l.addNoted(&t, l.treeNote(id))
	for other, p := range l.slots {
		if other != id && other.role == id.role && p.service != nil && !p.service.ended() {
			t.Mark = ""
		}
	}
	return t
}

// Owe adds an obligation, such as one from the journal of an earlier controller. An older one of the
// same service, and of the same kind of run, is merged with it.
func (l *Launcher) Owe(o Obligation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, old := range l.owed {
		if !old.isAbout(o) {
			continue
		}
		for _, h := range o.Left {
			if !slices.ContainsFunc(old.Left, func(x proc.Holder) bool { return x.Ident == h.Ident }) {
				l.owed[i].Left = append(slices.Clone(l.owed[i].Left), h)
			}
		}
		l.owed[i].Devices = slices.Concat(l.owed[i].Devices, o.Devices)
		l.o.Record(l.owed[i])
		return
	}
	l.owed = append(l.owed, o)
	l.o.Record(o)
}

// isAbout says whether two obligations are about one service.
func (o Obligation) isAbout(other Obligation) bool {
	return o.Role == other.Role && o.Index == other.Index && o.Earlier == other.Earlier
}

// Obligations returns what could not be ended so far, oldest first.
func (l *Launcher) Obligations() []Obligation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.owed)
}

func (l *Launcher) retryLoop(ctx context.Context) {
	tick := time.NewTicker(l.o.Retry)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.retry(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// retry tries every obligation once. Only the very processes that were left are meant, never what has
// been started for the role since.
func (l *Launcher) retry(ctx context.Context) {
	for _, o := range l.Obligations() {
		var t proc.Tree
		for _, h := range o.Left {
			t.Processes = append(t.Processes, h.Ident)
		}
		ctx, cancel := context.WithTimeout(ctx, l.o.Retry)
		_, err := l.o.Keeper.Clear(ctx, t)
		cancel()
		if err != nil {
			continue
		}
		l.o.Log.Info("obligation met", "service", slotID{o.Role, o.Index}.String(), "after", time.Since(o.Since).Round(time.Millisecond))
		l.met(o)
	}
}

// met takes the processes of o off what is owed.
func (l *Launcher) met(o Obligation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.owed {
		if l.owed[i].isAbout(o) {
			l.owed[i].Left = slices.DeleteFunc(slices.Clone(l.owed[i].Left), func(h proc.Holder) bool {
				return slices.ContainsFunc(o.Left, func(x proc.Holder) bool { return x.Ident == h.Ident })
			})
			l.o.Record(l.owed[i])
		}
	}
	l.owed = slices.DeleteFunc(l.owed, func(o Obligation) bool { return len(o.Left) == 0 })
}
