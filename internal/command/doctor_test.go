package command

import (
	"strings"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// healthyChart is a job in which nothing wants a look.
func healthyChart(now time.Time) chart {
	step := int64(7)
	return chart{
		status: status{
			Job: httpapi.Job{HealthCheck: true, GlobalRestarts: 1, MaxGlobalRestarts: 3},
			Roles: []httpapi.Role{{Name: "critic", Healthy: true, TaskRunning: true, Incarnation: 2, LastHeartbeat: now.Add(-time.Second),
				Workers: []httpapi.Worker{{Step: &step}}}},
		},
		Groups: []httpapi.PlacementGroup{{Name: "critic", State: "RESERVED", Live: 1, Needed: 1}},
	}
}

// Every trouble that the seed's list has shows as one line that wants a look and names the cause; a
// job that is well has none.
// shows: R50 FAULT-B5 FAULT-B6
func TestTheDoctorFindsEveryTroubleOfTheList(t *testing.T) {
	now := time.Now()
	text := "CUDA out of memory"
	for name, c := range map[string]struct {
		ail  func(*chart)
		says string // nothing: the doctor is content
	}{
		"nothing is wrong":                               {func(*chart) {}, ""},
		"repairs do not come: health check is off":       {func(c *chart) { c.Job.HealthCheck = false }, "start with --use-health-check"},
		"repairs do not come: a role reported an error":  {func(c *chart) { c.Roles[0].Healthy, c.Roles[0].Error = false, &text }, "critic is unhealthy: CUDA out of memory"},
		"a hang is not found: the role has never spoken": {func(c *chart) { c.Roles[0].Why = "watched by exit only (it has never sent a heartbeat)" }, "a hang of it is not found"},
		"a global restart failed at a move": {func(c *chart) {
			c.Events = []event.Event{{Kind: event.Decided, Action: role.Global, Incident: "1"}, {Kind: event.Moved, Incident: "1", Verb: "stop_service", Role: "critic", Error: "still there"}}
		}, "[Global Restart] Failed to stop_service 'critic': still there"},
		"something of an old life is left, and its device with it": {func(c *chart) { c.Job.Obligations = []string{"critic/0: pid 4711 python3"} }, "pid 4711 python3"},
		"the budget is spent by the same failure again and again": {func(c *chart) {
			c.Job.GlobalRestarts = 3
			c.Incidents = []httpapi.Incident{{Role: "actor", Cause: role.Exited, Detail: "exit code 3"}, {Role: "actor", Cause: role.Exited, Detail: "exit code 3"}}
		}, "2x actor fails as exited (exit code 3)"},
		"the placement group was not rebuilt": {func(c *chart) {
			c.Groups[0].State, c.Groups[0].Live, c.Groups[0].Why = "PARTIAL", 0, "device 3 is lost"
		}, "group critic is PARTIAL (0 of 1): device 3 is lost"},
		"the step was not restored": {func(c *chart) {
			c.Events = []event.Event{{Kind: event.StepWentBack, Role: "critic", Detail: "given step 20, began at 0"}}
		}, "began at 0"},
		"a life began beyond its step": {func(c *chart) {
			c.Events = []event.Event{{Kind: event.StepAhead, Role: "critic", Detail: "given step 24, began at 525"}}
		}, "critic is ahead: given step 24, began at 525"},
		"the roles of a first life began apart": {func(c *chart) {
			c.Events = []event.Event{{Kind: event.StepsApart, Role: "critic", Detail: "began at step 1, actor at 501"}}
		}, "critic: began at step 1, actor at 501"},
		"a step was not restored, long ago":               {func(c *chart) { c.Roles[0].StepOff = "rank 1: given step 24, began at 3" }, "critic began off its step: rank 1: given step 24, began at 3"},
		"nobody admits a worker that was restarted alone": {func(c *chart) { c.Roles[0].Workers[0].State = role.WorkerQuarantined }, "critic rank 0 is quarantined until POST /critic/admit?worker=0"},
		"the new life waits for its peers":                {func(c *chart) { c.Roles[0].Workers[0].Step, c.Roles[0].LastHeartbeat = nil, now.Add(-time.Minute) }, "critic, life 2, has not spoken for 1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			ch := healthyChart(now)
			c.ail(&ch)
			var looks []string
			for _, f := range ch.diagnose(now) {
				if !f.well {
					looks = append(looks, f.answer)
				}
			}
			if c.says == "" && looks != nil || c.says != "" && !strings.Contains(strings.Join(looks, "\n"), c.says) {
				t.Errorf("the doctor says %q, want %q", looks, c.says)
			}
		})
	}
}
