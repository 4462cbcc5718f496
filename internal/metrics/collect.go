package metrics

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"vigil/internal/role"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descHealthy     = desc("vigil_role_healthy", "1 while no failure of the role is open, else 0.", "role")
	descStep        = desc("vigil_role_step", "The role's current step.", "role")
	descAge         = desc("vigil_role_heartbeat_age_seconds", "Since the role last spoke; before its first word, since it began.", "role")
	descIncarnation = desc("vigil_role_incarnation", "Which life of the role this is, from 1.", "role")
	descWorkers     = desc("vigil_role_workers", "The role's workers by state.", "role", "state")
	descRankStep    = desc("vigil_rank_step", "The rank's newest step in this life; absent before it has told one.", "role", "rank")
	descRankAge     = desc("vigil_rank_heartbeat_age_seconds", "Since the rank last spoke in this life; absent before.", "role", "rank")
	descGlobal      = desc("vigil_global_restarts_total", "Global restarts spent in this run of the job.")
	descGlobalLimit = desc("vigil_global_restarts_limit", "Global restarts that may be spent; the next one needed ends the job.")
	descBundles     = desc("vigil_placement_bundles", "The role's bundles by state.", "role", "state")
	descLateness    = desc("vigil_checker_lateness_seconds", "How late the newest sweep over the health records came.")
	descLongestAct  = desc("vigil_loop_longest_act_seconds", "The longest time that the repair loop was busy with one thing, since the controller began; nothing is repaired meanwhile.")
	descObligations = desc("vigil_obligations", "What could not be cleaned up yet and is tried again.")
	descJournal     = desc("vigil_journal_trouble", "1 while what is decided cannot be recorded, so that nothing is repaired.")
	descRefused     = desc("vigil_journal_refused_total", "Writes that the journal has refused since the controller began, such as a record over its largest size.")
	descFolder      = desc("vigil_folder_trouble", "1 while the controller's runtime or state directory cannot be used: nothing can be started, or recorded.", "folder")
	descRestored    = desc("vigil_folder_restored_total", "How often this controller has made again what somebody had removed from its runtime or state directory.", "folder")
	descBuildInfo   = desc("vigil_build_info", "Always 1; the labels say what runs.", "version", "revision", "goversion")
)

var workerStates = []role.WorkerState{role.WorkerStarting, role.WorkerReady, role.WorkerPaused, role.WorkerQuarantined, role.WorkerDown, role.WorkerFinished}

// Describe is prometheus.Collector's.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descHealthy, descStep, descAge, descIncarnation, descWorkers, descRankStep, descRankAge, descGlobal, descGlobalLimit,
		descBundles, descLateness, descLongestAct, descObligations, descJournal, descRefused, descFolder, descRestored, descBuildInfo,
	} {
		ch <- d
	}
	for _, c := range m.counted() {
		c.Describe(ch)
	}
}

// Collect is prometheus.Collector's. It takes one snapshot, so that what one scrape says fits together.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.source.Snapshot()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	ranks := 0
	for _, r := range s.Roles {
		ranks += len(r.Workers)
	}
	for _, r := range s.Roles {
		collectRole(gauge, r)
		if m.rankLimit < 0 || ranks <= m.rankLimit {
			collectRanks(gauge, r)
		}
	}
	collectBundles(gauge, s.Bundles)
	ch <- prometheus.MustNewConstMetric(descGlobal, prometheus.CounterValue, float64(s.GlobalRestarts))
	gauge(descGlobalLimit, float64(s.MaxGlobalRestarts))
	gauge(descLateness, s.CheckerLateness.Seconds())
	gauge(descLongestAct, s.LongestAct.Seconds())
	gauge(descObligations, float64(s.Obligations))
	gauge(descJournal, number(s.JournalTrouble))
	ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(s.JournalRefused))
	for _, f := range s.Folders {
		gauge(descFolder, number(f.Trouble), f.Name)
		ch <- prometheus.MustNewConstMetric(descRestored, prometheus.CounterValue, float64(f.Restored), f.Name)
	}
	ch <- m.buildInfo
	m.keepOnly(s.Roles)
	for _, c := range m.counted() {
		c.Collect(ch)
	}
}

type gaugeFunc func(d *prometheus.Desc, value float64, labels ...string)

func collectRole(gauge gaugeFunc, r Role) {
	name := string(r.Name)
	healthy := 0.0
	if r.Healthy {
		healthy = 1
	}
	gauge(descHealthy, healthy, name)
	gauge(descStep, float64(r.Step), name)
	gauge(descAge, r.HeartbeatAge.Seconds(), name)
	gauge(descIncarnation, float64(r.Incarnation), name)
	count := map[role.WorkerState]int{}
	for _, w := range r.Workers {
		count[w.State]++
	}
	// Every state is shown, also with 0: a series that comes and goes is hard to watch.
	for _, state := range workerStates {
		gauge(descWorkers, float64(count[state]), name, string(state))
	}
}

func collectRanks(gauge gaugeFunc, r Role) {
	for _, w := range r.Workers {
		rank := strconv.Itoa(w.Rank)
		if w.Step != nil {
			gauge(descRankStep, float64(*w.Step), string(r.Name), rank)
		}
		if w.HeartbeatAge != nil {
			gauge(descRankAge, w.HeartbeatAge.Seconds(), string(r.Name), rank)
		}
	}
}

// collectBundles adds up what is said of one role and state more than once: groups may share a role.
func collectBundles(gauge gaugeFunc, bundles []Bundles) {
	type key struct {
		role  role.Name
		state string
	}
	count := map[key]int{}
	for _, b := range bundles {
		count[key{b.Role, strings.ToLower(b.State)}] += b.Count
	}
	for k, n := range count {
		gauge(descBundles, float64(n), string(k.role), k.state)
	}
}

// counted returns what Observe feeds.
func (m *Metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.restarts, m.failures, m.detection, m.recovery, m.stale, m.refused, m.foreign, m.offStep}
}

// keepOnly begins the failure counters of new roles at 0, since a counter that first appears with 1
// hides that first failure from rate and increase, and ends the counters of roles that are gone.
func (m *Metrics) keepOnly(roles []Role) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := make(map[role.Name]bool, len(roles))
	for _, r := range roles {
		have[r.Name] = true
		m.begin(r.Name)
	}
	for name := range m.observed {
		if have[name] {
			continue
		}
		gone := prometheus.Labels{"role": string(name)}
		m.restarts.DeletePartialMatch(gone)
		m.failures.DeletePartialMatch(gone)
		delete(m.observed, name)
		delete(m.open, name)
	}
}

func (m *Metrics) begin(name role.Name) {
	if m.observed[name] {
		return
	}
	m.observed[name] = true
	for _, cause := range role.Causes() {
		m.failures.WithLabelValues(string(name), string(cause))
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
