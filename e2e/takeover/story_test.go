package takeover

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vigil/internal/journal"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// smallJob has a role for each way of being repaired. Every life of a worker leaves a line.
const smallJob = `name: takeover
roles:
  actor: {command: [WORKER, 'note=lives $VIGIL_LIFE', beat], workers: 2, ports: {p: auto}, restart: {on_failure: global, backoff: {base: 0}}}
  critic: {command: [WORKER, 'note=lives $VIGIL_LIFE', beat], restart: {backoff: {base: 0}}}
  engine: {command: [WORKER, 'note=lives $VIGIL_LIFE', beat], workers: 2, restart: {unit: worker, backoff: {base: 0}}}
`

// scene is one thing that happens to the job, and how it stands when that is over.
type scene struct {
	name  string
	kills []string                                 // workers, ROLE/RANK
	ask   func(j *job, before, now standing) error // what is asked of the controllers until it has been done; may be nil
	moves map[string]bool                          // roles or workers ROLE/RANK whose lives change; others must not
	spent spent                                    // in all, at the end of the scene
}

// spent is what the API says of the budgets.
type spent struct{ global, critic, engine int }

// between is the time between two deaths: enough for a decision, not for a repair.
const between = 15 * time.Millisecond

// givenBack is more than the time before a stop of the job in which what was charged is given back.
const givenBack = 1500 * time.Millisecond

// story is a job's life, from its begin to right before its end.
var story = []scene{
	{name: "begin"},
	{name: "the critic dies", kills: []string{"critic/0"}, moves: set("critic"), spent: spent{critic: 1}},
	{name: "an engine dies", kills: []string{"engine/1"}, moves: set("engine/1"), spent: spent{critic: 1}},
	{name: "an actor dies", kills: []string{"actor/0"}, moves: set("actor", "critic", "engine"), spent: spent{global: 1}},
	{name: "the critic is stopped and begun by hand", ask: byHand, moves: set("critic"), spent: spent{global: 1}},
	{name: "an actor dies while the critic is restarted", kills: []string{"critic/0", "actor/1"}, moves: set("actor", "critic", "engine"), spent: spent{global: 2}},
	{name: "an engine and the critic die", kills: []string{"engine/0", "critic/0"}, moves: set("critic", "engine/0"), spent: spent{global: 2, critic: 1}},
}

func set(words ...string) map[string]bool {
	s := map[string]bool{}
	for _, w := range words {
		s[w] = true
	}
	return s
}

// byHand has the critic stopped, and begun again once it is. What a controller was asked that died of it
// may have been done or not.
func byHand(j *job, before, now standing) error {
	was, is := before.roles["critic"], now.roles["critic"]
	switch {
	case is.Incarnation > was.Incarnation:
		return nil
	case is.State == role.Stopped:
		_ = j.post("/api/v1/roles/critic/restart")
		return errors.New("the critic was stopped and is not begun")
	case is.State == role.Running && is.Workers[0].PID == was.Workers[0].PID:
		_ = j.post("/critic/stop_service")
		return errors.New("the critic is not stopped")
	}
	return fmt.Errorf("the critic is %+v", is)
}

// play has everything of the story happen to the job, with whatever controllers that takes.
func (j *job) play() {
	j.t.Helper()
	var before standing
	for i, sc := range story {
		for i, name := range sc.kills {
			if i > 0 {
				<-time.After(between)
			}
			if err := syscall.Kill(before.pid(name), syscall.SIGKILL); err != nil {
				j.t.Fatalf("kill %s: %v", name, err)
			}
		}
		var now standing
		j.eventually(sc.name+", and all is well", func() (err error) {
			if now, err = j.look(); err != nil {
				return err
			}
			if sc.ask != nil {
				if err := sc.ask(j, before, now); err != nil {
					return err
				}
			}
			if i > 0 {
				if err := sc.unmoved(before, now); err != nil {
					return err
				}
			}
			return now.ill()
		})
		if i > 0 {
			sc.spared(j, before, now)
		}
		if got := now.spent(); got != sc.spent {
			j.t.Errorf("after %q %+v is spent, want %+v", sc.name, got, sc.spent)
		}
		before = now
		j.goesOn(now)
	}
}

