package scenario

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"vigil/internal/event"
	"vigil/internal/job"
	"vigil/internal/restart"
	"vigil/internal/role"
)

var update = flag.Bool("update", false, "write the stories' logs anew")

// Each story names the rows that it shows in its own text; the rows that all of them together rest
// on stand here.
// shows: R7 R51 R52 R53 R56 A46 A47 A48
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) { play(t, f) })
	}
}

// play runs one story and compares its log.
func play(t *testing.T, path string) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	part := map[string]*txtar.File{}
	for i := range archive.Files {
		part[archive.Files[i].Name] = &archive.Files[i]
	}
	var events, log string
	synctest.Test(t, func(t *testing.T) { events, log = tell(t, string(part["scenario"].Data)) })
	for name, got := range map[string]string{"events": events, "log": log} {
		f := part[name]
		if f == nil {
			if name == "events" && *update {
				archive.Files = append(archive.Files, txtar.File{Name: "events", Data: []byte(got)})
			} else if name == "events" {
				t.Errorf("the story has no events")
			}
			continue
		}
		if *update {
			f.Data = []byte(got)
			continue
		}
		if got != string(f.Data) {
			t.Errorf("%s differ from the story.\ngot:\n%s\nwant:\n%s", name, got, f.Data)
		}
	}
	if *update {
		if old, _ := os.ReadFile(path); !bytes.Equal(old, txtar.Format(archive)) {
			if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// tell plays the lines of a story inside the bubble and returns its events and log.
func tell(t *testing.T, script string) (events, log string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := newWorld(t)
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := w.do(ctx, words); err != nil {
			t.Fatalf("%q: %v", strings.TrimSpace(line), err)
		}
		synctest.Wait()
	}
	if w.ended == nil {
		w.engine.StopJob("the story is over", 0)
		o := <-w.outcome
		w.ended = &o
		synctest.Wait()
	} else {
		w.record(w.reign, event.Event{At: time.Now(), Kind: event.JobEnded, Rank: role.NoRank, Detail: fmt.Sprintf("exit %d: %s", w.ended.Exit, w.ended.Why)})
	}
	w.leave(t, cancel)
	for _, wrong := range w.wrong {
		t.Error(wrong)
	}
	return w.lines(), w.log.String()
}

// lines writes the events as the story shows them. What happened at one instant in several roles of
// one stage is sorted by role.
func (w *world) lines() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	shown := slices.DeleteFunc(slices.Clone(w.events), func(e event.Event) bool {
		switch e.Kind {
		case event.WorkerReady:
			return e.Attempt < 2
		case event.WorkerStarted, event.RoleReady, event.Checkpoint:
			return true
		case event.Moved: // the first start and the last stop are in every story
			return e.Incident == ""
		default:
			return false
		}
	})
	same := func(a, b event.Event) bool {
		return a.At.Equal(b.At) && a.Kind == b.Kind && a.Verb == b.Verb
	}
	for i := 0; i < len(shown); {
		j := i + 1
		for j < len(shown) && same(shown[i], shown[j]) {
			j++
		}
		slices.SortStableFunc(shown[i:j], func(a, b event.Event) int { return strings.Compare(string(a.Role), string(b.Role)) })
		i = j
	}
	var b strings.Builder
	for _, e := range shown {
		e.Seq = 0
		fmt.Fprintf(&b, "+%-8s %s\n", e.At.Sub(w.began).Round(100*time.Millisecond), e)
	}
	return b.String()
}

