// Package tinyrl breaks the example job tiny-rl in every way while it learns, and shows that it is done
// all the same, that it has learned as much as a run that nobody disturbed, and that no step is lost
// beyond the last checkpoint. What can be broken is in faults_test.go, a running job in run_test.go.
package tinyrl

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// shows: R24 R25 R36 R48 R49 R57
func TestAJobThatIsBrokenThreeTimesLearnsAsMuchAsOneThatIsNot(t *testing.T) {
	// The last 12 of 120 steps come out with a deviation of 0.03 over seeds: still learning, 16 episodes
	// a step.
	trial{steps: 120, tolerance: 0.15, limit: 3 * time.Minute}.run(t, few)
}

// longVariable, when it is set, asks for the long test, which takes some minutes.
const longVariable = "TINY_RL_LONG"

func TestLongAJobThatIsBrokenTenTimesLearnsAsMuchAsOneThatIsNot(t *testing.T) {
	if os.Getenv(longVariable) == "" {
		t.Skipf("SKIPPED: takes minutes; ask for it with %s=1", longVariable)
	}
	// The last 40 of 400 steps come out with a deviation of 0.005 over seeds.
	trial{steps: 400, tolerance: 0.05, limit: 15 * time.Minute}.run(t, many)
}

// trial is one comparison of a broken run with an undisturbed one.
type trial struct {
	steps     int
	tolerance float64 // between the two mean rewards over the last tenth of the steps
	limit     time.Duration
}

// run runs the job twice, side by side, and breaks one of the two.
func (tr trial) run(t *testing.T, draw func(*rand.Rand) []fault) {
	seed := faultSeed(t)
	chance := rand.New(rand.NewPCG(seed, 0))
	faults := draw(chance)
	settle(chance, faults, tr.steps)
	quiet, broken := begin(t, tr), begin(t, tr)
	for _, f := range faults {
		broken.breaks(chance, f)
	}
	broken.end()
	quiet.end()

	if n := len(quiet.Incidents()); n != 0 {
		t.Errorf("the undisturbed run has %d incidents: %v", n, quiet.Incidents())
	}
	if got := broken.Incidents(); len(got) != len(faults) {
		t.Errorf("%d things were broken, and there are %d incidents: %v", len(faults), len(got), got)
	}
	undisturbed, learned := quiet.learned(), broken.learned()
	t.Logf("mean reward of the last tenth: %.3f undisturbed, %.3f with %d failures", undisturbed, learned, len(faults))
	if off := learned - undisturbed; off < -tr.tolerance || off > tr.tolerance {
		t.Errorf("they are %.3f apart, more than %.2f", off, tr.tolerance)
	}
	if all := broken.TinyRLResumptions(); len(all) == 0 {
		t.Error("the actor was never begun again from a checkpoint")
	}
}

// faultSeed is TINY_RL_FAULTS, or a new one; it is printed so that a run can be had again.
func faultSeed(t *testing.T) uint64 {
	seed := rand.Uint64N(1_000_000)
	if text := os.Getenv("TINY_RL_FAULTS"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("TINY_RL_FAULTS: %v", err)
		}
	}
	t.Logf("TINY_RL_FAULTS=%d", seed)
	return seed
}

// learned returns the mean reward of the last tenth of the steps, of which each was made once.
func (r *run) learned() float64 {
	r.t.Helper()
	rewards := r.Rewards(r.folder)
	if len(rewards) != r.trial.steps {
		r.t.Fatalf("metrics.jsonl has %d lines, want %d", len(rewards), r.trial.steps)
	}
	sum, last := 0.0, rewards[len(rewards)-len(rewards)/10:]
	for _, x := range last {
		sum += x
	}
	return sum / float64(len(last))
}

func (f fault) String() string {
	if f.rank < 0 {
		return fmt.Sprintf("%s of %s at step %d", f.kind.name, f.role, f.step)
	}
	return fmt.Sprintf("%s of %s rank %d at step %d", f.kind.name, f.role, f.rank, f.step)
}
