package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"vigil/internal/job"
	"vigil/internal/launcher/local"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// Start sees to it that an idle service stands on every node where the role is placed: a living one
// stays, others are replaced.
func (w *crew) Start(ctx context.Context, name role.Name, incarnation int) error {
	defer w.ground.reserve.Lend()()
	return lacking(w.start(ctx, name, incarnation))
}

func (w *crew) start(ctx context.Context, name role.Name, incarnation int) error {
	r, _ := w.opts.Job.Role(name)
	squads, err := w.places.squads(r)
	if err != nil {
		return err
	}
	for _, m := range w.of(name) {
		if m.id.Index >= len(squads) || w.isStale(name) || w.isEnding(m) || !w.answers(ctx, m) {
			if err := w.remove(ctx, m, 0); err != nil {
				return err
			}
			continue
		}
		w.mu.Lock()
		m.wanted = false // it was given up and is back: its death is to be told
		w.mu.Unlock()
	}
	w.mu.Lock()
	delete(w.stale, name)
	w.mu.Unlock()
	var group errgroup.Group
	for i, s := range squads {
		id := rpc.ServiceID{Role: name, Index: i}
		w.mu.Lock()
		_, stands := w.members[id]
		w.mu.Unlock()
		if !stands {
			group.Go(func() error { return w.launch(ctx, r, id, s, incarnation) })
		}
	}
	return group.Wait()
}

// launch starts one service and waits until it has joined, or has ended.
func (w *crew) launch(ctx context.Context, r *job.Role, id rpc.ServiceID, s squad, incarnation int) error {
	config, err := w.writeConfig(r)
	if err == nil {
		err = w.stand(ctx)
	}
	if err == nil {
		err = w.evict(ctx, id, incarnation)
	}
	if err != nil {
		return err
	}
	known := make(chan struct{})
	w.mu.Lock()
	w.launching[id] = known
	delete(w.told, id)
	w.mu.Unlock()
	env := map[string]string{
		"VIGIL_OPT_CONTROLLER": rpc.Target(w.ground.socket), "VIGIL_OPT_TOKEN": w.ground.secret,
		"VIGIL_OPT_JOB_UID": w.uid, "VIGIL_OPT_JOB_NAME": w.opts.Job.Name, "VIGIL_OPT_ROLE": string(id.Role), "VIGIL_OPT_INDEX": strconv.Itoa(id.Index),
		"VIGIL_OPT_NODE": s.node, "VIGIL_OPT_INCARNATION": strconv.Itoa(incarnation), "VIGIL_OPT_EPOCH": strconv.FormatUint(w.ground.epoch, 10),
		"VIGIL_OPT_RUNTIME_DIR": w.ground.runtime.Path(), "VIGIL_OPT_LOG_DIR": w.ground.logs, "VIGIL_OPT_ROLE_CONFIG": config, "VIGIL_OPT_INCIDENT_DIR": w.ground.incidents,
		"VIGIL_OPT_CONTROLLER_GRACE": w.opts.ControllerGrace.String(), "VIGIL_OPT_LOG_FORMAT": w.opts.LogFormat, "VIGIL_OPT_LOG_LEVEL": w.opts.LogLevel,
		"VIGIL_OPT_DEVICE_VARIABLE": w.ground.deviceVariable,
	}
	if w.ground.shown != nil {
		env[w.ground.deviceVariable] = *w.ground.shown
	}
	service, err := w.launcher.Start(ctx, local.Spec{Role: id.Role, Index: id.Index, Incarnation: incarnation, Files: w.ground.claim.Files(), Env: env})
	m := &member{id: id, service: service}
	w.mu.Lock()
	if err == nil {
		w.members[id] = m
	}
	delete(w.launching, id)
	w.mu.Unlock()
	close(known)
	if err != nil {
		return err
	}
	w.keepService(m, incarnation)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-service.Done():
			cancel()
		case <-waiting.Done():
		}
	}()
	if err := w.hub.WaitJoined(waiting, id, service.PID()); err != nil {
		select {
		case <-service.Done():
			err = endedEarly(service)
		default:
		}
		return errors.Join(fmt.Errorf("start service %s: %w", id, err), w.remove(context.WithoutCancel(ctx), m, 0))
	}
	go w.watch(m)
	return nil
}

// endedEarly says how a service ended that has not come to joining: for lack of something, where it says so itself.
func endedEarly(service *local.Service) error {
	exit := service.Exit()
	err := fmt.Errorf("it ended: %s; see %s", exit, service.Log())
	said := service.Said()
	if exit.Code == proc.ExitLacks && len(said) > 0 {
		return &proc.LackError{Limit: said[len(said)-1], Err: err}
	}
	if lack := proc.CrashLack(said, err); lack != nil {
		return lack
	}
	return err
}