// do carries out one line of a story.
func (w *world) do(ctx context.Context, words []string) error {
	name, rank := role.Name(""), 0
	if len(words) > 1 {
		name = role.Name(words[1])
	}
	if len(words) > 2 {
		rank, _ = strconv.Atoi(words[2])
	}
	switch words[0] {
	case "job":
		w.cast(words[1:])
	case "policy":
		return w.settings(words[1:])
	case "role":
		return w.roleSettings(name, words[2:])
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		return w.wait(ctx, d)
	case "hang":
		w.with(name, func(p *player) { p.hung[rank] = true })
	case "quiet", "stalled", "starved":
		w.with(name, func(p *player) { p.mood = words[0] })
	case "well":
		w.with(name, func(p *player) { p.mood = "" })
	case "phase", "end-phase": // of every rank: phase ROLE NAME
		for r := range w.actors[name].ranks {
			w.health().Phase(w.life(name, w.actors[name].incarnation, r), words[2], words[0] == "phase", time.Now())
		}
	case "journal": // journal COMMIT: the controller may die from now on
		d, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		w.book, err = openBook(w.t, d)
		return err
	case "doom": // every life of the role dies, this one too
		w.with(name, func(p *player) { p.doomed = true })
		if w.store != nil {
			w.kill(name, w.actors[name].incarnation, 0)
		}
	case "crash":
		w.mu.Lock()
		defer w.mu.Unlock()
		w.dies()
	case "crash-in", "crash-after": // crash-in VERB ROLE
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fatal[words[1]+" "+words[2]] = map[string]fatal{"crash-in": whileItIsMade, "crash-after": onceItIsMade}[words[0]]
	case "crash-at-end": // everything of the job has ended, and nobody was told
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fatal["end"] = whileItIsMade
	case "next-controller":
		return w.succeed(ctx)
	case "kill":
		w.kill(name, w.actors[name].incarnation, rank)
	case "exit": // exit ROLE RANK CODE
		code, err := strconv.Atoi(words[3])
		exit := &role.Exit{Code: code}
		w.with(name, func(p *player) { p.ranks[rank] = false })
		w.health().Report(role.Failure{Life: w.life(name, w.actors[name].incarnation, rank), Cause: role.Exited, Detail: exit.String(), Exit: exit})
		return err
	case "finish":
		w.with(name, func(p *player) { p.ranks[rank], p.finished[rank] = false, true })
		w.health().Worker(w.life(name, w.actors[name].incarnation, rank), 0, role.WorkerFinished, "")
	case "report", "report-fatal":
		w.health().Report(role.Failure{Life: w.life(name, w.actors[name].incarnation, 0), Cause: role.Reported, Detail: strings.Join(words[2:], " "), Fatal: words[0] == "report-fatal"})
	case "fail": // fail ROLE CAUSE: its rank 0 ends for that
		w.with(name, func(p *player) { p.ranks[0] = false })
		w.health().Report(role.Failure{Life: w.life(name, w.actors[name].incarnation, 0), Cause: role.Cause(words[2]), Detail: "the story says so"})
	case "late-report": // word of the life before
		w.health().Report(role.Failure{Life: w.life(name, w.actors[name].incarnation-1, 0), Cause: role.Reported, Detail: "late word"})
	case "late-beat":
		step := int64(9999)
		w.health().Beat(w.life(name, w.actors[name].incarnation-1, 0), &step, time.Now())
	case "kill-service":
		w.with(name, func(p *player) { p.service, p.holds = false, false; p.end() })
		w.health().Report(role.Failure{Life: role.Life{Job: jobUID, Role: name, Incarnation: w.actors[name].incarnation, Rank: role.NoRank, Attempt: 1}, Cause: role.Unreachable, Detail: "its service died (SIGKILL)"})
	case "fail-next": // fail-next VERB ROLE [TIMES]
		n := 1
		if len(words) > 3 {
			n, _ = strconv.Atoi(words[3])
		}
		w.mu.Lock()
		w.failing[words[1]+" "+words[2]] = n
		w.mu.Unlock()
	case "slow": // slow VERB ROLE D
		d, err := time.ParseDuration(words[3])
		w.with(role.Name(words[2]), func(p *player) { p.slow[words[1]] = d })
		return err
	case "unreadable":
		w.health().Unreadable(w.life(name, w.actors[name].incarnation, 0))
	case "checkpoint":
		w.health().Checkpoint(w.life(name, w.actors[name].incarnation, 0), int64(rank))
	case "resumes-at":
		w.with(name, func(p *player) { p.startsAt = int64(rank) })
	case "stop-controller":
		d, err := time.ParseDuration(words[1])
		open := w.shut()
		<-time.After(d)
		open()
		return err
	case "admit":
		return w.health().Admit(name, rank)
	case "restart":
		w.with(name, func(p *player) { p.byHand = false })
		return w.engine.Restart(name)
	case "stop-role":
		return w.engine.StopRole(ctx, name)
	case "stop-role-meanwhile": // and the story goes on
		w.with(name, func(p *player) { p.byHand = true })
		go func() { _ = w.engine.StopRole(ctx, name) }()
	case "stop-job":
		code, err := strconv.Atoi(words[1])
		w.engine.StopJob("stopped by an operator", code)
		return err
	default:
		return fmt.Errorf("a story cannot say %q", words[0])
	}
	return nil
}

func (w *world) with(name role.Name, act func(*player)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	act(w.actors[name])
}

// wait lets time pass, or less if the job ends before.
func (w *world) wait(ctx context.Context, d time.Duration) error {
	if w.store == nil {
		w.policy.Lead, w.policy.Order = w.job.Lead, w.job.Names()
		for i := range w.job.Roles {
			r := &w.job.Roles[i]
			w.policy.Roles[r.Name] = restart.RolePolicy{Restart: r.Restart, Stateful: r.State == job.Checkpointed}
		}
		w.start(ctx)
	}
	select {
	case <-time.After(d):
	case o := <-w.outcome:
		w.ended = &o
	}
	return nil
}
