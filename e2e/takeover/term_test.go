package takeover

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// termVar asks for so many rounds of every order, each with a save of 6 s; without it there is one, and 2 s.
const termVar = "VIGIL_TERM"

// saver is a job of four roles. Some ranks die of TERM, some exit with 0 at once, some need SAVE to save their work
// first, which is more than a stop after a failure gives them.
const saver = `
name: saver
roles:
  actor: {command: [WORKER, 'rank0:saves=SAVE', beat], workers: 2, stop: {grace: 60s, grace_on_failure: 1s}}
  critic: {command: [WORKER, orderly, beat]}
  reward: {command: [WORKER, 'saves=SAVE', beat], stop: {grace: 60s, grace_on_failure: 1s}}
  rollout: {command: [WORKER, beat], completion: daemon}
`

// allSave is the job in which every rank saves and exits with 0.
const allSave = `
name: saver
roles:
  actor: {command: [WORKER, 'rank0:saves=SAVE', 'rank1:orderly', beat], workers: 2, stop: {grace: 60s, grace_on_failure: 1s}}
  critic: {command: [WORKER, orderly, beat]}
  reward: {command: [WORKER, 'saves=SAVE', beat], stop: {grace: 60s, grace_on_failure: 1s}}
  rollout: {command: [WORKER, orderly, beat], completion: daemon}
`

// processes of the job, when it is stopped.
type processes struct {
	controller        int
	services, workers []int
}

// everybody are the pids but for the controller's, ascending.
func (p processes) everybody() []int {
	return slices.Sorted(slices.Values(slices.Concat(p.services, p.workers)))
}

// orders are the ways in which schedulers and people reach all processes of a job.
var orders = map[string]func(processes) []int{
	"ascending": func(p processes) []int { return slices.Sorted(slices.Values(append(p.everybody(), p.controller))) },
	"descending": func(p processes) []int {
		return reversed(slices.Sorted(slices.Values(append(p.everybody(), p.controller))))
	},
	"workers first":  func(p processes) []int { return slices.Concat(p.workers, p.services, []int{p.controller}) },
	"services first": func(p processes) []int { return slices.Concat(p.services, p.workers, []int{p.controller}) },
	"process group":  func(p processes) []int { return []int{-p.controller} },
	"systemctl stop": func(p processes) []int { return append([]int{p.controller}, p.everybody()...) },
}

func reversed(pids []int) []int {
	slices.Reverse(pids)
	return pids
}

// TERM reaches every process of a job, in every order. Each rank that saves its work can finish that, nothing is charged,
// and the same command goes on with every role.
// shows: FAULT-C1 FAULT-C2
func TestTermReachesEveryProcessInAnyOrder(t *testing.T) {
	rounds, save := 1, 2*time.Second
	if n, err := strconv.Atoi(cmp.Or(os.Getenv(termVar), "0")); err == nil && n > 0 {
		rounds, save = n, 6*time.Second
	}
	for kind, file := range map[string]string{"mixed": saver, "exits with 0": allSave} {
		for _, order := range slices.Sorted(maps.Keys(orders)) {
			for round := range rounds {
				t.Run(fmt.Sprintf("%s/%s/%d", kind, order, round), func(t *testing.T) {
					t.Parallel()
					j := prepare(t, false, strings.ReplaceAll(file, "SAVE", save.String()))
					j.group = true
					tellTerm(t, j, orders[order])
				})
			}
		}
	}
}

// tellTerm tells the story of one such stop.
func tellTerm(t *testing.T, j *job, order func(processes) []int) {
	begun(j)
	for _, pid := range order(j.processes()) {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
	select {
	case <-j.ended:
	case <-time.After(patience):
		t.Fatalf("the job has not ended after %s", patience)
	}
	if code := j.cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("exit %d, want 143", code)
	}
	for _, name := range []string{"actor.0", "reward.0"} {
		if _, err := os.Stat(filepath.Join(j.dir, "saved."+name)); err != nil {
			t.Errorf("%s could not save its work: %v", name, err)
		}
	}
	for _, left := range j.rig().Left() {
		t.Errorf("left: %s", left)
	}
	now := begun(j) // the same command, in the same run
	if now.job.GlobalRestarts != 0 {
		t.Errorf("%d global restarts are charged", now.job.GlobalRestarts)
	}
	for name, r := range now.roles {
		if r.RestartCount != 0 {
			t.Errorf("%d restarts of %s are charged", r.RestartCount, name)
		}
	}
	j.interrupt(func() {})
}

// processes are those of the job now.
func (j *job) processes() processes {
	p := processes{controller: j.cmd.Process.Pid}
	for pid, one := range j.rig().Processes() {
		if one.Life() == "" {
			p.services = append(p.services, pid)
		} else {
			p.workers = append(p.workers, pid)
		}
	}
	slices.Sort(p.services)
	slices.Sort(p.workers)
	return p
}
