package scenario

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"vigil/internal/restart/engine"
	"vigil/internal/role"
)

// when says where in a story a directive can stand.
type when int

const (
	anywhere    when = iota
	beforeJob        // before the first wait
	inJob            // after the first wait
	asking           // after the first wait, while a controller lives
	withJournal      // after the first wait, in a story with a journal
)

func (w when) String() string {
	return [...]string{"anywhere", "before the first wait", "after the first wait", "while a controller lives", "in a story with a journal"}[w]
}

// directive is one thing that a story can say. The table of them is also the reference: run
// go test ./internal/scenario -run Reference -update after a change.
type directive struct {
	name  string
	takes string // its arguments, see args; [OPTIONAL], MANY...
	when  when
	does  string // what it does, as the reference says it
	do    func(context.Context, *world, args) error
}

// chapter is a part of the reference.
type chapter struct {
	title      string
	directives []directive
}

// directives is everything that a story can say. It is filled in init, because reading a story needs it too.
var directives []chapter

func init() {
	directives = []chapter{
		{"The job", jobDirectives},
		{"Time", timeDirectives},
		{"Workers", workerDirectives},
		{"Words of workers", wordDirectives},
		{"Services, and what the engine asks of them", serviceDirectives},
		{"Operators", operatorDirectives},
		{"Controllers that die", controllerDirectives},
	}
}

var jobDirectives = []directive{
	{"job", "ROLE[:WORKERS]...", beforeJob, "the roles of the job, each with one worker unless it says more. The lead role is actor, else the first",
		func(_ context.Context, w *world, a args) error { w.cast(a.rest); return nil }},
	{"policy", "KEY=VALUE...", beforeJob, "settings of the job, see below", settle},
	{"role", "ROLE KEY=VALUE...", beforeJob, "settings of one role, see below", settle},
	{"journal", "DURATION", beforeJob, "the controller has a journal, whose commits take so long, and may die from now on",
		func(_ context.Context, w *world, a args) (err error) { w.book, err = openBook(w.t, a.d); return err }},
}

func settle(_ context.Context, w *world, a args) error {
	r, _ := w.job.Role(a.role)
	for _, set := range a.set {
		set(w, r)
	}
	return nil
}

var timeDirectives = []directive{
	{"wait", "DURATION", anywhere, "time passes, less if the job ends before. The first wait begins the job",
		func(ctx context.Context, w *world, a args) error { return w.wait(ctx, a.d) }},
	{"stop-controller", "DURATION", inJob, "the controller is stopped (SIGSTOP) for so long, and goes on",
		func(_ context.Context, w *world, a args) error {
			open := w.shut()
			<-time.After(a.d)
			open()
			return nil
		}},
}

var workerDirectives = []directive{
	{"kill", "ROLE [RANK]", inJob, "the worker is killed (SIGKILL)",
		func(_ context.Context, w *world, a args) error {
			w.kill(a.role, w.actors[a.role].incarnation, a.rank)
			return nil
		}},
	{"exit", "ROLE RANK CODE", inJob, "the worker exits with a code",
		func(_ context.Context, w *world, a args) error {
			exit := &role.Exit{Code: int(a.n)}
			w.with(a.role, func(p *player) { p.ranks[a.rank] = false })
			w.health().Report(role.Failure{Life: w.newest(a), Cause: role.Exited, Detail: exit.String(), Exit: exit})
			return nil
		}},
	{"signal", "ROLE RANK SIGNAL", inJob, "the worker dies of a signal that somebody else has sent",
		func(_ context.Context, w *world, a args) error {
			exit := &role.Exit{Signal: a.word}
			w.with(a.role, func(p *player) { p.ranks[a.rank] = false })
			w.health().Report(role.Failure{Life: w.newest(a), Cause: role.Exited, Detail: exit.String(), Exit: exit})
			return nil
		}},
	{"saves", "ROLE DURATION", anywhere, "when it is told to stop, rank 0 needs so long to save its work, and is killed if it is not given that",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.saves = a.d })
			return nil
		}},
	{"fail", "ROLE CAUSE", inJob, "rank 0 ends for that cause",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.ranks[0] = false })
			w.health().Report(role.Failure{Life: w.newest(a), Cause: role.Cause(a.word), Detail: "the story says so"})
			return nil
		}},
	{"finish", "ROLE [RANK]", inJob, "the worker ends well",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.ranks[a.rank], p.finished[a.rank] = false, true })
			w.health().Worker(w.newest(a), 0, role.WorkerFinished, "")
			return nil
		}},
	{"doom", "ROLE", anywhere, "every life of the role dies after a second, this one at once",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.doomed = true })
			if w.store != nil {
				w.kill(a.role, w.actors[a.role].incarnation, 0)
			}
			return nil
		}},
	{"hang", "ROLE [RANK]", inJob, "the worker hangs: it says nothing more, holds up its peers (not where unit=worker) and does not end when it is told to",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.hung[a.rank] = true })
			return nil
		}},
	{"quiet", "ROLE", inJob, "its workers say nothing more, and their service says that they do not wait for a CPU", mood("quiet")},
	{"stalled", "ROLE", inJob, "its workers say that they are alive, and make no progress", mood("stalled")},
	{"starved", "ROLE", inJob, "its workers say nothing more, and their service says that they wait for a CPU", mood("starved")},
	{"well", "ROLE", inJob, "ends quiet, stalled or starved", mood("")},
	{"resumes-at", "ROLE STEP", anywhere, "its lives begin at that step, whatever step they are given",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.startsAt = a.n })
			return nil
		}},
}

