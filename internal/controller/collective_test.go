package controller

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/health"
	"vigil/internal/role"
)

// shows: A13
func TestAnIncidentSaysWhichRankHasNotEnteredTheCollectiveWhenTheWorkersHaveEnded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var said printed
	history := event.NewHistory(1)
	n := newIncidents(dir, history, nil, "", slog.New(slog.NewTextHandler(&said, nil)))
	tell := func(id string, kind event.Kind, verb string) {
		e := event.New(time.Now(), kind)
		e.Incident, e.Role, e.Incarnation, e.Cause, e.Verb, e.Log = id, "critic", 3, role.Silent, verb, "/logs/critic/3/1.1/stderr.log"
		history.Observe(e)
		n.write()
	}
	tell("7", event.Failure, "")
	if i := readIncident(t, dir, "7"); i.Collective != "" || i.Log != "/logs/critic/3/1.1/stderr.log" {
		t.Errorf("detected: %+v", i)
	}
	for rank, name := range []string{"rank_0", "rank_1", "code"} {
		src, err := os.ReadFile(filepath.Join("..", "evidence", "testdata", "flight", name))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "7", "critic", "3", string(rune('0'+rank))+".1", "nccl_trace")
		written := time.Unix(1_700_000_100, 0)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, src, 0o600), os.Chtimes(path, written, written)); err != nil {
			t.Fatal(err)
		}
	}
	tell("7", event.Moved, "stop_service")
	want := "rank 1 of the world has not entered all_reduce #42 (nccl:all_reduce, process group default_pg); rank 0 waits in it since 14 s"
	if i := readIncident(t, dir, "7"); i.Collective != want {
		t.Errorf("stopped: %q, want %q", i.Collective, want)
	}
	tell("7", event.PlanEnded, "")
	for _, once := range []string{want, "the flight recorder's word is not taken", "dump of rank 2"} {
		if strings.Count(said.String(), once) != 1 {
			t.Errorf("%q is not said once:\n%s", once, said.String())
		}
	}
	tell("8", event.Failure, "") // of which one is remembered
	if got := n.said.get("7"); got != "" || len(n.said.of) != 0 {
		t.Errorf("an incident that is not remembered says %q", got)
	}
}

func TestAFailureOfOneWorkerThatNamesNoLogIsGivenItsStandardError(t *testing.T) {
	t.Parallel()
	life := role.Life{Job: "tiny-1", Role: "critic", Incarnation: 3, Rank: 1, Attempt: 2}
	whole := life
	whole.Rank = role.NoRank
	found := []role.Failure{{Life: life}, {Life: whole}, {Life: life, Log: "own.log"}, {Life: role.Life{Role: "critic"}}}
	got := withLogs("/logs", found)
	for i, want := range []string{"/logs/critic/3/1.2/stderr.log", "", "own.log", ""} {
		if got[i].Log != want {
			t.Errorf("failure %d: %q, want %q", i, got[i].Log, want)
		}
	}
	if found[0].Log != "" {
		t.Error("what the checker found was changed")
	}
}

func TestOpenPhasesAreShownWithTheirLimitsWhereTheyAreKnown(t *testing.T) {
	t.Parallel()
	got := phases([]health.OpenPhase{{Name: "step", Age: 1500 * time.Millisecond}, {Name: "save", Age: time.Second, Limit: time.Minute}})
	if len(got) != 2 || got[0].Name != "step" || got[0].AgeSeconds != 1.5 || got[0].LimitSeconds != nil || got[1].LimitSeconds == nil || *got[1].LimitSeconds != 60 {
		t.Errorf("%+v", got)
	}
	if none := phases(nil); none == nil || len(none) != 0 {
		t.Errorf("none: %v, want an empty list", none)
	}
}