func (s standing) spent() spent {
	return spent{s.job.GlobalRestarts, s.roles["critic"].RestartCount, s.roles["engine"].RestartCount}
}

// pid is that of a worker ROLE/RANK.
func (s standing) pid(name string) int {
	for life, pid := range s.lives() {
		if l, err := role.ParseLife(life); err == nil && fmt.Sprintf("%s/%d", l.Role, l.Rank) == name {
			return pid
		}
	}
	return 0
}

// moved says whether a life is one that changes in the scene.
func (sc scene) moved(l role.Life) bool {
	return sc.moves[string(l.Role)] || sc.moves[fmt.Sprintf("%s/%d", l.Role, l.Rank)]
}

// unmoved says which of the lives that change has not.
func (sc scene) unmoved(before, now standing) error {
	is := now.lives()
	for life, pid := range before.lives() {
		if l, err := role.ParseLife(life); err != nil || sc.moved(l) && is[life] == pid {
			return errors.Join(err, fmt.Errorf("%s is still there", life))
		}
	}
	return nil
}

// spared checks that whoever was well was not restarted.
func (sc scene) spared(j *job, before, now standing) {
	j.t.Helper()
	is := now.lives()
	for life, pid := range before.lives() {
		if l, err := role.ParseLife(life); err == nil && !sc.moved(l) && is[life] != pid {
			j.t.Errorf("during %q %s (pid %d) was well and was restarted: %v", sc.name, life, pid, is)
		}
	}
}

// goesOn waits until every role has made steps.
func (j *job) goesOn(from standing) {
	j.t.Helper()
	j.eventually("every role makes steps", func() error {
		now, err := j.look()
		if err != nil {
			return err
		}
		for name, r := range now.roles {
			if r.CurrentStep < from.roles[name].CurrentStep+2 {
				return fmt.Errorf("%s is at step %d, and was at %d", name, r.CurrentStep, from.roles[name].CurrentStep)
			}
		}
		return nil
	})
}

// finish ends the job and reads what it leaves.
func (j *job) finish() {
	j.t.Helper()
	last := story[len(story)-1].spent
	<-time.After(givenBack)
	j.interrupt(func() {
		now, err := j.look()
		if err != nil { // it may be because of a kill that is not known yet
			select {
			case <-j.ended:
			case <-time.After(5 * time.Second):
			}
		}
		if j.killed() {
			return
		}
		if err != nil {
			j.t.Error(err)
		} else if got := now.spent(); got.global != last.global || got.critic != last.critic {
			j.t.Errorf("after a controller that died while it stopped the job %+v is spent, want %+v", got, last)
		}
	})
	j.livedOnce()
	j.checkLedger(last)
}

// livedOnce checks that no life of a worker was begun twice.
func (j *job) livedOnce() {
	j.t.Helper()
	text, err := os.ReadFile(filepath.Join(j.dir, "lives"))
	if err != nil {
		j.t.Fatal(err)
	}
	seen := map[string]bool{}
	for life := range strings.Lines(string(bytes.TrimSpace(text))) {
		if life = strings.TrimSpace(life); seen[life] {
			j.t.Errorf("%s was lived twice", life)
		}
		seen[life] = true
	}
}

// checkLedger reads from the journal what has been spent.
func (j *job) checkLedger(want spent) {
	j.t.Helper()
	book, err := journal.Open(j.journal(), journal.Options{Job: "takeover"})
	if err != nil {
		j.t.Fatal(err)
	}
	defer book.Close()
	if run, _, err := book.LastRun(); err != nil || run.Closed == nil || run.Closed.Exit != 130 || run.UID != j.uid {
		j.t.Errorf("the journal has run %+v (%v), want %s, closed with 130", run, err, j.uid)
	}
	ledger, known, err := journal.ReadOne[restart.Ledger](book, journal.Ledger, "ledger")
	if err != nil || !known {
		j.t.Fatalf("there is no ledger in the journal: %v", err)
	}
	engines := [2]int{}
	for w, s := range ledger.Workers {
		engines[w.Rank] = s.Restarts
	}
	if ledger.Global != want.global || ledger.Roles["critic"].InPlace != want.critic || ledger.Roles["actor"].InPlace != 0 || j.deaths == 0 && engines != [2]int{1, 0} {
		j.t.Errorf("the ledger is %+v, want %+v", ledger, want)
	}
}
