package soak

import (
	"math"
	"os"
	"path/filepath"
	"strconv"

	"vigil/e2e/rig"
	"vigil/internal/role"
)

// lives returns the number of the newest life of a role that has left a log.
func lives(j *rig.Job, name role.Name) int {
	all, _ := filepath.Glob(filepath.Join(j.Dir, "state", j.UID, "logs", string(name), "[0-9]*"))
	newest := 0
	for _, path := range all {
		if n, err := strconv.Atoi(filepath.Base(path)); err == nil {
			newest = max(newest, n)
		}
	}
	return newest
}

// tinyCurve checks what tiny-rl has learned. Its programs race, so no two runs are alike in every
// reward; but every step stands in metrics.jsonl once, every life went on from the newest checkpoint that
// it should, and at no restart the reward falls back.
func (s *soak) tinyCurve(folder string) {
	s.t.Helper()
	rewards, all := s.job.Rewards(folder), s.job.TinyRLResumptions()
	for _, r := range all {
		const window, fall = 20, 0.35 // a batch deviates by about 0.1 from the next, an untrained policy by 1.5
		at := int(r.Step)
		if at < window || at+window > len(rewards) {
			continue
		}
		before, after := mean(rewards[at-window:at]), mean(rewards[at:at+window])
		if after < before-fall {
			s.t.Errorf("life %d of the actor went on from step %d, and the mean reward fell from %.2f to %.2f", r.Incarnation, at, before, after)
		}
	}
	tail := rewards[max(0, len(rewards)-50):]
	s.t.Logf("%d steps, each once; %d lives of the actor went on from a checkpoint; the mean reward of the last %d steps is %.3f", len(rewards), len(all), len(tail), mean(tail))
	if len(rewards) > 400 && mean(tail) < 0.6 {
		s.t.Errorf("after %d steps the mean reward is %.3f, undisturbed it is 0.84", len(rewards), mean(tail))
	}
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	return sum / float64(len(all))
}

// ddpEvery is how many steps lie between two checkpoints of the DDP job.
const ddpEvery = 20

// losses returns what rank 0 of a life of the DDP job has said; nothing if it did not come so far.
func losses(j *rig.Job, incarnation int) []rig.Loss {
	text, _ := os.ReadFile(j.Output("main", incarnation, 0))
	return rig.Losses(string(text))
}

// ddpCurve checks that every life of the DDP job began at the newest checkpoint and left no step out, and
// returns the last step.
func (s *soak) ddpCurve() int {
	s.t.Helper()
	last, began := 0, 0
	for life := 1; life <= lives(s.job, "main"); life++ {
		seen := losses(s.job, life)
		if len(seen) == 0 {
			continue // broken before its first step
		}
		began++
		// What ended in the middle of saving has not saved.
		from := seen[0].Step - 1
		if from%ddpEvery != 0 || from > last || from < last-last%ddpEvery-ddpEvery {
			s.t.Errorf("life %d went on from step %d, after step %d", life, from, last)
		}
		for i, l := range seen {
			if l.Step != from+1+i {
				s.t.Fatalf("life %d: step %d follows step %d", life, l.Step, from+i)
			}
		}
		last = seen[len(seen)-1].Step
	}
	s.t.Logf("%d lives made %d steps, none left out", began, last)
	return last
}

// sameLosses compares with a run of the same job that nobody disturbed.
func (s *soak) sameLosses(quiet *rig.Job) {
	s.t.Helper()
	want := map[int]float64{}
	for _, l := range losses(quiet, 1) {
		want[l.Step] = l.Loss
	}
	compared, worst := 0, 0.0
	for life := 1; life <= lives(s.job, "main"); life++ {
		for _, l := range losses(s.job, life) {
			undisturbed, ok := want[l.Step]
			if !ok {
				continue // beyond the last life's end
			}
			off := math.Abs(l.Loss - undisturbed)
			if off > 1e-3 {
				s.t.Fatalf("life %d step %d: loss %f, undisturbed %f", life, l.Step, l.Loss, undisturbed)
			}
			compared, worst = compared+1, max(worst, off)
		}
	}
	s.t.Logf("%d losses are those of an undisturbed run, the worst within %.6f", compared, worst)
	if compared == 0 {
		s.t.Error("nothing was compared")
	}
}
