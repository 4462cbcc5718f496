// Package engines breaks the example job trainer-and-engines: engines that die, hang or refuse, one at
// a time and both at once. It shows that one engine is replaced while the trainer goes on with the
// other, and that the new one is asked nothing before it has the trainer's weights. What the tests ask
// of a running job is in job_test.go.
package engines

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"vigil/e2e/rig"
	"vigil/internal/role"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

func TestAnEngineThatIsKilledIsReplacedWhileTheTrainerGoesOn(t *testing.T) {
	t.Parallel()
	j := begin(t)
	before := j.well()
	if err := syscall.Kill(before.engines[0].pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	j.replacedAlone(before, 0, role.Exited)
	j.goesOn(10)
	if got := j.now(); got.trainer != before.trainer || got.engines[1] != before.engines[1] {
		t.Errorf("all is %+v; it was %+v", got, before)
	}
	j.rejoins(before, 0)
	j.finish()
}

func TestAnEngineThatHangsIsFoundByTheAliveProbeAndReplaced(t *testing.T) {
	t.Parallel()
	j := begin(t)
	before := j.well()
	j.knob("engine-1.hang")
	j.replacedAlone(before, 1, role.Stuck)
	j.goesOn(5)
	j.rejoins(before, 1)
	j.finish()
}

func TestAnEngineThatTheTrainerReportsIsReplaced(t *testing.T) {
	t.Parallel()
	j := begin(t)
	before := j.well()
	j.knob("engine-0.refuse")
	j.knob("update")
	j.replacedAlone(before, 0, role.Reported)
	j.rejoins(before, 0)
	j.finish()
}

func TestWhenBothEnginesAreKilledTheRoleIsRepairedAsAWhole(t *testing.T) {
	t.Parallel()
	j := begin(t)
	before := j.well()
	for _, e := range before.engines {
		if err := syscall.Kill(e.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	j.Eventually("both engines are ready in a new incarnation", func() error {
		got, err := j.look()
		if err != nil {
			return err
		}
		for _, e := range got.engines {
			if e.state != role.WorkerReady || e.life.Incarnation != 2 || e.life.Attempt != 1 {
				return fmt.Errorf("they are %+v", got)
			}
		}
		return nil
	})
	j.goesOn(5) // nobody asked for an update: the trainer has seen that the weights are not its own
	j.routes(0, 1)
	now := j.now()
	for rank, e := range now.engines {
		j.Eventually(fmt.Sprintf("engine %d has the trainer's weights", rank), func() error {
			if v := j.version(rank); v == "untrained" {
				return fmt.Errorf("they are %q", v)
			}
			return nil
		})
		if e.pid == before.engines[0].pid || e.pid == before.engines[1].pid {
			t.Errorf("engine %d is still process %d", rank, e.pid)
		}
	}
	if now.trainer != before.trainer || now.router != before.router {
		t.Errorf("trainer and router were %+v and are %+v", before, now)
	}
	j.finish()
}

func TestTheTrainerAndTheRouterComeBackToTheSameEngines(t *testing.T) {
	t.Parallel()
	j := begin(t)
	before := j.well()
	j.goesOn(10) // beyond a checkpoint
	if err := errors.Join(syscall.Kill(before.trainer, syscall.SIGKILL), syscall.Kill(before.router, syscall.SIGKILL)); err != nil {
		t.Fatal(err)
	}
	j.Eventually("another trainer and another router", func() error {
		got, err := j.look()
		if err == nil && (got.trainer == before.trainer || got.router == before.router || got.trainer == 0 || got.router == 0) {
			err = fmt.Errorf("it is %+v, and was %+v", got, before)
		}
		return err
	})
	j.goesOn(5)
	j.routes(0, 1)
	if now := j.now(); !slices.Equal(now.engines, before.engines) {
		t.Errorf("the engines were %+v and are %+v", before.engines, now.engines)
	}
	j.finish()
}

func TestAnEngineWhoseWatchIsPausedMayBeBusyForLong(t *testing.T) {
	t.Parallel()
	j := begin(t)
	before := j.well()
	j.post("/engine/pause_watch?for=10m&worker=1")
	j.ask("POST", before.engines[1].url+"/pause", nil)
	j.Eventually("engine 1 alone is paused", func() error {
		got, err := j.look()
		if err == nil && (got.engines[0].state != role.WorkerReady || got.engines[1].state != role.WorkerPaused) {
			err = fmt.Errorf("it is %+v", got)
		}
		return err
	})
	j.Pause(7 * time.Second) // three bad answers would be there after 3 s
	j.goesOn(5)
	j.ask("POST", before.engines[1].url+"/resume", nil)
	j.post("/engine/resume_watch?worker=1")
	j.well()
	if now := j.now(); !slices.Equal(now.engines, before.engines) || len(j.Incidents()) > 0 {
		t.Errorf("the engines were %+v and are %+v; incidents %+v", before.engines, now.engines, j.Incidents())
	}
	j.finish()
}

func TestTheTrainerLearnsAndTheJobIsDone(t *testing.T) {
	t.Parallel()
	j := begin(t, "ENGINES_STEPS=60", "ENGINES_PERIOD=0.05", "ENGINES_UPDATE_EVERY=5")
	j.End(0)
	text, err := os.ReadFile(filepath.Join(j.folder, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var rewards []float64
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var line struct {
			Step   int
			Reward float64
		}
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if rewards = append(rewards, line.Reward); line.Step != len(rewards) {
			t.Fatalf("line %d is of step %d", len(rewards), line.Step)
		}
	}
	if len(rewards) != 60 || mean(rewards[:10]) > 0.4 || mean(rewards[50:]) < 0.8 {
		t.Errorf("%d steps, mean reward %.2f of the first ten and %.2f of the last", len(rewards), mean(rewards[:10]), mean(rewards[len(rewards)-10:]))
	}
}

func mean(of []float64) float64 {
	sum := 0.0
	for _, x := range of {
		sum += x
	}
	return sum / float64(len(of))
}
