package goodput

import (
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
)

// day makes events at seconds of one day.
type day struct {
	t *testing.T
	*Account
	began time.Time
}

func newDay(t *testing.T, roles ...role.Name) *day {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &day{t, New(began, roles), began}
}

func (d *day) at(seconds float64, kind event.Kind, name role.Name, set func(*event.Event)) {
	e := event.New(d.began.Add(time.Duration(seconds*float64(time.Second))), kind)
	e.Role = name
	if set != nil {
		set(&e)
	}
	d.Observe(e)
}

func step(n int64) func(*event.Event) { return func(e *event.Event) { e.Step = &n } }

func verb(v string, n int64) func(*event.Event) {
	return func(e *event.Event) { e.Verb, e.Step = v, &n }
}

func failed(cause role.Cause, took time.Duration) func(*event.Event) {
	return func(e *event.Event) { e.Cause, e.Took = cause, took }
}

func (d *day) report(seconds float64) Report {
	return d.Report(d.began.Add(time.Duration(seconds * float64(time.Second))))
}

func (d *day) wants(r Report, productive, start float64) {
	d.t.Helper()
	if r.Productive.Seconds() != productive || r.Start.Seconds() != start {
		d.t.Errorf("productive %s, start %s; want %vs and %vs", r.Productive, r.Start, productive, start)
	}
	sum := r.Productive + r.Start
	for _, l := range r.Lost {
		sum += l.Time
	}
	if sum != r.Total {
		d.t.Errorf("the parts are %s, the whole is %s: %+v", sum, r.Total, r)
	}
}

func TestTimeIsProductiveWhileEveryRoleGetsOn(t *testing.T) {
	d := newDay(t, "actor", "critic")
	d.wants(d.report(5), 0, 5)
	d.at(10, event.FirstStep, "actor", step(1))
	d.at(20, event.FirstStep, "critic", step(1))
	r := d.report(120)
	d.wants(r, 100, 20)
	if r.Ratio() != 100.0/120 {
		t.Errorf("ratio %v", r.Ratio())
	}
}

func TestAFailureCostsTheTimeFromItsFirstSignToTheFirstStepOfTheNewLife(t *testing.T) {
	d := newDay(t, "actor", "critic")
	d.at(0, event.FirstStep, "actor", step(1))
	d.at(0, event.FirstStep, "critic", step(1))
	d.at(150, event.Failure, "critic", failed(role.Silent, 50*time.Second)) // silent since 100
	d.at(151, event.Moved, "critic", verb("read_step", 90))
	d.at(152, event.Moved, "critic", verb("run", 90))
	d.wants(d.report(155), 100, 0)
	d.at(160, event.FirstStep, "critic", step(81))
	r := d.report(200)
	d.wants(r, 140, 0)
	if len(r.Lost) != 1 || r.Lost[0] != (Loss{Cause: role.Silent, Incidents: 1, Time: time.Minute}) {
		t.Errorf("lost %+v, want a minute to one silence", r.Lost)
	}
	critic := r.Roles[1]
	if critic.Redone != 10 || critic.Lives != 1 || critic.Productive != 140*time.Second {
		t.Errorf("critic %+v: want steps 81 to 90 done again", critic)
	}
	if r.Roles[0].Productive != 200*time.Second {
		t.Errorf("the actor went on: %+v", r.Roles[0])
	}
}

func TestARoleThatSaysNoStepsIsProductiveWhenItIsReady(t *testing.T) {
	d := newDay(t, "engine")
	d.at(10, event.RoleReady, "engine", nil)
	d.at(60, event.Failure, "engine", failed(role.Exited, 0))
	d.at(70, event.RoleReady, "engine", nil)
	d.wants(d.report(100), 80, 10)
}

func TestAGlobalRestartIsLostForTheCauseThatMadeItNecessary(t *testing.T) {
	d := newDay(t, "actor", "critic")
	d.at(0, event.FirstStep, "actor", step(1))
	d.at(0, event.FirstStep, "critic", step(1))
	d.at(50, event.Failure, "actor", failed(role.Exited, 0))
	d.at(51, event.Moved, "critic", verb("stop_service", 50))
	d.at(60, event.FirstStep, "actor", step(51))
	d.at(65, event.FirstStep, "critic", step(51))
	r := d.report(100)
	d.wants(r, 85, 0)
	if len(r.Lost) != 1 || r.Lost[0].Cause != role.Exited || r.Lost[0].Time != 15*time.Second {
		t.Errorf("lost %+v", r.Lost)
	}
}

func TestFinishedRolesDoNotHoldUpTheOthersAndTheEndEndsTheCount(t *testing.T) {
	d := newDay(t, "actor", "critic")
	d.at(0, event.FirstStep, "actor", step(1))
	d.at(0, event.FirstStep, "critic", step(1))
	d.at(50, event.RoleFinished, "critic", nil)
	d.at(80, event.JobEnded, "", nil)
	d.wants(d.report(1000), 80, 0)
}

func TestARoleWhoseWorkersStandAloneGoesOnWhileOneOfThemIsRestarted(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	d := &day{t, New(began, []role.Name{"actor", "rollout"}, "rollout"), began}
	one := func(e *event.Event) { e.Rank, e.Attempt, e.Cause = 1, 1, role.Exited }
	d.at(0, event.FirstStep, "actor", step(1))
	d.at(0, event.RoleReady, "rollout", nil)
	d.at(10, event.Failure, "rollout", one)
	d.at(10, event.Decided, "rollout", one)
	d.at(11, event.Moved, "rollout", func(e *event.Event) { one(e); e.Verb = "stop_service" })
	d.at(12, event.Moved, "rollout", func(e *event.Event) { one(e); e.Verb = "run" })
	d.at(20, event.RoleReady, "rollout", nil)
	d.wants(d.report(50), 50, 0)
	d.at(50, event.Failure, "rollout", one) // too few others: its role is restarted
	d.at(50, event.Decided, "rollout", nil)
	d.at(50, event.Moved, "rollout", verb("stop_heartbeats", 0))
	d.at(51, event.Moved, "rollout", verb("run", 0))
	d.at(60, event.RoleReady, "rollout", nil)
	r := d.report(100)
	d.wants(r, 90, 0)
	if len(r.Lost) != 1 || r.Lost[0].Cause != role.Exited || r.Lost[0].Incidents != 2 || r.Lost[0].Time != 10*time.Second {
		t.Errorf("lost %+v", r.Lost)
	}
	if r.Roles[1].Lives != 1 {
		t.Errorf("the role has had %d lives", r.Roles[1].Lives)
	}
}
