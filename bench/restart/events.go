package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"vigil/internal/event"
)

// client asks controllers. One that does not answer soon says nothing.
var client = &http.Client{Timeout: 5 * time.Second}

// events returns what happened in a job of vigil's after a cursor, and the next cursor; nothing of others' jobs.
func (j *job) events(after uint64) ([]event.Event, uint64, error) {
	if j.url == "" {
		return nil, 0, nil
	}
	resp, err := client.Get(fmt.Sprintf("%s/api/v1/events?limit=10000&after=%d", j.url, after))
	if err != nil {
		return nil, after, fmt.Errorf("read events: %w", err)
	}
	defer resp.Body.Close()
	var list struct {
		Events []event.Event `json:"events"`
		Next   uint64        `json:"next"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, after, fmt.Errorf("read events: %w", err)
	}
	return list.Events, list.Next, nil
}

// lastEvent is the cursor of now.
func (j *job) lastEvent() uint64 {
	_, next, err := j.events(0)
	if err != nil {
		return 0
	}
	return next
}

// stages of a repair that vigil tells of, in order.
var repairStages = []string{"seen", "decided", "stopped", "ran"}

// eventStages returns when vigil had seen a fault, decided, proved that the old workers have ended and had
// the new ones started: ms since an instant.
func (j *job) eventStages(after uint64, at int64) map[string]float64 {
	found := map[string]float64{}
	events, _, err := j.events(after)
	if err != nil {
		return found
	}
	for _, e := range events {
		when, stage := milliseconds(e.At.UnixNano()-at), ""
		switch {
		case when < 0:
		case e.Kind == event.Failure:
			stage = "seen"
		case e.Kind == event.Decided:
			stage = "decided"
		case e.Kind == event.Moved && e.Verb == "stop_service":
			stage = "stopped"
		case e.Kind == event.Moved && e.Verb == "run":
			stage = "ran"
		}
		if _, had := found[stage]; stage != "" && (!had || stage == "stopped" || stage == "ran") {
			found[stage] = when
		}
	}
	return found
}

// takenOver says whether a controller answers that knows the job's processes as running.
func (j *job) takenOver() bool {
	resp, err := client.Get(j.url + "/api/v1/roles")
	if err != nil {
		return false // it does not listen yet
	}
	defer resp.Body.Close()
	var list struct {
		Roles []struct {
			State   string
			Workers []struct{ PID int }
		}
	}
	if json.NewDecoder(resp.Body).Decode(&list) != nil || len(list.Roles) != 1 || list.Roles[0].State != "running" || len(list.Roles[0].Workers) != ranks {
		return false
	}
	pids := map[int]bool{}
	for _, pid := range j.pids() {
		pids[pid] = true
	}
	for _, w := range list.Roles[0].Workers {
		if !pids[w.PID] {
			return false
		}
	}
	return true
}
