package takeover

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vigil/internal/journal"
)

// ends are jobs that end by themselves, each in another way.
var ends = []struct {
	name, job string
	args      []string
	exit      int
	lives     int    // of workers that end
	why       string // the end of it
}{
	{name: "well", exit: 0, lives: 2, why: "every role that finishes has ended well", job: `name: ends
roles:
  actor: {command: [WORKER, 'note=lives $VIGIL_LIFE', 'beats=3', 'exit=0']}
  critic: {command: [WORKER, 'note=lives $VIGIL_LIFE', 'beats=5', 'exit=0']}
  store: {command: [WORKER, beat], completion: daemon}
`},
	{name: "by a rule", exit: 1, lives: 1, why: "rule 1 of actor (exit_code 3) says stop", job: `name: ends
roles:
  actor: {command: [WORKER, 'note=lives $VIGIL_LIFE', 'beats=3', 'exit=3'], restart: {rules: [{exit_code: 3, action: stop}]}}
  store: {command: [WORKER, beat], completion: daemon}
`},
	{name: "with its budget spent", args: []string{"--max-global-restart", "1"}, exit: 1, lives: 2, why: "1 of 1 global restarts are spent", job: `name: ends
roles:
  actor: {command: [WORKER, 'note=lives $VIGIL_LIFE', 'beats=3', 'exit=3'], restart: {on_failure: global, backoff: {base: 0}}}
  store: {command: [WORKER, beat], completion: daemon}
`},
	{name: "without progress", args: []string{"--no-progress-lives", "2"}, exit: 93, lives: 2, why: "gained no step in 2 lives", job: `name: ends
roles:
  actor: {command: [WORKER, 'note=lives $VIGIL_LIFE', ready, 'exit=3'], restart: {backoff: {base: 0}}}
  store: {command: [WORKER, beat], completion: daemon}
`},
}

// runOut runs controllers until the run is over, and returns how it has ended and why.
func (j *job) runOut(args ...string) journal.Ended {
	j.t.Helper()
	for range 5 {
		j.starts++
		log, err := os.Create(filepath.Join(j.dir, fmt.Sprintf("log.%d", j.starts)))
		if err != nil {
			j.t.Fatal(err)
		}
		j.cmd, j.ended = j.command(args...), make(chan struct{})
		j.cmd.Stdout, j.cmd.Stderr = log, log
		if err := j.cmd.Start(); err != nil {
			j.t.Fatal(err)
		}
		go func() { _ = j.cmd.Wait(); close(j.ended) }()
		select {
		case <-j.ended:
		case <-time.After(patience):
			j.t.Fatalf("controller %d does not end", j.starts)
		}
		log.Close()
		if m := answers.FindStringSubmatch(j.log(j.starts)); m != nil {
			j.uid = m[1]
		}
		exit, over := j.cmd.ProcessState.ExitCode(), j.closed()
		if over != nil { // its controller may have died right after it had recorded that
			if exit >= 0 && exit != over.Exit {
				j.t.Errorf("exit %d, and the journal says %+v", exit, over)
			}
			return *over
		}
		if exit >= 0 {
			j.t.Fatalf("exit %d, and the run is open", exit)
		}
		j.deaths++
		args = nil
	}
	j.t.Fatal("every controller is killed")
	return journal.Ended{}
}

// closed is how the run has ended; nil while it is open.
func (j *job) closed() *journal.Ended {
	j.t.Helper()
	book, err := journal.Open(j.journal(), journal.Options{Job: "ends"})
	if err != nil {
		j.t.Fatal(err)
	}
	defer book.Close()
	run, _, err := book.LastRun()
	if err != nil {
		j.t.Fatal(err)
	}
	return run.Closed
}

// A job that ends does so in the same way, and after the same lives, wherever its controller dies. The last
// writes come when everything has ended.
// shows: A40 A44 A49
func TestAJobEndsTheSameWhereverItsControllerDies(t *testing.T) {
	chance := seed(t)
	var died, told atomic.Int64
	t.Run("each", func(t *testing.T) {
		for _, e := range ends {
			count := prepare(t, false, e.job, e.args...)
			if end := count.runOut(); end.Exit != e.exit {
				t.Fatalf("%s: %+v, want exit %d", e.name, end, e.exit)
			}
			n := newestWrite(t, count.journal())
			writes := chance.Perm(n)
			if os.Getenv("VIGIL_TAKEOVER") != "all" {
				writes = append(writes[:1], n*5/8, n*6/8, n*7/8, n-1) // most are among the last
			}
			for _, w := range writes {
				for _, side := range []string{"before", "after"} {
					t.Run(fmt.Sprintf("%s-%d-%s", e.name, w+1, side), func(t *testing.T) {
						t.Parallel()
						j := prepare(t, w%2 == 1 && os.Geteuid() == 0, e.job, e.args...)
						if end := j.runOut("--die-at-write", fmt.Sprintf("%d:%s", w+1, side)); end.Exit != e.exit || !strings.Contains(end.Why, e.why) {
							t.Errorf("%+v, want exit %d: %s", end, e.exit, e.why)
						}
						j.livedOnce()
						if text, _ := os.ReadFile(filepath.Join(j.dir, "lives")); strings.Count(string(text), "\n") != e.lives {
							t.Errorf("lives, want %d:\n%s", e.lives, text)
						}
						for _, left := range j.rig().Left() {
							t.Errorf("left: %s", left)
						}
						died.Add(int64(j.deaths))
						told.Add(1)
					})
				}
			}
		}
	})
	t.Logf("in %d of %d stories the controller died", died.Load(), told.Load())
	if died.Load() < told.Load()/4 { // writes may meet in one commit, and the last numbers are not reached then
		t.Errorf("the controller died in %d of %d stories", died.Load(), told.Load())
	}
}

// A controller is killed after it has closed the run and before it could exit. Whoever starts it again, as a supervisor
// does, is told how the run has ended; the time after that a new run begins. So it is at once for somebody else.
// shows: FAULT-C13
func TestTheExitOfAClosedRunIsGivenAgain(t *testing.T) {
	t.Parallel()
	e := ends[0]
	for name, other := range map[string]bool{"by who had started it": false, "by somebody else": true} {
		t.Run(name, func(t *testing.T) {
			j := prepare(t, false, e.job, e.args...)
			if end := j.runOut("--die-at-write", "close"); j.cmd.ProcessState.ExitCode() >= 0 || end.Exit != e.exit {
				t.Fatalf("the controller has not been killed after it closed the run: %v, %+v", j.cmd.ProcessState, end)
			}
			first := j.uid
			if !other {
				cmd := j.command()
				said, err := cmd.CombinedOutput()
				if code := cmd.ProcessState.ExitCode(); code != e.exit || !strings.Contains(string(said), "the run "+first+" has ended with 0") {
					t.Errorf("exit %d (%v), want %d again; it said\n%s", code, err, e.exit, said)
				}
			}
			j.program = "" // a new run
			if other {
				shell := filepath.Join(j.dir, "other")
				if err := os.WriteFile(shell, []byte("#!/bin/sh\n"+controller+" \"$@\"\nexit $?\n"), 0o755); err != nil {
					t.Fatal(err)
				}
				j.program = shell
			}
			if j.runOut(); j.uid == first {
				t.Error("there is no new run")
			}
		})
	}
}