// evict ends a service that has the place and that nobody knows: an earlier controller has started it, and died
// before that was recorded. Whoever else has the seat's lock, such as one that sweeps it, is left alone.
func (w *crew) evict(ctx context.Context, id rpc.ServiceID, incarnation int) error {
	who, taken := w.ground.runtime.Sitter(proc.SeatOf(w.uid, string(id.Role), id.Index))
	if !taken || !w.isOfPlace(who.PID, id) {
		return nil
	}
	if _, err := w.launcher.Adopt(id.Role, id.Index, incarnation, who); err != nil {
		return nil //nolint:nilerr // it has ended meanwhile
	}
	w.log.Warn("a service is ended that an earlier controller has started and not recorded", "service", id.String(), "pid", who.PID)
	_, err := w.launcher.Stop(ctx, id.Role, id.Index, leaveGrace)
	return err
}

// isOfPlace says whether a process was started as a service of this run and place.
func (w *crew) isOfPlace(pid int, id rpc.ServiceID) bool {
	was := proc.Environ(pid)
	return was["VIGIL_OPT_JOB_UID"] == w.uid && was["VIGIL_OPT_ROLE"] == string(id.Role) && was["VIGIL_OPT_INDEX"] == strconv.Itoa(id.Index)
}

// writeConfig leaves the role for its services to read.
func (w *crew) writeConfig(r *job.Role) (string, error) {
	folder, err := proc.MakeFolder(w.ground.state, 0o700)
	if err != nil {
		return "", fmt.Errorf("write role %s: %w", r.Name, err)
	}
	folder.Close()
	path := filepath.Join(w.ground.state, string(r.Name)+".json")
	src, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("write role %s: %w", r.Name, err)
	}
	if err := proc.Replace(path, src, 0o600); err != nil {
		return "", fmt.Errorf("write role: %w", err)
	}
	return path, nil
}

// watch tells when a service ends that should not.
func (w *crew) watch(m *member) {
	<-m.service.Done()
	w.hub.Forget(m.id, m.service.PID())
	w.lost(m.id, m.service.PID(), role.Exited, "its service ended: "+m.service.Exit().String())
}

// deathDelay is how long after a service stopped answering its death may still be seen. What it died of
// says more than that it does not answer.
const deathDelay = 200 * time.Millisecond

// unreachable tells that a service does not answer, unless it has died: then watch tells how.
func (w *crew) unreachable(id rpc.ServiceID, pid int, why string) {
	w.mu.Lock()
	m, ok := w.members[id]
	w.mu.Unlock()
	if ok && m.service.PID() == pid {
		limit := time.NewTimer(deathDelay)
		defer limit.Stop()
		select {
		case <-m.service.Done():
			return
		case <-limit.C:
		}
	}
	w.lost(id, pid, role.Unreachable, "its service is unreachable: "+why)
}

// ending tells that a service ends its workers and then itself because of a signal. Where we have sent it, that is
// what we wanted. It is not used for another life.
func (w *crew) ending(id rpc.ServiceID, pid int, signal string) {
	w.mu.Lock()
	m, ok := w.members[id]
	ours := ok && m.service.PID() == pid
	if ours {
		m.ending = true
	}
	known := ours && m.wanted
	w.mu.Unlock()
	if !ours || known {
		return
	}
	w.log.Warn("service "+id.String()+" got a signal and is stopping its workers in order", "signal", signal, "pid", pid)
	w.tellLost(id, pid, role.Failure{Cause: role.Exited, Detail: "its service is ending: it got " + signal, Exit: &role.Exit{Signal: signal, PID: pid}})
}

// isEnding says whether a service has said that it ends.
func (w *crew) isEnding(m *member) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return m.ending
}

// lost tells the death of a service.
func (w *crew) lost(id rpc.ServiceID, pid int, cause role.Cause, detail string) {
	f := role.Failure{Cause: cause, Detail: detail}
	if cause == role.Exited {
		w.mu.Lock()
		if m, ok := w.members[id]; ok && m.service.PID() == pid {
			exit := m.service.Exit()
			f.Exit = &exit
		}
		w.mu.Unlock()
	}
	w.tellLost(id, pid, f)
}

// tellLost tells the loss of a service, once, unless we wanted it or have replaced it. The loss of one
// whose role is not at work (it is being repaired, was stopped by hand, has finished) is no failure:
// the next start puts another in its place, and a move that needed it fails by itself.
func (w *crew) tellLost(id rpc.ServiceID, pid int, f role.Failure) {
	at := w.engine.Status(id.Role)
	if !at.Begun || at.State == role.Finished {
		return
	}
	w.mu.Lock()
	m, ok := w.members[id]
	told := !ok || m.service.PID() != pid || m.wanted
	if !told {
		m.wanted = true
	}
	w.mu.Unlock()
	if told {
		return
	}
	f.Life = role.Life{Role: id.Role, Incarnation: at.Incarnation, Rank: role.NoRank, Attempt: 1}
	f.At, f.Log = time.Now(), m.service.Log()
	w.store.Report(f)
}
