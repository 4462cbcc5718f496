package job

import (
	"maps"
	"regexp"
	"slices"
	"time"
)

// WarmUp is the limit of the first gaps of each life. Its zero value is the default: one gap, under the
// start limit, where the heartbeat limit is learned, and none where it is given.
type WarmUp struct {
	Steps int           // so many steps of a life are followed by a gap under Limit; 0: one
	Limit time.Duration // 0: the start limit
}

// Alive asks a worker that is ready whether it still answers.
type Alive struct {
	Probe
	Failures int // so many bad answers in a row are a failure
}

// What holds of alive where the job file is silent.
const (
	alivePeriod   = 10 * time.Second
	aliveTimeout  = 10 * time.Second
	aliveFailures = 3
)

// phasePattern is what a phase can be called that has a limit; see role.MaxPhase.
const phasePattern = `^[!-*,.-~][ -~]{0,63}$`

var phaseRule = nameRule{phasePattern, func(name string) (string, string) {
	if !regexp.MustCompile(phasePattern).MatchString(name) {
		return "", "want the name of a phase: up to 64 characters of ASCII that can be printed, neither +, - nor a space first"
	}
	return name, ""
}}

// phasesKey describes the limits of phases, by the names that the programs use.
func phasesKey() Key {
	limit := duration(1)
	k := Key{Name: "phases", Type: "mapping", Default: "`{}`",
		Meaning: "How long a phase of that name may be open, as the program says it with `X_VIGIL_PHASE`. The limit governs silence while the phase is open, and one that runs out is a failure: `stuck` if the worker has said anything since. Of phases that are not named here the limit is learned where the heartbeat limit is. `paused` is the phase in which a worker is not watched, bounded by the start limit unless it is named here."}
	k.Keys = []Key{{Name: "NAME", Type: limit.name, schema: limit.schema}}
	k.schema = anyNamed(phasePattern, limit.schema)
	k.read = func(r *reader, t target, n *node) {
		r.names(n, phaseRule, func(name string, value *node) {
			if v, ok := limit.read(r, value); ok {
				if t.role.Limits.Phases == nil {
					t.role.Limits.Phases = map[string]time.Duration{}
				}
				t.role.Limits.Phases[name] = v
			}
		})
	}
	k.write = func(t target) *node {
		n := &node{form: formMapping}
		for _, name := range slices.Sorted(maps.Keys(t.role.Limits.Phases)) {
			n.entries = append(n.entries, entry{key: name, value: limit.write(t.role.Limits.Phases[name])})
		}
		return n
	}
	return k
}

func warmUpKey() Key {
	return group("warm_up", "The first gaps of each life, which are longer than the others: a program compiles, caches fill. Nothing is learned from them. Without it the first gap of a life is under the start limit where the heartbeat limit is learned, and under the heartbeat limit where that is given.",
		ofRole("steps", whole[int](1, 1_000_000), func(r *Role) *int { return &r.Limits.WarmUp.Steps }, "`1`", "After so many steps of a life the heartbeat limit holds."),
		ofRole("limit", duration(1), func(r *Role) *time.Duration { return &r.Limits.WarmUp.Limit }, "the start limit", "How long each of these gaps may be."))
}

// probeKeys are the keys of a probe. at finds it in a role, where it exists.
func probeKeys(at func(*Role) *Probe, period, timeout string) []Key {
	keys := []Key{
		group("http", "A GET that must answer with a status from 200 to 399.",
			required(ofRole("port", portName, func(r *Role) *string { return &at(r).HTTP.Port }, "", "A name from `ports`.")),
			ofRole("path", matching[string]("text", "a path that begins with /", "^/[!-~]*$"), func(r *Role) *string { return &at(r).HTTP.Path }, "`/`", "What is asked for.")),
		group("tcp", "A connection that must be accepted.",
			required(ofRole("port", portName, func(r *Role) *string { return &at(r).TCP.Port }, "", "A name from `ports`."))),
		ofRole("exec", list(word, 1), func(r *Role) *[]string { return &at(r).Exec }, "none", "A program that must end with 0."),
		ofRole("notify", truth, func(r *Role) *bool { return &at(r).Notify }, "`false`", "`READY=1` on the worker's `NOTIFY_SOCKET`."),
		ofRole("period", duration(1), func(r *Role) *time.Duration { return &at(r).Period }, period, "Between two askings."),
		ofRole("timeout", duration(1), func(r *Role) *time.Duration { return &at(r).Timeout }, timeout, "Of one asking."),
	}
	keys[0] = begun(keys[0], func(r *Role) { at(r).HTTP = &HTTPProbe{Path: "/"} }, func(r *Role) bool { return at(r).HTTP != nil })
	keys[1] = begun(keys[1], func(r *Role) { at(r).TCP = &TCPProbe{} }, func(r *Role) bool { return at(r).TCP != nil })
	return keys
}

// readyKey is a group that brings a probe into being.
func readyKey() Key {
	k := group("ready", "How to see that a worker is up. Exactly one of `http`, `tcp`, `exec` and `notify`. Without `ready`, the role is ready when all its workers run.",
		probeKeys(func(r *Role) *Probe { return r.Ready }, "`1s`", "`10s`")...)
	return begun(k, func(r *Role) { r.Ready = &Probe{Period: readyPeriod, Timeout: readyTimeout} }, func(r *Role) bool { return r.Ready != nil })
}

// aliveKey is the same for the probe of workers that are up.
func aliveKey() Key {
	keys := probeKeys(func(r *Role) *Probe { return &r.Alive.Probe }, "`10s`", "`10s`")
	for i := range keys {
		if keys[i].Name == "notify" {
			keys[i].Meaning = "A heartbeat on the worker's `NOTIFY_SOCKET`, such as `WATCHDOG=1`, in each `period`."
		}
	}
	keys = append(keys, ofRole("failures", whole[int](1, 1_000_000), func(r *Role) *int { return &r.Alive.Failures }, "`3`", "So many bad answers in a row are a failure."))
	k := group("alive", "How to see that a worker that was ready still is: a server makes no steps. Exactly one of `http`, `tcp`, `exec` and `notify`. A worker that does not answer has failed (`stuck`), but not while `pause_watch` holds.", keys...)
	return begun(k, func(r *Role) {
		r.Alive = &Alive{Probe: Probe{Period: alivePeriod, Timeout: aliveTimeout}, Failures: aliveFailures}
	}, func(r *Role) bool { return r.Alive != nil })
}
