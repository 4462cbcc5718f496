// Package tinyrl breaks the example job tiny-rl in every way while it learns, and shows that it is done
// all the same, that it has learned as much as a run that nobody disturbed, and that no step is lost
// beyond the last checkpoint. What can be broken is in faults_test.go, a running job in run_test.go.
package tinyrl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
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

	if n := len(quiet.incidents()); n != 0 {
		t.Errorf("the undisturbed run has %d incidents: %v", n, quiet.incidents())
	}
	if got := broken.incidents(); len(got) != len(faults) {
		t.Errorf("%d things were broken, and there are %d incidents: %v", len(faults), len(got), got)
	}
	undisturbed, learned := quiet.learned(), broken.learned()
	t.Logf("mean reward of the last tenth: %.3f undisturbed (%s), %.3f with %d failures (%s)",
		undisturbed, quiet.took.Round(time.Second), learned, len(faults), broken.took.Round(time.Second))
	if off := learned - undisturbed; off < -tr.tolerance || off > tr.tolerance {
		t.Errorf("they are %.3f apart, more than %.2f", off, tr.tolerance)
	}
	broken.resumedFromTheNewestCheckpoints()
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

// learned checks that metrics.jsonl has every step once, in order, and returns the mean reward of the
// last tenth.
func (r *run) learned() float64 {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "learned", "metrics.jsonl"))
	if err != nil {
		r.t.Fatal(err)
	}
	var rewards []float64
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var line struct {
			Step   int
			Reward float64
		}
		if err := d.Decode(&line); err != nil {
			r.t.Fatal(err)
		}
		rewards = append(rewards, line.Reward)
		if line.Step != len(rewards) {
			r.t.Fatalf("line %d of metrics.jsonl is of step %d", len(rewards), line.Step)
		}
	}
	if len(rewards) != r.trial.steps {
		r.t.Fatalf("metrics.jsonl has %d lines, want %d", len(rewards), r.trial.steps)
	}
	sum, last := 0.0, rewards[len(rewards)-len(rewards)/10:]
	for _, x := range last {
		sum += x
	}
	return sum / float64(len(last))
}

var resumed = regexp.MustCompile(`resumed from checkpoint (\d+)`)

// resumedAt returns the checkpoint that a life of a stateful role says it went on from; 0 without one.
func (r *run) resumedAt(name role.Name, incarnation int) int64 {
	log, err := os.ReadFile(filepath.Join(r.dir, "state", r.uid, "logs", string(name), strconv.Itoa(incarnation), "0.1", "stdout.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	m := resumed.FindSubmatch(log)
	if m == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// resumedFromTheNewestCheckpoints goes through what happened: every life of a stateful role went on
// from the newest checkpoint that it had saved, or, after a global restart, that all stateful roles had.
func (r *run) resumedFromTheNewestCheckpoints() {
	r.t.Helper()
	saved := map[role.Name]int64{"actor": 0, "critic": 0}
	global := map[string]bool{} // by incident
	var want map[role.Name]int64
	lives := 0
	for _, e := range r.heard() {
		_, stateful := saved[e.Role]
		switch {
		case e.Kind == event.Checkpoint && stateful:
			saved[e.Role] = *e.Step
		case e.Kind == event.PlanBegan && e.Action == role.Global:
			global[e.Incident] = true
			newest := min(saved["actor"], saved["critic"])
			want = map[role.Name]int64{"actor": newest, "critic": newest}
		case e.Kind == event.Moved && e.Verb == "run" && stateful && e.Incarnation > 1:
			least := saved[e.Role]
			if global[e.Incident] {
				least = want[e.Role]
			}
			at := r.resumedAt(e.Role, e.Incarnation)
			r.t.Logf("%s incarnation %d goes on from checkpoint %d; it had saved %d, wanted is %d or more", e.Role, e.Incarnation, at, saved[e.Role], least)
			if at < least {
				r.t.Errorf("%s incarnation %d went on from checkpoint %d although %d was saved", e.Role, e.Incarnation, at, least)
			}
			saved[e.Role] = at
			lives++
		}
	}
	if lives == 0 {
		r.t.Error("no stateful role was begun again")
	}
	if n := len(global); n == 0 {
		r.t.Error("there was no global restart")
	}
}

func (f fault) String() string {
	if f.rank < 0 {
		return fmt.Sprintf("%s of %s at step %d", f.kind.name, f.role, f.step)
	}
	return fmt.Sprintf("%s of %s rank %d at step %d", f.kind.name, f.role, f.rank, f.step)
}