func mood(is string) func(context.Context, *world, args) error {
	return func(_ context.Context, w *world, a args) error {
		w.with(a.role, func(p *player) { p.mood = is })
		return nil
	}
}

var wordDirectives = []directive{
	{"report", "ROLE TEXT...", inJob, "rank 0 reports a failure", report(false)},
	{"report-fatal", "ROLE TEXT...", inJob, "rank 0 reports a failure that no restart mends", report(true)},
	{"late-report", "ROLE", inJob, "a failure report of the life before this one comes in",
		func(_ context.Context, w *world, a args) error {
			w.health().Report(role.Failure{Life: w.before(a), Cause: role.Reported, Detail: "late word"})
			return nil
		}},
	{"late-beat", "ROLE", inJob, "a heartbeat with step 9999 of the life before this one comes in",
		func(_ context.Context, w *world, a args) error {
			step := int64(9999)
			w.health().Beat(w.before(a), &step, time.Now())
			return nil
		}},
	{"phase", "ROLE PHASE", inJob, "every rank says that it has entered the phase", phase(true)},
	{"end-phase", "ROLE PHASE", inJob, "every rank says that it has left the phase", phase(false)},
	{"checkpoint", "ROLE STEP", inJob, "rank 0 says that it has saved that step",
		func(_ context.Context, w *world, a args) error { w.health().Checkpoint(w.newest(a), a.n); return nil }},
	{"unreadable", "ROLE", inJob, "rank 0 says a step that cannot be read",
		func(_ context.Context, w *world, a args) error { w.health().Unreadable(w.newest(a)); return nil }},
}

func report(fatal bool) func(context.Context, *world, args) error {
	return func(_ context.Context, w *world, a args) error {
		w.health().Report(role.Failure{Life: w.newest(a), Cause: role.Reported, Detail: strings.Join(a.rest, " "), Fatal: fatal})
		return nil
	}
}

func phase(entered bool) func(context.Context, *world, args) error {
	return func(_ context.Context, w *world, a args) error {
		for a.rank = range w.actors[a.role].ranks {
			w.health().Phase(w.newest(a), a.word, entered, time.Now())
		}
		return nil
	}
}

var serviceDirectives = []directive{
	{"kill-service", "ROLE", inJob, "the service is killed (SIGKILL), and its workers with it",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) {
				p.service, p.holds = false, false
				if p.end != nil {
					p.end()
				}
			})
			life := w.newest(a)
			life.Rank, life.Attempt = role.NoRank, 1
			w.health().Report(role.Failure{Life: life, Cause: role.Unreachable, Detail: "its service died (SIGKILL)"})
			return nil
		}},
	{"signal-service", "ROLE SIGNAL", inJob, "somebody else sends the service a signal: it says so, ends its workers in order, and is gone",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.service = false; p.lengthen() })
			life := w.newest(a)
			life.Rank, life.Attempt = role.NoRank, 1
			exit := &role.Exit{Signal: a.word}
			w.health().Report(role.Failure{Life: life, Cause: role.Exited, Detail: "its service is ending: it got " + a.word, Exit: exit})
			return nil
		}},
	{"slow", "VERB ROLE DURATION", anywhere, "that call takes so much longer, each time",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.slow[a.verb] = a.d })
			return nil
		}},
	{"fail-next", "VERB ROLE [TIMES]", anywhere, "that call fails the next time, or the next TIMES times",
		func(_ context.Context, w *world, a args) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.failing[a.verb+" "+string(a.role)] = int(a.n)
			return nil
		}},
}

