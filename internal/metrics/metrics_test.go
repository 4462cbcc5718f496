package metrics_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"vigil/internal/event"
	"vigil/internal/metrics"
	"vigil/internal/role"
)

// still is a source whose snapshot a test sets.
type still struct {
	mu sync.Mutex
	s  metrics.Snapshot
}

func (s *still) Snapshot() metrics.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.s
}

func (s *still) set(roles ...metrics.Role) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.Roles = roles
}

func standing(name role.Name, ranks int) metrics.Role {
	r := metrics.Role{Name: name, Healthy: true, Step: 100, HeartbeatAge: 1500 * time.Millisecond, Incarnation: 2}
	for rank := range ranks {
		step, age := int64(100+rank), time.Duration(rank)*time.Second
		r.Workers = append(r.Workers, metrics.Worker{Rank: rank, State: role.WorkerReady, Step: &step, HeartbeatAge: &age})
	}
	return r
}

func newMetrics(limit int, roles ...metrics.Role) (*metrics.Metrics, *still) {
	src := &still{s: metrics.Snapshot{
		Roles: roles, GlobalRestarts: 1, MaxGlobalRestarts: 3, CheckerLateness: 250 * time.Millisecond, LongestAct: 2 * time.Millisecond, Obligations: 2, JournalRefused: 4,
		Bundles: []metrics.Bundles{{Role: "actor", State: "RESERVED", Count: 2}, {Role: "actor", State: "RESERVED", Count: 1}},
	}}
	return metrics.New(metrics.Options{Source: src, Version: "1.2.3", RankLimit: limit}), src
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// tell makes an event, as long after the start.
func tell(after time.Duration, kind event.Kind, change func(*event.Event)) event.Event {
	e := event.New(start.Add(after), kind)
	change(&e)
	return e
}

// scrape returns the series, without values, and the whole text.
func scrape(t testing.TB, m *metrics.Metrics) (series []string, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("scrape = %d %v: %s", w.Code, err, body)
	}
	for line := range strings.SplitSeq(string(body), "\n") {
		if strings.HasPrefix(line, "vigil_") {
			series = append(series, line[:strings.LastIndex(line, " ")])
		}
	}
	return series, string(body)
}

// want fails unless each line stands in the text.
func want(t *testing.T, text string, lines ...string) {
	t.Helper()
	have := strings.Split(text, "\n")
	for _, line := range lines {
		if !slices.Contains(have, line) {
			t.Errorf("%s is missing in:\n%s", line, text)
		}
	}
}

func TestWhatStandsIsShownUnderTheNamesOfTheDesign(t *testing.T) {
	actor := standing("actor", 2)
	actor.Workers[1] = metrics.Worker{Rank: 1, State: role.WorkerStarting}
	critic := metrics.Role{Name: "critic", HeartbeatAge: 2 * time.Minute, Incarnation: 3}
	m, _ := newMetrics(0, actor, critic)
	_, text := scrape(t, m)
	want(t, text,
		`vigil_role_healthy{role="actor"} 1`, `vigil_role_healthy{role="critic"} 0`,
		`vigil_role_step{role="actor"} 100`, `vigil_role_heartbeat_age_seconds{role="actor"} 1.5`,
		`vigil_role_heartbeat_age_seconds{role="critic"} 120`, `vigil_role_incarnation{role="critic"} 3`,
		`vigil_role_workers{role="actor",state="ready"} 1`, `vigil_role_workers{role="actor",state="starting"} 1`,
		`vigil_role_workers{role="actor",state="down"} 0`, `vigil_role_workers{role="critic",state="finished"} 0`,
		`vigil_rank_step{rank="0",role="actor"} 100`, `vigil_rank_heartbeat_age_seconds{rank="0",role="actor"} 0`,
		`vigil_global_restarts_total 1`, `vigil_global_restarts_limit 3`, `vigil_placement_bundles{role="actor",state="reserved"} 3`,
		`vigil_checker_lateness_seconds 0.25`, `vigil_loop_longest_act_seconds 0.002`, `vigil_obligations 2`, `vigil_journal_refused_total 4`, `vigil_stale_messages_total 0`, `vigil_refused_callers_total 0`,
		`vigil_failures_total{cause="silent",role="critic"} 0`,
	)
	if !strings.Contains(text, `vigil_build_info{goversion="go`) || !strings.Contains(text, `version="1.2.3"`) {
		t.Errorf("build info is missing in:\n%s", text)
	}
	if strings.Contains(text, `rank="1"`) {
		t.Errorf("a rank that has said nothing has series:\n%s", text)
	}
}

