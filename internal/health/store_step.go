package health

import "vigil/internal/role"

// SetStep makes n the step of the role's current life, also when it is lower.
func (s *Store) SetStep(name role.Name, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.SetStep(name, n)
}

// Standing returns the role's step and the newest step that it has saved, -1 if none is known.
func (s *Store) Standing(name role.Name) (step, checkpoint int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.table.records[name]
	if !ok {
		return 0, -1
	}
	return r.step(), r.saved
}

// Reached takes in what the role's services know of its step, and returns the newest; see Table.Reached.
func (s *Store) Reached(name role.Name, spoken map[int]int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.Reached(name, spoken)
}

// WorkerStep is the step that a worker goes on from if it is restarted alone.
func (s *Store) WorkerStep(name role.Name, rank int) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.WorkerStep(name, rank)
}

// Saved is what is known of the role's checkpoints, for a later controller.
func (s *Store) Saved(name role.Name) Saved {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.table.records[name]
	if !ok {
		return Saved{Whole: -1}
	}
	return r.savedNow()
}

// Reach is how far a role's newest life has come.
type Reach struct {
	Incarnation int   `json:"incarnation"`
	Step        int64 `json:"step"`
}

// Reaches returns how far every role has come.
func (s *Store) Reaches() map[role.Name]Reach {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[role.Name]Reach, len(s.table.order))
	for n, r := range s.table.records {
		out[n] = Reach{r.incarnation, r.step()}
	}
	return out
}

// Reach returns how far one role has come.
func (s *Store) Reach(name role.Name) Reach {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.table.records[name]
	if !ok {
		return Reach{}
	}
	return Reach{r.incarnation, r.step()}
}
