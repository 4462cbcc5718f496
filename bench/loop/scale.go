package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"vigil/bench/result"
	"vigil/internal/health"
	"vigil/internal/metrics"
	"vigil/internal/role"
)

// manyRanks is the size of a large job.
const (
	manyRoles = 10
	manyRanks = 10_000
)

// scale measures what one controller does for ten thousand ranks: a sweep, the heartbeats of one
// second, and a scrape.
func (b *bench) scale() error {
	store, names := manyWorkers()
	var sweeps, beats, scrapes, whole result.Samples
	few := metrics.New(metrics.Options{Source: standing{store}})
	all := metrics.New(metrics.Options{Source: standing{store}, RankLimit: -1})
	for i := range b.n {
		beats = append(beats, took(func() { everybodySpeaks(store, names, int64(i)) }))
		sweeps = append(sweeps, took(func() { store.Sweep(time.Now()) }))
	}
	for range b.n {
		var err1, err2 error
		scrapes = append(scrapes, took(func() { err1 = scrape(few.Handler()) }))
		whole = append(whole, took(func() { err2 = scrape(all.Handler()) }))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
	}
	b.report.Measured("sweep over 10,000 ranks", sweeps, nil, result.Below(1))
	b.report.Measured("10,000 heartbeats into the health store", beats, nil, nil)
	b.report.Measured("/metrics of 10,000 ranks", scrapes, nil, result.Below(200))
	b.report.Measured("/metrics of 10,000 ranks, series for each", whole, nil, result.Below(200))
	return nil
}

func took(act func()) time.Duration {
	began := time.Now()
	act()
	return time.Since(began)
}

func scrape(h http.Handler) error {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		return fmt.Errorf("scrape: status %d: %s", w.Code, w.Body)
	}
	return nil
}

const manyJob = "bench-0123abcd"

// manyWorkers returns a store in which ten thousand workers run.
func manyWorkers() (*health.Store, []role.Name) {
	s := health.NewStore(manyJob, time.Second, nil, many()...)
	names := s.Names()
	for _, n := range names {
		s.Fence(n)
		s.Begin(n, 0)
		for rank := range manyRanks / manyRoles {
			s.Worker(lifeOf(n, rank), 1000+rank, role.WorkerReady, "")
		}
	}
	for i := range 5 { // so that the limits have been learned
		everybodySpeaks(s, names, int64(i))
	}
	return s, names
}

func lifeOf(n role.Name, rank int) role.Life {
	return role.Life{Job: manyJob, Role: n, Incarnation: 1, Rank: rank, Attempt: 1}
}

func everybodySpeaks(s *health.Store, names []role.Name, step int64) {
	for _, n := range names {
		for rank := range manyRanks / manyRoles {
			s.Beat(lifeOf(n, rank), &step, time.Now())
		}
	}
}

// standing shows the store to the metrics as the controller does.
type standing struct{ *health.Store }

func (s standing) Snapshot() metrics.Snapshot {
	recs, _ := s.Records()
	var out metrics.Snapshot
	for _, rec := range recs {
		r := metrics.Role{Name: rec.Name, Healthy: rec.Healthy, Step: rec.CurrentStep, HeartbeatAge: time.Since(rec.LastHeartbeat), Incarnation: rec.Incarnation}
		for _, k := range rec.Ranks {
			step, age := k.Step, k.Age
			r.Workers = append(r.Workers, metrics.Worker{Rank: k.Rank, State: k.State, Step: &step, HeartbeatAge: &age})
		}
		out.Roles = append(out.Roles, r)
	}
	return out
}
