package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"vigil/internal/event"
	"vigil/internal/restart"
	"vigil/internal/role"
)

// cast is who plays in a random story: each way of being repaired, and one role that needs another.
const cast = `job data actor critic:2 engines:3 advantages
role actor depends_on=data
role advantages also=critic
role engines unit=worker
`

var (
	castNames = []string{"data", "actor", "critic", "engines", "advantages"}
	castRanks = map[string]int{"data": 1, "actor": 1, "critic": 2, "engines": 3, "advantages": 1}
	castVerbs = []string{"read_step", "stop_service", "delete_service", "place", "start", "write_step", "run"}
)

// anyStory draws the lines of a story.
func anyStory() *rapid.Generator[string] {
	who := rapid.SampledFrom(castNames)
	verb := rapid.SampledFrom(castVerbs)
	worker := rapid.Custom(func(t *rapid.T) string {
		n := who.Draw(t, "role")
		return fmt.Sprintf("%s %d", n, rapid.IntRange(0, castRanks[n]-1).Draw(t, "rank"))
	})
	call := rapid.Custom(func(t *rapid.T) string { return verb.Draw(t, "verb") + " " + who.Draw(t, "role") })
	line := rapid.OneOf(
		rapid.Map(rapid.IntRange(0, 200), func(ms int) string { return fmt.Sprintf("wait %dms", ms) }),
		rapid.Map(rapid.IntRange(1, 200), func(s int) string { return fmt.Sprintf("wait %ds", s) }),
		rapid.Map(worker, func(w string) string { return "kill " + w }),
		rapid.Map(worker, func(w string) string { return "kill " + w }),
		rapid.Map(worker, func(w string) string { return "hang " + w }),
		rapid.Map(who, func(n string) string { return "report " + n + " no data" }),
		rapid.Map(who, func(n string) string { return "kill-service " + n }),
		rapid.Map(call, func(c string) string { return "fail-next " + c }),
		rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("slow %s %dms", call.Draw(t, "call"), rapid.IntRange(1, 15_000).Draw(t, "by"))
		}),
		rapid.Map(who, func(n string) string { return "restart " + n }),
		rapid.Map(who, func(n string) string { return "stop-role-meanwhile " + n }),
		rapid.Just("crash"),
		rapid.Map(call, func(c string) string { return "crash-in " + c }),
		rapid.Map(call, func(c string) string { return "crash-after " + c }),
		rapid.Just("next-controller"),
		rapid.Just("next-controller"),
		rapid.Map(who, func(n string) string { return "doom " + n }),
	)
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		fmt.Fprintf(&b, "journal %dms\n", rapid.SampledFrom([]int{0, 2, 2000}).Draw(t, "commit"))
		fmt.Fprintf(&b, "policy max_global=%d\n%s", rapid.IntRange(0, 4).Draw(t, "max_global"), cast)
		for _, n := range castNames {
			fmt.Fprintf(&b, "role %s escalate_at=%d\n", n, rapid.IntRange(1, 4).Draw(t, "escalate_at"))
		}
		for _, l := range rapid.SliceOfN(line, 1, 60).Draw(t, "lines") {
			b.WriteString(l + "\n")
		}
		return b.String()
	})
}

// Whatever fails, and whenever controllers die, on the real policy, ledger, plans and journal.
// shows: A44 A46 A48 A49
func TestWhateverFailsAndWheneverControllersDieTheJobIsRepairedOrEnds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		story := anyStory().Draw(rt, "story")
		var wrong []string
		lines := drawn(t, story)
		synctest.Test(t, func(t *testing.T) { wrong = survive(t, lines) })
		if len(wrong) > 0 {
			rt.Fatalf("%s", strings.Join(wrong, "\n"))
		}
	})
}

// drawn reads a random story. What makes no sense before the job has begun is left out.
func drawn(t *testing.T, text string) []line {
	s := &story{workers: map[role.Name]int{}}
	var lines []line
	for text := range strings.Lines(text) {
		if d := named(strings.Fields(text)[0]); d != nil && d.when >= inJob && !s.begun {
			continue
		}
		l, err := s.line(strings.TrimSpace(text))
		if err != nil {
			t.Fatalf("%q: %v", strings.TrimSpace(text), err)
		}
		lines = append(lines, l)
	}
	return lines
}

