package controller

import (
	"context"
	"fmt"
	"slices"

	"vigil/api"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// StopWorker asks the service of one worker to end it; its peers go on. A service that does not answer is
// not replaced for that: the error makes it the role's failure.
func (w *crew) StopWorker(ctx context.Context, name role.Name, rank int, how engine.Stop) (held []string, err error) {
	id, _, err := w.serviceOf(name, rank)
	if err != nil {
		return nil, err
	}
	for _, m := range w.of(name) {
		if m.id == id {
			m.service.Continue()
		}
	}
	a, err := w.hub.Call(ctx, id, &api.ToService{Order: &api.ToService_Stop{Stop: &api.Stop{
		AfterFailure: how.Kind == engine.AfterFailure, Incident: how.Incident, Cause: string(how.Cause), Ranks: []uint32{uint32(rank)},
	}}})
	w.kept.say(how.Incident, name)
	if err != nil {
		return nil, err
	}
	return a.Held, nil
}

// RunWorker starts one worker of the role's current incarnation anew, with the ports that it had: its
// peers know them.
func (w *crew) RunWorker(ctx context.Context, life role.Life, step int64) error {
	id, squads, err := w.serviceOf(life.Role, life.Rank)
	if err != nil {
		return err
	}
	r, _ := w.opts.Job.Role(life.Role)
	order := w.runOrders(r, squads, life.Incarnation, step)[id.Index]
	order.Only = []uint32{uint32(life.Rank)}
	for _, one := range order.Workers {
		if int(one.Rank) == life.Rank {
			one.Attempt = uint32(life.Attempt)
		}
	}
	_, err = w.hub.Call(ctx, id, &api.ToService{Order: &api.ToService_Run{Run: order}})
	return lacking(err)
}

// serviceOf returns the service that runs a worker, and all squads of the role.
func (w *crew) serviceOf(name role.Name, rank int) (rpc.ServiceID, []squad, error) {
	r, _ := w.opts.Job.Role(name)
	squads, err := w.places.squads(r)
	if err != nil {
		return rpc.ServiceID{}, nil, err
	}
	for i, s := range squads {
		if slices.Contains(s.ranks, rank) {
			return rpc.ServiceID{Role: name, Index: i}, squads, nil
		}
	}
	return rpc.ServiceID{}, nil, fmt.Errorf("%s rank %d is placed nowhere", name, rank)
}
