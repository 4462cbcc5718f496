package job

import (
	"fmt"
	"slices"

	"vigil/internal/role"
)

// Unit says what is restarted when a worker fails.
type Unit string

// The units of a restart.
const (
	UnitRole   Unit = "role"   // all workers of the role: they cannot go on without each other
	UnitWorker Unit = "worker" // that worker alone, while enough of the others are ready
)

// Rejoin says when a worker that was restarted alone counts as ready again.
type Rejoin string

// The ways to rejoin.
const (
	RejoinAuto   Rejoin = "auto"   // as soon as its ready probe is well
	RejoinManual Rejoin = "manual" // it is quarantined then, until somebody admits it
)

// Hooks are commands that the controller runs when one of the role's workers comes or goes, each a
// program with its arguments; empty without one.
type Hooks struct {
	WorkerDown  []string // a worker that was ready has failed, is stopped or is restarted
	WorkerReady []string // a worker has become ready
}

// StandAlone returns the names of the roles whose workers are restarted alone, in the order of the file.
func (j *Job) StandAlone() []role.Name {
	var names []role.Name
	for i := range j.Roles {
		if j.Roles[i].Restart.Unit == UnitWorker {
			names = append(names, j.Roles[i].Name)
		}
	}
	return names
}

// noMinAvailable stands for a MinAvailable that the file does not say, and that has no meaning with
// UnitRole.
const noMinAvailable = -1

// settleUnit fills in what depends on whether the role's workers need each other.
func (r *Role) settleUnit() {
	alone := r.Restart.Unit == UnitWorker
	if r.Distributed == "" {
		r.Distributed = Torch
		if alone {
			r.Distributed = None
		}
	}
	if !alone {
		return
	}
	if r.Restart.Rejoin == "" {
		r.Restart.Rejoin = RejoinAuto
	}
	if r.Restart.MinAvailable == noMinAvailable {
		r.Restart.MinAvailable = min(1, r.Workers-1)
	}
}

// unit finds keys that only workers which need no others have, and a floor that no restart could keep.
func (r *Role) unit(key string, wrong tell) {
	if r.Restart.Unit == "" {
		return // told already
	}
	const only = "say unit: worker, or leave it out"
	switch given := r.Restart.MinAvailable != noMinAvailable; {
	case r.Restart.Unit != UnitWorker && given:
		wrong(key+".min_available", "without unit: worker all workers of the role are restarted", only)
	case r.Restart.Unit == UnitWorker && r.Restart.MinAvailable >= r.Workers:
		what, fix := fmt.Sprintf("of %d workers, no more than %d can be ready while one is restarted", r.Workers, r.Workers-1), fmt.Sprintf("want %d or less", r.Workers-1)
		if r.Workers == 1 {
			what, fix = "the role has no other worker that could be ready", "want 0, or more workers"
		}
		wrong(key+".min_available", what, fix)
	}
	if r.Restart.Unit != UnitWorker && r.Restart.Rejoin != "" {
		wrong(key+".rejoin", "without unit: worker no worker is restarted alone", only)
	}
}

// unitKeys are the keys of restart that say whether the role's workers need each other.
func unitKeys() []Key {
	units := oneOf(UnitRole, UnitWorker)
	unit := ofRole("unit", units, func(r *Role) *Unit { return &r.Restart.Unit }, "`role`",
		"What is restarted when a worker fails: all workers of the role, or with `worker` that one alone, with the same rank and ports; the incarnation stays, the attempt counts up. The role fails instead, and is repaired as `on_failure` says, when fewer than `min_available` of the others are ready, when this worker has used up `escalate_at`, and for causes that concern the whole role (its service is lost, `hardware`, `preempted`, `port_taken`). A repair of the role forgives what its workers have used up.")
	unit.read = func(r *reader, t target, n *node) {
		t.role.Restart.Unit, _ = units.read(r, n) // empty if bad: one mistake, one problem
	}
	return []Key{
		unit,
		ofRole("min_available", whole[int](0, 100_000), func(r *Role) *int { return &r.Restart.MinAvailable }, "`1`, or `0` for one worker",
			"With `unit: worker`: so many of the role's other workers must be ready for a worker to be restarted alone. Less than `workers`."),
		ofRole("rejoin", oneOfOr(RejoinAuto, RejoinManual), func(r *Role) *Rejoin { return &r.Restart.Rejoin }, "`auto`",
			"With `unit: worker`: when a worker that was restarted alone is ready again. `auto`: when `ready` says so. `manual`: then it is `quarantined`, and not available, until `POST /{role}/admit?worker=RANK`: its weights are those that it was started with."),
	}
}

// oneOfOr is one of a few words, or left out where there is none.
func oneOfOr[T ~string](words ...T) kind[T] {
	k := oneOf(words...)
	write := k.write
	k.write = func(v T) *node {
		if v == "" {
			return nil
		}
		return write(v)
	}
	return k
}

func hooksKey() Key {
	return group("hooks", "Commands that the controller runs when a worker comes or goes, such as to tell a router. A list of words like `command`, without a shell, in the role's `workdir` with the role's environment; `${port.NAME}` stands for a port of that worker. One at a time for each role, in order, for `--hook-timeout` (60 s) at most, with what they put into the background. A hook that fails is tried again and then said, and is in the way of nothing. They find `VIGIL_JOB`, `VIGIL_ROLE`, `VIGIL_RANK`, `VIGIL_WORKER_LIFE`, `VIGIL_WORKER_STATE`, and with `ports` `VIGIL_WORKER_ADDR`: host and port, that of the port `http`, else of the first by name.",
		ofRole("worker_down", list(word, 1), func(r *Role) *[]string { return &r.Hooks.WorkerDown }, "none",
			"When a worker that was ready fails, is stopped or is restarted."),
		ofRole("worker_ready", list(word, 1), func(r *Role) *[]string { return &r.Hooks.WorkerReady }, "none",
			"When a worker becomes ready; with `rejoin: manual`, when one that was restarted alone is admitted."))
}

// programs are the role's lists of words that begin with a program, with the key of each, the command
// first; those that are not given are left out.
func (r *Role) programs() []program {
	all := []program{{"command", r.Command}}
	if r.Ready != nil {
		all = append(all, program{"ready.exec", r.Ready.Exec})
	}
	if r.Alive != nil {
		all = append(all, program{"alive.exec", r.Alive.Exec})
	}
	all = append(all, program{"hooks.worker_down", r.Hooks.WorkerDown}, program{"hooks.worker_ready", r.Hooks.WorkerReady})
	return slices.DeleteFunc(all, func(p program) bool { return len(p.words) == 0 })
}

type program struct {
	key   string
	words []string
}
