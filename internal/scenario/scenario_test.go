package scenario

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	archive, lines, err := open(path, src)
	if err != nil {
		t.Fatal(err)
	}
	var events, log string
	synctest.Test(t, func(t *testing.T) { events, log, err = tell(t, lines) })
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{"events": events, "log": log}
	for i := range archive.Files {
		f := &archive.Files[i]
		got, told := told[f.Name]
		switch {
		case !told:
		case *update:
			f.Data = []byte(got)
		case got != string(f.Data):
			t.Errorf("%s differ from the story.\ngot:\n%s\nwant:\n%s", f.Name, got, f.Data)
		}
	}
	if *update && !bytes.Equal(src, txtar.Format(archive)) {
		if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// open reads a story's file: the parts scenario and events, and log where the story shows that too. With
// -update events may be missing.
func open(path string, src []byte) (*txtar.Archive, []line, error) {
	archive := txtar.Parse(src)
	part := map[string]string{}
	for _, f := range archive.Files {
		if err := oneOf(path+": a part", f.Name, []string{"scenario", "events", "log"}); err != nil {
			return nil, nil, err
		}
		part[f.Name] = string(f.Data)
	}
	if _, ok := part["scenario"]; !ok {
		return nil, nil, fmt.Errorf("%s: it has no part -- scenario --", path)
	}
	if _, ok := part["events"]; !ok {
		if !*update {
			return nil, nil, fmt.Errorf("%s: it has no part -- events --; run with -update to write it", path)
		}
		archive.Files = append(archive.Files, txtar.File{Name: "events"})
	}
	before, _, _ := strings.Cut(string(src), "-- scenario --")
	lines, err := read(path, strings.Count(before, "\n")+2, part["scenario"])
	return archive, lines, err
}

// tell plays the lines of a story inside the bubble and returns its events and log.
func tell(t *testing.T, lines []line) (events, log string, err error) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := newWorld(t)
	for _, l := range lines {
		if err = w.do(ctx, l); err != nil {
			err = fmt.Errorf("%s: %q: %w", l.at, l.text, err)
			break
		}
		synctest.Wait()
	}
	if w.store == nil { // nothing has begun
		return "", "", err
	}
	if w.isDeserted() {
		if err == nil {
			err = fmt.Errorf("%s: the story ends with a dead controller: next-controller is missing", lines[len(lines)-1].at)
		}
		err = errors.Join(err, w.succeed(ctx))
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
	w.judgeLoop()
	for _, wrong := range w.wrong {
		t.Error(wrong)
	}
	return w.lines(), w.log.String(), err
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
		case event.Moved: // the first start and the last stop are in every story, and what each role is given
			return e.Incident == "" && e.Verb != string(restart.Run)
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
		fmt.Fprintf(&b, "+%-8s %s\n", e.At.Sub(w.began).Round(100*time.Millisecond), shownAs(e))
	}
	return b.String()
}

// judgeLoop holds, in every story, that the repair loop of the newest controller has waited for nothing: as
// long as it does, no time passes. What its moves wait for, they wait for elsewhere.
// shows: FAULT-H1
func (w *world) judgeLoop() {
	if d := w.engine.LongestAct(); d > 0 {
		w.wrong = append(w.wrong, fmt.Sprintf("the repair loop was busy with one thing for %s", d))
	}
}

// shownAs is an event as a story shows it: of each life the step that it was given, and where it began.
func shownAs(e event.Event) string {
	line := e.String()
	if e.Kind == event.FirstStep {
		return strings.Replace(line, string(event.FirstStep), "began", 1)
	}
	if ran, is := strings.CutPrefix(line, "moved verb=run "); is {
		return "ran " + strings.Replace(ran, " step=", " given=", 1)
	}
	return line
}

// do carries out one line of a story.
func (w *world) do(ctx context.Context, l line) error {
	if l.when == asking && w.isDeserted() {
		return errors.New("nobody can ask a controller that is dead: say next-controller first")
	}
	return l.do(ctx, w, l.args)
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
