package rig

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"vigil/internal/event"
	"vigil/internal/role"
)

// Resumption is where a life of the actor of tiny-rl went on.
type Resumption struct {
	Incarnation int
	Step        int64 // of the checkpoint
}

// Output returns the path of what a rank of a life has printed.
func (j *Job) Output(name role.Name, incarnation, rank int) string {
	return filepath.Join(j.Dir, "state", j.UID, "logs", string(name), strconv.Itoa(incarnation), strconv.Itoa(rank)+".1", "stdout.log")
}

// Rewards checks that the metrics.jsonl of tiny-rl in a folder has every step once, in order, and returns
// the mean reward of each.
func (j *Job) Rewards(folder string) []float64 {
	j.t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "metrics.jsonl"))
	if err != nil {
		j.t.Fatal(err)
	}
	var rewards []float64
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var line struct {
			Step   int
			Reward float64
		}
		if err := d.Decode(&line); err != nil {
			j.t.Fatal(err)
		}
		rewards = append(rewards, line.Reward)
		if line.Step != len(rewards) {
			j.t.Fatalf("line %d of metrics.jsonl is of step %d", len(rewards), line.Step)
		}
	}
	return rewards
}

var resumed = regexp.MustCompile(`resumed from checkpoint (\d+)`)

// resumedAt returns the checkpoint that a life of a stateful role says it went on from, and 0 for one that
// had none; found is false if it said nothing at all.
func (j *Job) resumedAt(name role.Name, incarnation int) (step int64, found bool) {
	text, _ := os.ReadFile(j.Output(name, incarnation, 0)) // none: it did not come so far
	m := resumed.FindSubmatch(text)
	if m == nil {
		return 0, len(text) > 0
	}
	step, err := strconv.ParseInt(string(m[1]), 10, 64)
	if err != nil {
		j.t.Fatal(err)
	}
	return step, true
}

// TinyRLResumptions goes through what happened in tiny-rl: every life of a stateful role went on from the
// newest checkpoint that it had saved, or, after a global restart, that all stateful roles had. It returns
// where the actor went on from a checkpoint. A life that said nothing was broken too early.
func (j *Job) TinyRLResumptions() []Resumption {
	j.t.Helper()
	heard, missed := j.Events()
	if missed > 0 {
		j.t.Fatalf("%d events were not heard", missed)
	}
	var all []Resumption
	saved := map[role.Name]int64{"actor": 0, "critic": 0}
	global := map[role.Name]int64{} // what a global restart goes on from, until it has begun the role, alone or in another plan
	for _, e := range heard {
		_, stateful := saved[e.Role]
		switch {
		case e.Kind == event.Checkpoint && stateful:
			saved[e.Role] = *e.Step
		case e.Kind == event.PlanBegan && e.Action == role.Global:
			for name := range saved {
				global[name] = min(saved["actor"], saved["critic"])
			}
		case e.Kind == event.Moved && e.Verb == "run" && e.Error == "" && stateful && e.Incarnation > 1:
			least, everybody := global[e.Role]
			if !everybody {
				least = saved[e.Role]
			}
			delete(global, e.Role)
			at, found := j.resumedAt(e.Role, e.Incarnation)
			if !found {
				continue
			}
			if at < least {
				j.t.Errorf("%s life %d went on from checkpoint %d although %d was saved", e.Role, e.Incarnation, at, least)
			}
			saved[e.Role] = at
			if e.Role == "actor" && at > 0 {
				all = append(all, Resumption{e.Incarnation, at})
			}
		}
	}
	return all
}
