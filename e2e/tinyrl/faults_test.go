package tinyrl

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"vigil/internal/role"
)

// kind is a way to break a role.
type kind struct {
	name   string
	detail string     // that the incident must have
	cause  role.Cause // of it
	does   func(*run, fault) error
}

// fault is one kind done to one role.
type fault struct {
	kind kind
	role role.Name
	rank int // of the worker; negative: the service, or the role as a whole
	step int64
}

// signalled is a signal to a worker that ends it.
func signalled(sig syscall.Signal, name, detail string) kind {
	return kind{name, detail, role.Exited, func(r *run, f fault) error { return syscall.Kill(r.worker(f.role, f.rank).PID, sig) }}
}

var (
	killed   = signalled(syscall.SIGKILL, "SIGKILL", "SIGKILL")
	crashed  = signalled(syscall.SIGSEGV, "SIGSEGV", "SIGSEGV")
	ended    = signalled(syscall.SIGTERM, "SIGTERM by hand", "143")
	hanging  = kind{"SIGSTOP", "no heartbeat", role.Silent, func(r *run, f fault) error { return syscall.Kill(r.worker(f.role, f.rank).PID, syscall.SIGSTOP) }}
	orphaned = kind{"SIGKILL of the service", "its service ended", role.Exited, func(r *run, f fault) error { return syscall.Kill(r.Service(f.role), syscall.SIGKILL) }}
	reported = kind{"report_error", "the loss is NaN", role.Reported, func(r *run, f fault) error {
		return r.Post(fmt.Sprintf("/%s/report_error?rank=%d", f.role, f.rank), "the loss is NaN")
	}}
	marked = kind{"mark_unhealthy", "marked unhealthy", role.Reported, func(r *run, f fault) error {
		return r.Post(fmt.Sprintf("/%s/mark_unhealthy_for_testing", f.role), "")
	}}
)

var (
	kinds = []kind{killed, crashed, ended, hanging, orphaned, reported, marked}
	names = []role.Name{"data", "rollout", "critic", "advantages", "actor_fwd", "actor"}
)

// few is the shortest story in which everything has its turn: one role hangs, the lead role is killed,
// and another that can be repaired in place loses its service.
func few(chance *rand.Rand) []fault {
	stay := []role.Name{"data", "critic", "advantages"}
	i := chance.IntN(len(stay))
	others := slices.Delete(slices.Clone(names[:len(names)-1]), slices.Index(names, stay[i]), slices.Index(names, stay[i])+1)
	faults := []fault{{kind: killed, role: "actor"}, {kind: orphaned, role: stay[i]}, {kind: hanging, role: others[chance.IntN(len(others))]}}
	chance.Shuffle(len(faults), func(a, b int) { faults[a], faults[b] = faults[b], faults[a] })
	return hangFirst(faults, 1)
}

// hangFirst sees to it that only the first n hang: that is found after 5 s, and what does not need the
// role at once goes on; the job must not be done before.
func hangFirst(faults []fault, n int) []fault {
	hangs := func(f fault) bool { return f.kind.name == hanging.name }
	for i := n; i < len(faults); i++ {
		if hangs(faults[i]) {
			early := slices.IndexFunc(faults, func(f fault) bool { return !hangs(f) })
			faults[early], faults[i] = faults[i], faults[early]
		}
	}
	return faults
}

// many is ten faults: every kind and every role once, and again until there are ten.
func many(chance *rand.Rand) []fault {
	var faults []fault
	var ways []kind
	var who []role.Name
	for len(faults) < 10 {
		if len(ways) == 0 {
			ways = slices.Clone(kinds)
			chance.Shuffle(len(ways), func(a, b int) { ways[a], ways[b] = ways[b], ways[a] })
		}
		if len(who) == 0 {
			who = slices.Clone(names)
			chance.Shuffle(len(who), func(a, b int) { who[a], who[b] = who[b], who[a] })
		}
		faults = append(faults, fault{kind: ways[0], role: who[0]})
		ways, who = ways[1:], who[1:]
	}
	return hangFirst(faults, 8)
}

// settle gives each fault its worker, and its moment: anywhere in its share of the job's steps, of which
// the last fifth is left alone.
func settle(chance *rand.Rand, faults []fault, steps int) {
	share := steps * 8 / 10 / len(faults)
	for i := range faults {
		f := &faults[i]
		f.step = int64(i*share + 1 + chance.IntN(share))
		switch {
		case f.kind.name == orphaned.name || f.kind.name == marked.name:
			f.rank = role.NoRank
		case f.role == "rollout":
			f.rank = chance.IntN(2)
		}
	}
}

// breaks waits for the moment of a fault and until everybody is well, does it, and waits for its repair.
func (r *run) breaks(chance *rand.Rand, f fault) {
	r.t.Helper()
	before := r.wellAt(f.step)
	r.Pause(time.Duration(chance.IntN(100)) * time.Millisecond) // anywhere within a step
	had := len(r.Incidents())
	if err := f.kind.does(r, f); err != nil {
		r.t.Fatalf("%s: %v", f, err)
	}
	done := time.Now()
	var got incident
	r.Eventually(f.String()+" is repaired", func() error {
		all := r.Incidents()
		if len(all) <= had {
			return errors.New("no incident")
		}
		if got = all[had]; got.Open || got.FirstStep == nil {
			return fmt.Errorf("incident %+v", got)
		}
		return nil
	})
	r.t.Logf("%s: %s, %s (%s), first step after %s", f, got.Detail, got.Action, got.Rule, time.Since(done).Round(10*time.Millisecond))
	if got.Role != f.role || got.Cause != f.kind.cause || !strings.Contains(got.Detail, f.kind.detail) || got.Error != "" {
		r.t.Errorf("%s: incident of %s: %s %q, error %q", f, got.Role, got.Cause, got.Detail, got.Error)
	}
	if want := actionFor(f.role, before); got.Action != want {
		r.t.Errorf("%s: the decision is %s (%s), want %s", f, got.Action, got.Rule, want)
	}
	r.compare(f, before, got.Action)
}

// actionFor is the documented policy: three roles need a global restart at once, the others at their third.
func actionFor(name role.Name, before map[role.Name]standing) role.Action {
	if slices.Contains([]role.Name{"actor", "rollout", "actor_fwd"}, name) || before[name].restarts >= 2 {
		return role.Global
	}
	return role.InPlace
}

// compare checks who has been replaced: all workers in a global restart, in place only those of the role.
func (r *run) compare(f fault, before map[role.Name]standing, action role.Action) {
	r.t.Helper()
	after := r.standings()
	for name, was := range before {
		now := after[name]
		if again := action == role.Global || name == f.role; again {
			if now.incarnation != was.incarnation+1 || slices.ContainsFunc(now.workers, func(pid int) bool { return slices.Contains(was.workers, pid) }) {
				r.t.Errorf("%s (%s): %s went from %+v to %+v", f, action, name, was, now)
			}
		} else if now.incarnation != was.incarnation || !slices.Equal(now.workers, was.workers) || now.service != was.service {
			r.t.Errorf("%s was repaired in place, but %s went from %+v to %+v", f, name, was, now)
		}
	}
	if !slices.Equal(slices.Sorted(maps.Keys(before)), slices.Sorted(slices.Values(names))) {
		r.t.Errorf("the roles are %v", before)
	}
}
