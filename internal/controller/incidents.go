package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"vigil/internal/event"
	"vigil/internal/proc"
	"vigil/internal/restart"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

const (
	writeEvery   = 200 * time.Millisecond // between two looks for incidents that have changed
	mostEvidence = 1000                   // paths that are shown of one incident
)

// incidents keeps a file for each incident, DIR/ID.json, as /api/v1/incidents/{id} shows it. A file is
// written when its incident reaches another state, from a goroutine of its own: no repair waits for it.
type incidents struct {
	dir     string
	history *event.History
	hook    *hook  // told what is decided and what has ended; nil: nobody is
	command string // of --on-incident
	log     *slog.Logger
	changed chan struct{}
	kept    map[string]keptIncident // owned by follow
	said    sayings
	earlier []httpapi.Incident     // of earlier controllers of the run, newest first
	record  func(httpapi.Incident) // keeps one, without its events, at once; nil: nobody does
}

// keptIncident is what was written, and told, of one incident.
type keptIncident struct {
	stamp               string
	decided, ended, bad bool
}

func newIncidents(dir string, history *event.History, hook *hook, command string, log *slog.Logger) *incidents {
	return &incidents{dir: dir, history: history, hook: hook, command: command, log: log, changed: make(chan struct{}, 1), kept: map[string]keptIncident{}}
}

// Observe is a hook of the event log, behind the history's.
func (n *incidents) Observe(e event.Event) {
	switch e.Kind {
	case event.Failure, event.Folded, event.Decided, event.Moved, event.PlanEnded, event.FirstStep, event.JobEnded:
	default:
		return
	}
	if n.record != nil && toRecord(e) {
		if i, ok := n.history.Incident(e.Incident); ok {
			i.Events = nil
			n.record(incident(i))
		}
	}
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// toRecord says whether the next controller must know of an event at once: it does not repeat a stop that is over.
func toRecord(e event.Event) bool {
	switch e.Kind {
	case event.Failure, event.Decided, event.PlanEnded:
		return true
	case event.Moved:
		return e.Verb == string(restart.StopService) && e.Error == ""
	}
	return false
}

// follow begins to write, and returns what writes the rest and ends it.
func (n *incidents) follow() func(context.Context) error {
	closing, done := make(chan struct{}), make(chan struct{})
	if n.hook != nil {
		n.hook.begin()
	}
	go func() {
		defer close(done)
		pause := time.NewTicker(writeEvery)
		defer pause.Stop()
		for {
			select {
			case <-n.changed:
			case <-closing:
				n.write()
				return
			}
			n.write()
			select {
			case <-pause.C:
			case <-closing:
			}
		}
	}()
	return func(ctx context.Context) error {
		close(closing)
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("write incidents: %w", context.Cause(ctx))
		}
		if n.hook != nil {
			n.hook.close()
		}
		return nil
	}
}

// write writes what has changed.
func (n *incidents) write() {
	now := map[string]keptIncident{}
	for _, i := range slices.Backward(n.history.Incidents()) {
		was := n.kept[i.ID]
		is := keptIncident{stamp: stampOf(&i), decided: !i.Decided.IsZero(), ended: !i.Open(), bad: was.bad}
		if is.stamp != was.stamp {
			n.read(&i)
			n.writeOne(i.ID, was, &is)
		}
		now[i.ID] = is
	}
	n.kept = now
	n.said.forget(now)
}

// stampOf differs where the state does.
func stampOf(i *event.Incident) string {
	return fmt.Sprint(i.Cause, i.Action, i.Decided.UnixNano(), i.Stopped.UnixNano(), i.Clean.UnixNano(), i.Started.UnixNano(), i.FirstStep.UnixNano(), i.Ended.UnixNano(), i.Error, len(i.Held))
}

func (n *incidents) writeOne(id string, was keptIncident, is *keptIncident) {
	shown, ok := n.one(id)
	if !ok {
		return
	}
	src, err := n.encode(&shown)
	if is.bad = err != nil; is.bad && !was.bad {
		n.log.Error("write incident", "incident", id, "error", err)
	}
	if n.hook == nil {
		return
	}
	if is.decided && !was.decided {
		n.hook.tell(notice{id, "decided", src}.errand(n.command))
	}
	if is.ended && !was.ended {
		n.hook.tell(notice{id, "ended", src}.errand(n.command))
	}
}

// encode writes an incident's file, and returns what it has written.
func (n *incidents) encode(i *httpapi.Incident) ([]byte, error) {
	src, err := json.MarshalIndent(i, "", "  ")
	if err == nil {
		err = replaceFile(filepath.Join(n.dir, i.ID+".json"), append(src, '\n'))
	}
	return src, err
}

// one returns an incident with what was kept of its workers.
func (n *incidents) one(id string) (httpapi.Incident, bool) {
	i, ok := n.history.Incident(id)
	shown := incident(i)
	if ok {
		shown.Evidence = evidenceIn(filepath.Join(n.dir, id))
		shown.Collective = n.said.get(id)
		return shown, true
	}
	at := slices.IndexFunc(n.earlier, func(i httpapi.Incident) bool { return i.ID == id })
	if at < 0 {
		return httpapi.Incident{}, false
	}
	return n.earlier[at], true
}

// say tells where the evidence of a role is, if there is any.
func (n *incidents) say(id string, name role.Name) {
	dir := filepath.Join(n.dir, id, string(name))
	if _, err := os.Stat(dir); id != "" && err == nil {
		n.log.Info("evidence of '"+string(name)+"' is kept", "incident", id, "in", dir)
	}
}

// evidenceIn lists the files of an incident's folder.
func evidenceIn(dir string) []string {
	var paths []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fs.SkipDir // there is none, or no more
		case d.Type().IsRegular():
			paths = append(paths, path)
		}
		if len(paths) == mostEvidence {
			return fs.SkipAll
		}
		return nil
	})
	return paths
}

// replaceFile writes a file so that a reader finds the old content or the new one.
func replaceFile(path string, content []byte) error {
	return proc.ReplaceBy(path, path+".new", content, 0o600)
}