var operatorDirectives = []directive{
	{"restart", "ROLE", asking, "an operator asks for a restart",
		func(_ context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.byHand = false })
			return w.engine.Restart(a.role)
		}},
	{"set-step", "ROLE STEP", asking, "an operator sets the step of the role's next life",
		func(ctx context.Context, w *world, a args) error {
			_, recorded, ok := w.engine.SetStep(a.role, engine.StepSet{Step: a.n, At: time.Now()})
			if !ok {
				return fmt.Errorf("step %d of %s is not taken", a.n, a.role)
			}
			return recorded(ctx)
		}},
	{"stop-role", "ROLE", asking, "an operator stops the role, and waits until it is stopped",
		func(ctx context.Context, w *world, a args) error { return w.engine.StopRole(ctx, a.role) }},
	{"stop-role-meanwhile", "ROLE", asking, "an operator stops the role, and the story goes on",
		func(ctx context.Context, w *world, a args) error {
			w.with(a.role, func(p *player) { p.byHand = true })
			go func() { _ = w.engine.StopRole(ctx, a.role) }()
			return nil
		}},
	{"admit", "ROLE RANK", asking, "an operator admits a quarantined worker",
		func(_ context.Context, w *world, a args) error { return w.health().Admit(a.role, a.rank) }},
	{"pause-watch", "ROLE DURATION", withJournal, "somebody asks that the role is not watched for silence for so long",
		func(ctx context.Context, w *world, a args) error {
			return w.keeping().Pause(a.role, role.NoRank, a.d, time.Now()).Wait(ctx)
		}},
	{"pause-worker", "ROLE RANK DURATION", withJournal, "the same for one worker",
		func(ctx context.Context, w *world, a args) error {
			return w.keeping().Pause(a.role, a.rank, a.d, time.Now()).Wait(ctx)
		}},
	{"resume-watch", "ROLE", withJournal, "the role is watched again",
		func(ctx context.Context, w *world, a args) error {
			return w.keeping().Resume(a.role, role.NoRank).Wait(ctx)
		}},
	{"stop-job", "CODE", asking, "an operator stops the job, which is to end with that exit code",
		func(_ context.Context, w *world, a args) error {
			w.engine.StopJob("stopped by an operator", int(a.n))
			return nil
		}},
}

var controllerDirectives = []directive{
	{"crash", "", withJournal, "the controller is killed; its services live on",
		func(_ context.Context, w *world, _ args) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.deserted {
				return errDead
			}
			w.dies()
			return nil
		}},
	{"crash-in", "VERB ROLE", withJournal, "the controller dies in that call, which has no effect", crashIn(whileItIsMade)},
	{"crash-after", "VERB ROLE", withJournal, "the controller dies after that call, which has its effect", crashIn(onceItIsMade)},
	{"crash-at-end", "", withJournal, "the controller dies when everything of the job has ended and nobody has been told",
		func(_ context.Context, w *world, _ args) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.fatal["end"] = whileItIsMade
			return nil
		}},
	{"next-controller", "", withJournal, "another controller goes on with what the one that has died, or has been stopped, has written",
		func(ctx context.Context, w *world, _ args) error { return w.succeed(ctx) }},
}

func crashIn(how fatal) func(context.Context, *world, args) error {
	return func(_ context.Context, w *world, a args) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.fatal[a.verb+" "+string(a.role)] = how
		return nil
	}
}

// newest is the life that a role's rank has now, before the one before it.
func (w *world) newest(a args) role.Life { return w.life(a.role, w.actors[a.role].incarnation, a.rank) }
func (w *world) before(a args) role.Life {
	return w.life(a.role, w.actors[a.role].incarnation-1, a.rank)
}

// named returns the directive of that name, nil where there is none.
func named(name string) *directive {
	for c := range directives {
		for i := range directives[c].directives {
			if d := &directives[c].directives[i]; d.name == name {
				return d
			}
		}
	}
	return nil
}

func directiveNames() []string {
	var names []string
	for _, c := range directives {
		for _, d := range c.directives {
			names = append(names, d.name)
		}
	}
	slices.Sort(names)
	return names
}

// form is how the directive is written.
func (d *directive) form() string { return strings.TrimSpace(fmt.Sprintf("%s %s", d.name, d.takes)) }
