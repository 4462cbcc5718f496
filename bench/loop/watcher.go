package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/job"
	"vigil/internal/metrics"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/rpc"
)

// watcherCommand makes this program the watching half of a controller, until its standard input ends:
// wire, health store, checker, event log and metrics, put together as the controller does, with a
// scrape every ten seconds.
const watcherCommand = "watcher"

// watcherSocket is where it listens, in its folder.
const watcherSocket = "watcher.sock"

// many are the roles of the large job, each with the same number of ranks.
func many() []health.Spec {
	specs := make([]health.Spec, manyRoles)
	for i := range specs {
		specs[i] = health.Spec{Name: role.Name("role_" + strconv.Itoa(i)), Workers: manyRanks / manyRoles,
			Limits: health.Limits{Start: 30 * time.Minute, Floor: health.DefaultHeartbeat, Expect: job.OnceSeen}}
	}
	return specs
}

func beWatcher(folder string) error {
	all := &metrics.Metrics{}
	events := event.NewLog(10_000, func(e event.Event) { all.Observe(e) })
	store := health.NewStore(manyJob, time.Second, events.Record, many()...)
	all = metrics.New(metrics.Options{Source: standing{store}})
	for _, s := range many() {
		store.Fence(s.Name)
		store.Begin(s.Name, 0)
	}
	checker := health.NewChecker(store, time.Second, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	err := checker.Start(func(f health.Findings) error { return fmt.Errorf("found unwell: %+v", f.Failures) })
	if err != nil {
		return err
	}
	listener, err := proc.ListenUnix(filepath.Join(folder, watcherSocket))
	if err != nil {
		return err
	}
	fmt.Println("listening")
	hub := rpc.NewHub(rpc.HubOptions{JobUID: manyJob, Epoch: 1, Ears: watcher{store}})
	served := make(chan error, 1)
	go func() { served <- hub.Serve(listener) }()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := scrape(all.Handler()); err != nil {
				return err
			}
		case err := <-served:
			return err
		case err := <-ended:
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			hub.Stop(ctx)
			return err
		}
	}
}

// watcher hands what services say to the store.
type watcher struct{ *health.Store }

func (watcher) Joined(rpc.Registration)            {}
func (watcher) Left(rpc.Registration)              {}
func (watcher) Suspected(rpc.Registration, string) {}
func (watcher) Lost(rpc.Registration, string)      {}

func (w watcher) Beat(life role.Life, step int64, _ bool, at time.Time) {
	w.Store.Beat(life, &step, at)
}

func (w watcher) Guess(life role.Life, step int64, at time.Time) { w.Store.Guess(life, step, at) }

func (w watcher) Phase(life role.Life, name string, begin bool, at time.Time) {
	w.Store.Phase(life, name, begin, at)
}

func (w watcher) Starved(life role.Life, waited time.Duration) { w.Store.Starved(life, waited) }

func (watcher) Notice(role.Life, string) {}

// StepSet is dropped: nobody sets one.
func (watcher) StepSet(rpc.ServiceID, rpc.StepSet) {}

// Foreign is dropped.
func (watcher) Foreign(role.Life, uint64)      {}
func (watcher) Asked(rpc.Registration, string) {}

func (watcher) Ending(rpc.Registration, string) {}

func (w watcher) Failed(f role.Failure, _ rpc.ServiceID) { w.Report(f) }

func (w watcher) Worker(_ rpc.ServiceID, s rpc.WorkerState) {
	w.Store.Worker(s.Life, s.PID, s.State, s.Status)
}

func (w watcher) Checkpoint(life role.Life, step int64, _ time.Time) { w.Store.Checkpoint(life, step) }