// shows: FAULT-B5 FAULT-B6
func TestWhatHappenedIsCounted(t *testing.T) {
	m, _ := newMetrics(0, standing("actor", 1), standing("critic", 1))
	failed := func(after time.Duration) {
		m.Observe(tell(after, event.Failure, func(e *event.Event) { e.Role, e.Cause, e.Took = "critic", role.Silent, 3*time.Second }))
	}
	failed(0)
	m.Observe(tell(time.Second, event.Decided, func(e *event.Event) {
		e.Role, e.Action, e.Rule, e.Roles = "critic", role.InPlace, "role_can_stay", []role.Name{"critic"}
	}))
	failed(2 * time.Second) // during the repair: prolongs it
	m.Observe(tell(3*time.Second, event.PlanEnded, func(e *event.Event) { e.Role = "critic" }))
	m.Observe(tell(4*time.Second, event.FirstStep, func(e *event.Event) { e.Role = "critic" }))
	m.Observe(tell(4*time.Second, event.FirstStep, func(e *event.Event) { e.Role = "actor" })) // nothing was repaired
	m.Observe(tell(5*time.Second, event.Stale, func(*event.Event) {}))
	for _, kind := range []event.Kind{event.StepWentBack, event.StateBehind, event.StepAhead, event.StepsApart} {
		m.Observe(tell(5*time.Second, kind, func(e *event.Event) { e.Role = "critic" }))
	}
	m.Foreign("critic", 2)
	m.Foreign("critic", 1)
	_, text := scrape(t, m)
	want(t, text,
		`vigil_failures_total{cause="silent",role="critic"} 2`, `vigil_failures_total{cause="silent",role="actor"} 0`,
		`vigil_restarts_total{action="in_place",role="critic",rule="role_can_stay"} 1`,
		`vigil_detection_seconds_count{cause="silent"} 2`, `vigil_detection_seconds_sum{cause="silent"} 6`,
		`vigil_recovery_seconds_count{action="in_place"} 1`, `vigil_recovery_seconds_sum{action="in_place"} 4`,
		`vigil_stale_messages_total 1`, `vigil_foreign_messages_total{role="critic"} 3`,
		`vigil_lives_off_step_total{kind="behind",role="critic"} 2`, `vigil_lives_off_step_total{kind="ahead",role="critic"} 1`,
		`vigil_lives_off_step_total{kind="apart",role="critic"} 1`,
	)
}

func TestAGlobalRestartCountsForEveryRoleAndItsRecoveryForTheOneThatFailed(t *testing.T) {
	m, _ := newMetrics(0, standing("actor", 1), standing("critic", 1))
	m.Observe(tell(0, event.Failure, func(e *event.Event) { e.Role, e.Cause = "actor", role.Exited }))
	m.Observe(tell(0, event.Decided, func(e *event.Event) {
		e.Role, e.Action, e.Rule, e.Roles = "actor", role.Global, "role_needs_global", []role.Name{"actor", "critic"}
	}))
	for _, name := range []role.Name{"critic", "actor"} {
		m.Observe(tell(9*time.Second, event.FirstStep, func(e *event.Event) { e.Role = name }))
	}
	m.Observe(tell(10*time.Second, event.Decided, func(e *event.Event) { e.Role, e.Action, e.Rule = "actor", role.Stop, "fatal" }))
	_, text := scrape(t, m)
	want(t, text,
		`vigil_restarts_total{action="global",role="actor",rule="role_needs_global"} 1`,
		`vigil_restarts_total{action="global",role="critic",rule="role_needs_global"} 1`,
		`vigil_recovery_seconds_count{action="global"} 1`, `vigil_recovery_seconds_sum{action="global"} 9`,
	)
	for _, absent := range []string{`action="stop"`, "vigil_detection_seconds_count"} {
		if strings.Contains(text, absent) {
			t.Errorf("%s is there:\n%s", absent, text)
		}
	}
}

func TestARoleThatNeverSpeaksIsNotTimedFromAnOldFailure(t *testing.T) {
	m, _ := newMetrics(0, standing("critic", 1))
	for _, at := range []time.Duration{0, time.Hour} {
		m.Observe(tell(at, event.Failure, func(e *event.Event) { e.Role, e.Cause = "critic", role.Exited }))
		m.Observe(tell(at, event.Decided, func(e *event.Event) { e.Role, e.Action, e.Rule = "critic", role.InPlace, "role_can_stay" }))
		m.Observe(tell(at+time.Second, event.PlanEnded, func(e *event.Event) { e.Role = "critic" }))
	}
	m.Observe(tell(time.Hour+2*time.Second, event.FirstStep, func(e *event.Event) { e.Role = "critic" }))
	_, text := scrape(t, m)
	want(t, text, `vigil_recovery_seconds_sum{action="in_place"} 2`)
}

// A pedantic registry compares every series with its description, which a scrape of many ranks has no
// time for.
func TestEverySeriesIsAsDescribed(t *testing.T) {
	m, _ := newMetrics(0, standing("actor", 2), standing("critic", 1))
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(m); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Gather(); err != nil {
		t.Error(err)
	}
}

