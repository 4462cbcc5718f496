// Package metrics shows the controller to Prometheus. How things stand is asked of one Source at every
// scrape; what happened is counted from the events that Observe is given. The names are those of
// section 9 of the design; series depend on roles and ranks, never on the number of restarts, and none
// outlives its role.
package metrics

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"vigil/internal/role"
)

// Options are what the metrics are made of.
type Options struct {
	Source  Source
	Version string // of the program; a label of vigil_build_info
	// RankLimit is up to how many ranks, of all roles together, each rank has series of its own;
	// 0 means DefaultRankLimit, below 0 that there is no limit.
	RankLimit int
}

// DefaultRankLimit is up to how many ranks in total each rank has series of its own.
const DefaultRankLimit = 1000

// Metrics is everything that is shown, in a registry of its own. Its methods may be called from any
// goroutine.
type Metrics struct {
	source    Source
	rankLimit int
	registry  *prometheus.Registry
	buildInfo prometheus.Metric

	restarts  *prometheus.CounterVec   // role, action, rule
	failures  *prometheus.CounterVec   // role, cause
	detection *prometheus.HistogramVec // cause
	recovery  *prometheus.HistogramVec // action
	stale     prometheus.Counter
	refused   prometheus.Counter
	foreign   *prometheus.CounterVec
	offStep   *prometheus.CounterVec // role, kind

	mu       sync.Mutex
	observed map[role.Name]bool   // the roles that have counters
	open     map[role.Name]repair // what is being repaired
}

// New returns metrics over the source, with those of the Go runtime and the process.
func New(o Options) *Metrics {
	m := &Metrics{
		source:    o.Source,
		rankLimit: o.RankLimit,
		registry:  prometheus.NewRegistry(),
		buildInfo: buildInfo(o.Version),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vigil_restarts_total", Help: "Decisions to restart the role, by what was decided and the policy line that settled it.",
		}, []string{"role", "action", "rule"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vigil_failures_total", Help: "Failures of the role, by cause.",
		}, []string{"role", "cause"}),
		detection: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "vigil_detection_seconds", Help: "Time from the first sign of a failure, for silence from the last word, to the verdict.",
			Buckets: []float64{.001, .0025, .005, .01, .05, .1, .5, 1, 2.5, 5, 15, 30, 60, 120, 300, 900, 1800},
		}, []string{"cause"}),
		recovery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "vigil_recovery_seconds", Help: "Time from the verdict on a role to the first heartbeat of its new life.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 1800},
		}, []string{"action"}),
		foreign: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vigil_foreign_messages_total", Help: "Datagrams on workers' notify sockets that were dropped, since the process that sent them may not speak for the worker.",
		}, []string{"role"}),
		offStep: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vigil_lives_off_step_total", Help: "Lives that began below the step that they were given (behind), beyond it (ahead), or in a run's first life away from others (apart).",
		}, []string{"role", "kind"}),
		stale: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vigil_stale_messages_total", Help: "Words of earlier lives that were dropped.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "vigil_refused_callers_total", Help: "Callers that were turned away at the controller's socket: of another user, or one client without a sender too many.",
		}),
		observed: map[role.Name]bool{},
		open:     map[role.Name]repair{},
	}
	if m.rankLimit == 0 {
		m.rankLimit = DefaultRankLimit
	}
	m.registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Registry returns the registry, for further collectors of the same program.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// Handler answers /metrics, at most eight scrapes at a time.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8})
}

func buildInfo(version string) prometheus.Metric {
	revision := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		if i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" }); i >= 0 {
			revision = info.Settings[i].Value
		}
	}
	return prometheus.MustNewConstMetric(descBuildInfo, prometheus.GaugeValue, 1, version, revision, runtime.Version())
}
