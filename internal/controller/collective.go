package controller

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"vigil/internal/event"
	"vigil/internal/evidence"
	"vigil/internal/role"
)

// collectiveTime bounds the reading of the dumps of one incident. No repair waits for it.
const collectiveTime = 10 * time.Second

// sayings are what the dumps of NCCL's flight recorder say, by incident. Its zero value is empty.
type sayings struct {
	mu sync.Mutex
	of map[string]string // empty: they were read and say nothing
}

func (s *sayings) get(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[id]
}

// read reads the dumps of an incident, once, when its workers have been ended: then all services have
// kept theirs.
func (n *incidents) read(i *event.Incident) {
	if i.Stopped.IsZero() && i.Open() {
		return
	}
	n.said.mu.Lock()
	_, done := n.said.of[i.ID]
	n.said.mu.Unlock()
	if done {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectiveTime)
	defer cancel()
	sentence, problems := evidence.Collective(ctx, filepath.Join(n.dir, i.ID), i.Role, i.Incarnation)
	for _, err := range problems {
		n.log.Warn("the flight recorder's word is not taken", "incident", i.ID, "role", i.Role, "error", err)
	}
	if sentence != "" {
		n.log.Warn(sentence, "incident", i.ID, "role", i.Role)
	}
	n.said.mu.Lock()
	defer n.said.mu.Unlock()
	if n.said.of == nil {
		n.said.of = map[string]string{}
	}
	n.said.of[i.ID] = sentence
}

// forget drops what is said of incidents that are not remembered any more.
func (s *sayings) forget(kept map[string]keptIncident) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.of {
		if _, ok := kept[id]; !ok {
			delete(s.of, id)
		}
	}
}

// withLogs gives failures of single workers that name no log the one that their standard error is in.
func withLogs(logs string, failures []role.Failure) []role.Failure {
	out := slices.Clone(failures)
	for i := range out {
		if f := &out[i]; f.Log == "" && f.Life.Rank != role.NoRank && f.Life.Incarnation > 0 {
			f.Log = filepath.Join(logs, evidence.Folder(f.Life), "stderr.log")
		}
	}
	return out
}
