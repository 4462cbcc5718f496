package takeover

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/wire/httpapi"
)

// usuallyAway is for how long the controller is away; VIGIL_AWAY says otherwise.
const usuallyAway = "45s"

// 64 workers say nothing for long, which their service looks at and tells of every two seconds, one of them saves and one
// reports an error and lives on, all while there is no controller. The next one knows of both. In synctest the same is
// shown of nine minutes.
//
// shows: FAULT-D1
func TestWhatHappensWhileAControllerIsAwayForLongIsKnownToTheNext(t *testing.T) {
	t.Parallel()
	away, err := time.ParseDuration(cmp.Or(os.Getenv("VIGIL_AWAY"), usuallyAway))
	if err != nil {
		t.Fatalf("VIGIL_AWAY: %v", err)
	}
	j := prepare(t, false, `name: slow
roles:
  critic: {workers: 64, distributed: none, restart: {backoff: {base: 100ms}}, command: [WORKER, step=1, "life1:rank0:await=GO", "life1:rank0:say=X_VIGIL_CHECKPOINT=4000", "life1:rank5:await=GO", "life1:rank5:say=X_VIGIL_ERROR=loss is NaN", wait]}
`)
	file := filepath.Join(j.dir, "job.yaml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "GO", filepath.Join(j.dir, "go"))), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	j.start()
	j.poll("all is well", func() error {
		now, err := j.look()
		if err == nil {
			err = now.ill()
		}
		return err
	})
	j.kill()
	if err := os.WriteFile(filepath.Join(j.dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	back := time.NewTimer(away) // the absence itself
	<-back.C
	j.start()
	j.poll("the failure is known and repaired", func() error {
		var list httpapi.IncidentList
		if err := j.get("/api/v1/incidents", &list); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Incidents, func(i httpapi.Incident) bool {
			return i.Rank == 5 && i.Cause == "reported" && i.Detail == "loss is NaN" && !i.Open
		}) {
			return fmt.Errorf("the incidents are %+v", list.Incidents)
		}
		return nil
	})
	j.poll("the checkpoint is known", func() error {
		var list httpapi.EventList
		if err := j.get("/api/v1/events", &list); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Events, func(e event.Event) bool {
			return e.Kind == event.Checkpoint && e.Step != nil && *e.Step == 4000
		}) {
			return errors.New("no event tells of it")
		}
		return nil
	})
	j.interrupt(func() {})
}
