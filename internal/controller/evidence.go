package controller

import (
	"context"
	"path/filepath"

	"vigil/internal/evidence"
	"vigil/internal/proc"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// met is a worker's process as its service told of it.
type met struct {
	life role.Life
	who  proc.Ident
}

// meet remembers a worker, for the day on which its service does not answer.
func (w *crew) meet(id rpc.ServiceID, life role.Life, who proc.Ident) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.workers[id] == nil {
		w.workers[id] = map[int]met{}
	}
	w.workers[id][life.Rank] = met{life, who}
}

// takeEvidence keeps what can be seen from here of the workers of a service that does not answer: what
// they said to it is not known.
func (w *crew) takeEvidence(ctx context.Context, m *member, how engine.Stop) {
	if how.Incident == "" {
		return
	}
	var subjects []evidence.Subject
	for _, one := range w.newest(m.id) {
		logs := filepath.Join(w.ground.logs, evidence.Folder(one.life))
		s := evidence.Subject{Life: one.life, HeartbeatAge: -1, Step: -1,
			Stdout: filepath.Join(logs, "stdout.log"), Stderr: filepath.Join(logs, "stderr.log"), ErrorFile: filepath.Join(logs, "error.json")}
		for _, h := range w.ground.keeper.Remains(proc.Tree{Sessions: []proc.Ident{one.who}}) {
			if h.Session == one.who.PID {
				s.Processes = append(s.Processes, h.PID)
			}
		}
		subjects = append(subjects, s)
	}
	taker := evidence.Taker{Run: w.ground.keeper.Run}
	if _, err := taker.Take(ctx, filepath.Join(w.ground.incidents, how.Incident), m.id.Index, evidence.FormOf(how.Cause), how.Cause, subjects); err != nil {
		w.log.Warn("evidence is not kept", "role", m.id.Role, "incident", how.Incident, "error", err)
	}
}

// newest returns the workers of the newest incarnation that a service has told of.
func (w *crew) newest(id rpc.ServiceID) []met {
	w.mu.Lock()
	defer w.mu.Unlock()
	incarnation := 0
	for _, one := range w.workers[id] {
		incarnation = max(incarnation, one.life.Incarnation)
	}
	var out []met
	for _, one := range w.workers[id] {
		if one.life.Incarnation == incarnation {
			out = append(out, one)
		}
	}
	return out
}
