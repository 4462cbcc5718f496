package fleet

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/farewell"
	"vigil/internal/job"
	"vigil/internal/proc"
	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

func noted(index, services int, change func(*farewell.Note)) farewell.Note {
	n := farewell.Note{Role: "critic", Index: index, Services: services, Incarnation: 2, Why: "it was alone", Step: int64(10 + index), Ended: true,
		Workers: []farewell.Worker{{Life: role.Life{Role: "critic", Incarnation: 2, Rank: index, Attempt: 1}}}}
	if change != nil {
		change(&n)
	}
	return n
}

// unsaid has a note be of workers that have said no steps.
func unsaid(n *farewell.Note) { n.Step, n.Unsaid = 0, true }

// shows: FAULT-C9
func TestARoleWasEndedInOrderOnlyIfAllOfItsServicesSaySo(t *testing.T) {
	fell := role.Failure{Life: role.Life{Role: "critic", Incarnation: 2, Attempt: 1}, Cause: role.Exited, Detail: "exit code 3", At: time.Unix(1, 0).UTC(), Exit: &role.Exit{Code: 3}}
	for name, c := range map[string]struct {
		notes []farewell.Note
		want  *engine.Farewell
	}{
		"one of one":            {notes: []farewell.Note{noted(0, 1, nil)}, want: &engine.Farewell{Incarnation: 2, Why: "it was alone", Step: 10}},
		"the least step of two": {notes: []farewell.Note{noted(1, 2, nil), noted(0, 2, nil)}, want: &engine.Farewell{Incarnation: 2, Why: "it was alone", Step: 10}},
		"one of two knows its step, and it is the first":  {notes: []farewell.Note{noted(0, 2, nil), noted(1, 2, unsaid)}, want: &engine.Farewell{Incarnation: 2, Why: "it was alone", Step: 10}},
		"one of two knows its step, and it is the second": {notes: []farewell.Note{noted(0, 2, unsaid), noted(1, 2, nil)}, want: &engine.Farewell{Incarnation: 2, Why: "it was alone", Step: 11}},
		"nobody has said a step":                          {notes: []farewell.Note{noted(0, 1, unsaid)}, want: &engine.Farewell{Incarnation: 2, Why: "it was alone", Step: 0, Unsaid: true}},
		"one of two is missing":                           {notes: []farewell.Note{noted(1, 2, nil)}},
		"one did not come to it":                          {notes: []farewell.Note{noted(0, 2, nil), noted(1, 2, func(n *farewell.Note) { n.Ended = false })}},
		"one of an earlier life":                          {notes: []farewell.Note{noted(0, 2, nil), noted(1, 2, func(n *farewell.Note) { n.Incarnation = 1 })}},
		"all had finished before":                         {notes: []farewell.Note{noted(0, 1, func(n *farewell.Note) { n.Workers[0].Finished = true })}, want: &engine.Farewell{Incarnation: 2, Why: "it was alone", Step: 10, Finished: true}},
		"one of them had failed before": {notes: []farewell.Note{noted(0, 1, func(n *farewell.Note) { n.Workers[0].Failure = &fell })},
			want: &engine.Farewell{Incarnation: 2, Why: "it was alone", Step: 10, Failures: []role.Failure{fell}}},
	} {
		t.Run(name, func(t *testing.T) {
			logs := filepath.Join(t.TempDir(), "logs")
			for _, n := range c.notes {
				if err := farewell.Write(logs, n); err != nil {
					t.Fatal(err)
				}
			}
			f := &Farewells{LogDir: logs, Job: &job.Job{}, Log: slog.New(slog.DiscardHandler)}
			want := map[role.Name]engine.Farewell{}
			if c.want != nil {
				want["critic"] = *c.want
			}
			if diff := cmp.Diff(want, f.Read(t.Context())); diff != "" {
				t.Errorf("the wrong farewells (-want +got):\n%s", diff)
			}
			f.Remove()
			if left, err := farewell.Read(logs); len(left) > 0 || err != nil {
				t.Errorf("left: %+v, %v", left, err)
			}
		})
	}
}

// A controller that comes while a service is ending its workers waits for the end of that.
// shows: FAULT-C9
func TestAServiceThatIsEndingItsWorkersIsWaitedFor(t *testing.T) {
	self, err := proc.Identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(t.TempDir(), "logs")
	ending := noted(0, 1, func(n *farewell.Note) { n.Ended, n.PID, n.Start = false, self.PID, self.StartTime })
	if err := farewell.Write(logs, ending); err != nil {
		t.Fatal(err)
	}
	f := &Farewells{LogDir: logs, Job: &job.Job{Roles: []job.Role{{Name: "critic"}}}, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan map[role.Name]engine.Farewell)
	go func() { got <- f.Read(ctx) }()
	select {
	case early := <-got:
		t.Errorf("it was not waited for: %+v", early)
	case <-time.After(3 * pollEvery): // not waiting takes no time at all
	}
	ending.Ended = true
	if err := farewell.Write(logs, ending); err != nil {
		t.Fatal(err)
	}
	cancel() // the process, which is the test, does not end
	if left := <-got; left["critic"].Step != 10 {
		t.Errorf("got %+v, want critic at step 10", left)
	}
}

// A file that is no farewell, or not of its place, keeps no other from being read.
func TestWhatIsNoFarewellIsLeftOut(t *testing.T) {
	logs := filepath.Join(t.TempDir(), "logs")
	if err := farewell.Write(logs, noted(0, 1, nil)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"actor.0.json", "critic.1.json"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(logs), "farewell", name), []byte(`{"role":"critic"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	notes, err := farewell.Read(logs)
	if len(notes) != 1 || err == nil {
		t.Errorf("%d notes, %v; want the good one, and an error about the others", len(notes), err)
	}
}

// Nobody was there to hear what workers saved before their service ended them.
// shows: FAULT-C9 FAULT-D1
func TestWhatWasSavedWithoutAControllerIsTold(t *testing.T) {
	logs := filepath.Join(t.TempDir(), "logs")
	step := int64(40)
	for _, n := range []farewell.Note{noted(0, 2, func(n *farewell.Note) { n.Workers[0].Saved = &step }), noted(1, 2, nil)} {
		if err := farewell.Write(logs, n); err != nil {
			t.Fatal(err)
		}
	}
	told := map[role.Life]int64{}
	f := &Farewells{LogDir: logs, Job: &job.Job{}, Log: slog.New(slog.DiscardHandler), Saved: func(life role.Life, step int64) { told[life] = step }}
	f.Read(t.Context())
	want := map[role.Life]int64{{Role: "critic", Incarnation: 2, Rank: 0, Attempt: 1}: 40}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