func TestTheLinterHasNothingToSay(t *testing.T) {
	m, _ := newMetrics(0, standing("actor", 2), standing("critic", 1))
	m.Observe(tell(0, event.Failure, func(e *event.Event) { e.Role, e.Cause, e.Took = "critic", role.Exited, time.Second }))
	m.Observe(tell(0, event.Decided, func(e *event.Event) { e.Role, e.Action, e.Rule = "critic", role.InPlace, "role_can_stay" }))
	m.Observe(tell(time.Second, event.FirstStep, func(e *event.Event) { e.Role = "critic" }))
	problems, err := testutil.GatherAndLint(m.Registry())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestAThousandRestartsAddNoSeries(t *testing.T) {
	m, src := newMetrics(0, standing("actor", 2), standing("critic", 1))
	restart := func(i int) {
		critic := standing("critic", 1)
		critic.Incarnation = i
		src.set(standing("actor", 2), critic)
		at := time.Duration(i) * time.Minute
		m.Observe(tell(at, event.Failure, func(e *event.Event) {
			e.Role, e.Cause, e.Took, e.Incarnation, e.Incident = "critic", role.Exited, time.Second, i, fmt.Sprint(i)
			e.Detail, e.PID = fmt.Sprintf("SIGKILL (pid %d)", 1000+i), 1000+i
		}))
		m.Observe(tell(at, event.Decided, func(e *event.Event) {
			e.Role, e.Action, e.Rule, e.Incarnation = "critic", role.InPlace, "role_can_stay", i
		}))
		m.Observe(tell(at, event.PlanEnded, func(e *event.Event) { e.Role, e.Incarnation = "critic", i }))
		m.Observe(tell(at+time.Second, event.FirstStep, func(e *event.Event) { e.Role, e.Incarnation = "critic", i+1 }))
	}
	restart(1)
	before, _ := scrape(t, m)
	for i := range 1000 {
		restart(2 + i)
	}
	after, text := scrape(t, m)
	if !slices.Equal(before, after) {
		t.Errorf("%d series before, %d after:\n%s", len(before), len(after), text)
	}
	want(t, text, `vigil_failures_total{cause="exited",role="critic"} 1001`)
}

func TestNoSeriesOutlivesItsRole(t *testing.T) {
	m, src := newMetrics(0, standing("actor", 1), standing("critic", 1))
	src.s.Bundles = nil
	fail := func() {
		m.Observe(tell(0, event.Failure, func(e *event.Event) { e.Role, e.Cause = "critic", role.Exited }))
		m.Observe(tell(0, event.Decided, func(e *event.Event) { e.Role, e.Action, e.Rule = "critic", role.InPlace, "role_can_stay" }))
	}
	fail()
	if _, text := scrape(t, m); !strings.Contains(text, `role="critic"`) {
		t.Fatalf("no critic in:\n%s", text)
	}
	src.set(standing("actor", 1))
	if _, text := scrape(t, m); strings.Contains(text, `role="critic"`) {
		t.Errorf("a role that is gone has series:\n%s", text)
	}
	fail() // said late
	if _, text := scrape(t, m); strings.Contains(text, `role="critic"`) {
		t.Errorf("a late event brought series of a role that is gone:\n%s", text)
	}
}

func TestRanksHaveSeriesUpToTheLimitOfAllRolesTogether(t *testing.T) {
	for _, c := range []struct{ limit, first, second, want int }{
		{0, 600, 400, 2000}, {0, 600, 401, 0}, {-1, 600, 401, 2002}, {3, 2, 1, 6}, {3, 2, 2, 0},
	} {
		m, _ := newMetrics(c.limit, standing("actor", c.first), standing("critic", c.second))
		series, _ := scrape(t, m)
		have := 0
		for _, s := range series {
			if strings.HasPrefix(s, "vigil_rank_") {
				have++
			}
		}
		if have != c.want {
			t.Errorf("%d+%d ranks under limit %d have %d series, want %d", c.first, c.second, c.limit, have, c.want)
		}
	}
}

func TestScrapesAndEventsMayComeAtOnce(t *testing.T) {
	m, src := newMetrics(0, standing("actor", 2))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				if i%2 == 0 {
					if _, err := m.Registry().Gather(); err != nil {
						t.Error(err)
					}
					continue
				}
				src.set(standing("actor", i))
				m.Observe(tell(0, event.Failure, func(e *event.Event) { e.Role, e.Cause = "critic", role.Exited }))
			}
		})
	}
	wg.Wait()
}

// The target is 200 ms for one scrape of 10,000 ranks, with series for each of them.
func BenchmarkScrapeOf10000Ranks(b *testing.B) {
	for name, limit := range map[string]int{"by_default": 0, "with_rank_series": -1} {
		b.Run(name, func(b *testing.B) {
			var roles []metrics.Role
			for i := range 10 {
				roles = append(roles, standing(role.Name(fmt.Sprintf("role%d", i)), 1000))
			}
			m, _ := newMetrics(limit, roles...)
			for b.Loop() {
				scrape(b, m)
			}
		})
	}
}