// survive plays a story, lets everything come to rest, and returns what must not be.
func survive(t *testing.T, lines []line) []string {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := newWorld(t)
	for _, l := range lines {
		if w.ended != nil {
			break
		}
		if !w.possible(l) {
			continue
		}
		if err := w.do(ctx, l); err != nil {
			t.Fatalf("%q: %v", l.text, err)
		}
		synctest.Wait()
	}
	w.mu.Lock()
	clear(w.failing)
	clear(w.fatal)
	for _, p := range w.actors {
		clear(p.slow)
	}
	w.mu.Unlock()
	if w.ended == nil { // a controller that is about to die does so first
		if err := w.wait(ctx, 2*dying); err != nil {
			t.Fatal(err)
		}
	}
	if w.isDeserted() {
		if err := w.succeed(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if w.ended == nil {
		if err := w.wait(ctx, 90*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	w.judgeLoop()
	w.judge()
	if w.ended == nil {
		w.engine.StopJob("the story is over", 0)
		<-w.outcome
	}
	w.leave(t, cancel)
	return w.wrong
}

// possible says whether a line makes sense now: nobody can ask a controller that is dead.
func (w *world) possible(l line) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch l.name {
	case "next-controller":
		return w.deserted
	case "crash", "crash-in", "crash-after", "restart", "stop-role-meanwhile":
		return !w.deserted
	case "kill", "hang", "report", "kill-service":
		p := w.actors[l.role]
		return p.service && p.holds
	}
	return true
}

// judge adds to what is wrong how the job has come to rest.
func (w *world) judge() {
	w.mu.Lock()
	defer w.mu.Unlock()
	say := func(format string, args ...any) { w.wrong = append(w.wrong, fmt.Sprintf(format, args...)) }
	asked, decided, made := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range w.events {
		switch {
		case e.Kind == event.Failure && e.Cause == role.Operator:
			asked[e.Incident] = true
		case e.Kind == event.Failure: // what a dead controller had not recorded has the number of another
			delete(asked, e.Incident)
		case e.Kind == event.PlanBegan && e.Action == role.Global && !asked[e.Incident]:
			decided[e.Incident] = true // which is nothing before it is recorded
		case e.Kind == event.Moved && decided[e.Incident] && e.Verb == string(restart.DeleteService):
			made[e.Incident] = true
		}
	}
	if spent := w.engine.Ledger().Global; spent > w.policy.MaxGlobal || len(made) > w.policy.MaxGlobal {
		say("%d global restarts are charged and %d were made, %d are allowed", spent, len(made), w.policy.MaxGlobal)
	}
	for _, n := range w.job.Names() {
		p, at := w.actors[n], w.engine.Status(n)
		running := 0
		for _, runs := range p.ranks {
			if runs && p.holds {
				running++
			}
		}
		switch {
		case w.ended != nil:
			if running > 0 && (at.State != role.Failed || at.Why == "") { // what could not be ended is shown
				say("the job has ended (%s), and %d workers of %s run", w.ended.Why, running, n)
			}
		case at.State == role.Failed && p.byHand: // the stop that was asked for has failed, and says so
			if at.Why == "" {
				say("%s has failed, and does not say why", n)
			}
		case at.State == role.Stopped && p.byHand:
			if running > 0 {
				say("%s is stopped, and %d workers of it run", n, running)
			}
		case p.doomed:
			say("every life of %s fails, and the job has not ended", n)
		case at.State != role.Running || running < len(p.ranks) || at.Incarnation != p.incarnation:
			say("%s is %s (%s) in incarnation %d; %d of %d workers run in incarnation %d", n, at.State, at.Why, at.Incarnation, running, len(p.ranks), p.incarnation)
		}
	}
	if w.ended != nil && (w.ended.Exit != restart.ExitFailed || w.ended.Why == "") {
		say("the job has ended with %d: %q", w.ended.Exit, w.ended.Why)
	}
	slices.Sort(w.wrong)
}
