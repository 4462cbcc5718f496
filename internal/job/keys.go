package job

import (
	"math"
	"time"

	"vigil/internal/role"
)

// Key describes one key of the job file. The parser, the JSON schema and the reference are all made
// from these descriptions.
type Key struct {
	Name     string // NAME in capitals stands for a name that the user chooses
	Type     string
	Default  string // as the reference says it; empty for a key that must be there
	Meaning  string
	Required bool
	Keys     []Key // of a mapping

	schema fragment // nil for a mapping
	read   func(*reader, target, *node)
	write  func(target) *node
}

// target is what is being read into or written from.
type target struct {
	job  *Job
	role *Role
	rule *RoleRule
}

// Keys returns the description of the whole job file.
func Keys() []Key {
	return []Key{
		required(ofJob("name", matching[string]("text", "a letter or digit, then up to 39 letters, digits, dots, - and _", `^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`),
			func(j *Job) *string { return &j.Name }, "", "The name of the job. A run's uid is this name, a dash and 8 hexadecimal digits.")),
		ofJob("lead_role", roleName, func(j *Job) *role.Name { return &j.Lead }, "`actor` if there is one, else the first role",
			"The role whose step is the job's: a global restart resumes there."),
		named("controller", "FLAG", word, func(t target) *map[string]string { return &t.job.Controller }, flagKey,
			"Flags of the controller by their long names, without the leading dashes; underscores may stand for dashes. The command line and `VIGIL_OPT_*` beat them."),
		rolesKey(roleKeys()),
	}
}

func roleKeys() []Key {
	return []Key{
		required(ofRole("command", list(word, 1), func(r *Role) *[]string { return &r.Command }, "",
			"The program of a worker and its arguments; no shell is involved. A name without a slash is looked up in the role's `PATH`, one with a slash is relative to `workdir`. `${port.NAME}` stands for a leased port.")),
		ofRole("python", line, func(r *Role) *string { return &r.Python }, "none",
			"The interpreter of a `command` that begins with a `.py` file or with `-m`, such as `.venv/bin/python`; found as a program of `command` is. It is run with `-u`, before the command."),
		ofRole("preload", list(word, 1), func(r *Role) *[]string { return &r.Preload }, "none",
			"Modules that a fork server of each service imports once, such as `torch`: every worker is forked from it and starts in hundredths of a second, at the cost of one shared copy of them in memory. `auto` stands for what the script imports at its top level. For a `command` that is a Python program; where something speaks against it workers start as ever, and it is said why."),
		ofRole("workers", whole[int](1, 100_000), func(r *Role) *int { return &r.Workers }, "`1`", "How many workers (ranks) the role has."),
		group("resources", "What each worker reserves: one bundle. A reservation, not a limit.",
			ofRole("gpus", whole[int](0, 1024), func(r *Role) *int { return &r.Resources.GPUs }, "`0`", "Devices."),
			ofRole("cpus", share, func(r *Role) *float64 { return &r.Resources.CPUs }, "`0`", "CPUs; may be a part of one."),
			ofRole("memory", memory, func(r *Role) *int64 { return &r.Resources.Memory }, "`0`", "Memory, in bytes or with `Ki`, `Mi`, `Gi`, `Ti`.")),
		group("placement", "Where the bundles may lie.",
			ofRole("strategy", oneOf(Pack, Spread, StrictPack, StrictSpread), func(r *Role) *Strategy { return &r.Placement.Strategy }, "`PACK`",
				"On as few nodes as can be, on as many as can be, on one or not at all, each on one of its own or not at all."),
			ofRole("group", matching[string]("text", "a lower-case letter, then up to 30 of a-z, 0-9, - and _", `^[a-z][a-z0-9_-]{0,30}$`),
				func(r *Role) *string { return &r.Placement.Group }, "a group of its own", "Roles that name the same group share its bundles."),
			ofRole("per_node", whole[int](1, 100_000), func(r *Role) *int { return &r.Placement.PerNode }, "no limit", "At most so many workers on one node.")),
		ofRole("devices", oneOf(DevicesAll, DevicesOwn), func(r *Role) *Devices { return &r.Devices }, "`all`",
			"Which devices a worker sees: all of its service, indexed by `LOCAL_RANK`, or its own only, with `LOCAL_RANK` 0."),
		ofRole("distributed", oneOf(Torch, None), func(r *Role) *Distributed { return &r.Distributed }, "`torch`; `none` with `restart.unit: worker`",
			"Whether a worker finds the environment that torchrun sets."),
		ofRole("depends_on", list(roleName, 0), func(r *Role) *[]role.Name { return &r.DependsOn }, "`[]`",
			"Roles that must be ready before this one is started, and are stopped after it. No cycles."),
		ofRole("completion", oneOf(Finish, Daemon, Once), func(r *Role) *Completion { return &r.Completion }, "`finish`",
			"`finish`: it ends by itself, and the job when all such roles have. `daemon`: it is stopped then; ending earlier is a failure. `once`: like `finish`, and a global restart does not begin it again."),
		ofRole("state", oneOf(Checkpointed, Stateless), func(r *Role) *StateKind { return &r.State }, "`checkpoint` for the lead role, else `none`",
			"Where the role's work lives. With `checkpoint`, its step after a restart is what its checkpoint says."),
		named("env", "NAME", word, func(t target) *map[string]string { return &t.role.Env }, envKey,
			"Environment of the workers, over the controller's own and over `env_file`. `${port.NAME}` stands for a leased port."),
		ofRole("env_file", line, func(r *Role) *string { return &r.EnvFile }, "none",
			"A file of `KEY=VALUE` lines for the environment, relative to the job file. Blank lines and lines that begin with `#` are left out; a value may stand in single or double quotes. Nothing in it is expanded."),
		ofRole("workdir", line, func(r *Role) *string { return &r.Workdir }, "the job file's folder", "Where workers run, relative to the job file."),
		portsKey(),
		readyKey(), aliveKey(),
		ofRole("notify_access", oneOf(ProcessTree, AnyProcess), func(r *Role) *NotifyAccess { return &r.NotifyAccess }, "`tree`",
			"Whose words on a worker's notify socket count. `tree`: those of the worker and the processes that it has started. `any`: those of foreign processes too, such as a container that is given the socket. See [who may say what](words.md)."),
		ofRole("user", matching[string]("text", "a user's name or number, which :GROUP may follow", `^[A-Za-z0-9_][A-Za-z0-9_.@-]*\$?(:[A-Za-z0-9_][A-Za-z0-9_.@-]*)?$`),
			func(r *Role) *string { return &r.User }, "the controller's own",
			"Whom the workers run as, by name or number, with all groups of that user, or with `:GROUP` in that group alone; `HOME`, `USER` and `LOGNAME` are set. Only a controller of root's can do that. Probes and hooks run as the controller does."),
		wandbKey(),
		group("stop", "How workers are stopped.",
			ofRole("signal", signal, func(r *Role) *string { return &r.Stop.Signal }, "`TERM`", "The first signal, with or without `SIG`."),
			ofRole("grace", duration(0), func(r *Role) *time.Duration { return &r.Stop.Grace }, "`30s`", "How long a worker has to end before SIGKILL, where the end is wanted. 0: SIGKILL at once."),
			graceOnFailureKey(),
			ofRole("signal_to", oneOfOr(SignalWorker, SignalTree), func(r *Role) *SignalTo { return &r.Stop.SignalTo }, "see the meaning",
				"Who is sent the signal. By default the worker's own process, and in a wanted stop, at half of `grace`, where that has not reacted (no thread of it has used the CPU, no `checkpoint` phase is open), the process below it that speaks for it, else its children: a shell script that traps the signal keeps it from the program that it waits for. `worker`: never anybody below it. `tree`: every process of it at once, also data loaders, whose death may keep a trainer from saving.")),
		group("limits", "How long silence is borne.",
			ofRole("start", duration(1), func(r *Role) *time.Duration { return &r.Limits.Start }, "the controller's `--start-timeout`", "From the start of a life to its first heartbeat. A learned limit is not longer, unless gaps of more than half of that are usual."),
			heartbeatKey(),
			ofRole("floor", duration(1), func(r *Role) *time.Duration { return &r.Limits.Floor }, "`2m`", "A learned limit is never shorter."),
			phasesKey(),
			warmUpKey()),
		progressKey(), checkpointKey(),
		logsKey(),
		restartKey(),
		hooksKey(),
	}
}

func logsKey() Key {
	return group("logs", "How much of what workers print is kept.",
		ofRole("max_size", memory, func(r *Role) *int64 { return &r.Logs.MaxSize }, "`256Mi`",
			"How much of the newest is kept of each stream of a worker's life; `64Ki` or more, or `0`: all of it. The newest lie at `stdout.log`, what came before at `stdout.N.log`; what was left out is said by the last line of `stdout.first.log`."),
		ofRole("first", memory, func(r *Role) *int64 { return &r.Logs.First }, "`16Mi`", "How much of the beginning is kept beside it, at `stdout.first.log`; `0`: nothing."),
		ofRole("keep", whole[int](1, 10_000), func(r *Role) *int { return &r.Logs.Keep }, "`8`", "Into how many files of `max_size` / `keep` each the newest are divided; the oldest is removed as a whole."))
}

func wandbKey() Key {
	return ofRole("wandb", oneOf(WandBNone, WandBResume), func(r *Role) *WandB { return &r.WandB }, "`none`",
		"`resume`: rank 0 finds `WANDB_RUN_ID`, which stays the same over all restarts of the run and is that of no other run, and `WANDB_RESUME=allow`, so that it goes on with one run of Weights & Biases; each only where it is not set already. Other ranks find neither.")
}

func progressKey() Key {
	return group("progress", "What is expected of the role's heartbeats.",
		ofRole("expect", oneOf(Always, OnceSeen, Never), func(r *Role) *Expect { return &r.Progress.Expect }, "`once_seen`",
			"Whether silence is a failure: always, once the role has spoken in any life of the job, or never."),
		ofRole("source", oneOf(FromWord, FromHook, FromPattern, FromFile), func(r *Role) *Source { return &r.Progress.Source }, "`word`; `auto` in `vigil run`",
			"Where steps come from. `word`: the program says them. `auto`: a Python program that never says them has the steps of its PyTorch optimizers counted by a hook that is put into its `PYTHONPATH`; `VIGIL_INJECT=0` keeps it out. `pattern`: they are read from what it prints. `file`: from the file in which it notes its newest checkpoint."),
		ofRole("pattern", expression, func(r *Role) *string { return &r.Progress.Pattern }, "none",
			"With `source: pattern`: a regular expression ([RE2](https://github.com/google/re2/wiki/Syntax)) that finds the step in a line of standard output or error; its first group is the step. Of a line, the first 64 KiB are looked at."),
		ofRole("file", line, func(r *Role) *string { return &r.Progress.File }, "none",
			"With `source: file`: the file that holds the step of the newest checkpoint, such as `ckpt/latest_checkpointed_iteration.txt`, relative to `workdir`. It is looked at every second."))
}

func restartKey() Key {
	return group("restart", "The role's part of the restart policy.", append([]Key{
		ofRole("on_failure", oneOf(role.InPlace, role.Global, role.Stop), func(r *Role) *role.Action { return &r.Restart.OnFailure },
			"`global` for actor, rollout and actor_fwd, else `in_place`", "What is done when the role fails."),
		ofRole("escalate_at", whole[int](0, 1_000_000), func(r *Role) *int { return &r.Restart.EscalateAt }, "`3`", "This restart of the role is global instead of in place; 0 is never. With `unit: worker` also: this restart of the same worker is the role's instead."),
		ofRole("also", list(roleName, 0), func(r *Role) *[]role.Name { return &r.Restart.Also }, "`[]`", "Roles that are restarted with it, because they cannot go on without a fresh peer."),
		ofRole("max_rewind", whole[int64](0, math.MaxInt64), func(r *Role) *int64 { return &r.Restart.MaxRewind }, "no limit",
			"How many steps the checkpoint of a stateful role may lie back; further back, the restart is global."),
		group("backoff", "The wait between two restarts of the role: none before the first, then `base`, doubling up to `max`.",
			ofRole("base", duration(0), func(r *Role) *time.Duration { return &r.Restart.BackOff.Base }, "`1s`", "The first wait."),
			ofRole("max", duration(0), func(r *Role) *time.Duration { return &r.Restart.BackOff.Max }, "`1m`", "The longest wait; not under `base`."),
			ofRole("reset_after", duration(0), func(r *Role) *time.Duration { return &r.Restart.BackOff.ResetAfter }, "`1m`", "Forgotten after the role has been well for so long.")),
	}, append(budgetKeys(), unitKeys()...)...)...)
}

func heartbeatKey() Key {
	k := ofRole("heartbeat", heartbeat, func(*Role) *heartbeatLimit { return new(heartbeatLimit) },
		"the controller's `--heartbeat-timeout`", "Between two heartbeats. `learned`: learned from the role's own gaps, whatever the controller says.")
	k.read = func(r *reader, t target, n *node) {
		if v, ok := heartbeat.read(r, n); ok {
			t.role.Limits.Heartbeat, t.role.Limits.Learned = v.given, v.learned
		}
	}
	k.write = func(t target) *node {
		return heartbeat.write(heartbeatLimit{given: t.role.Limits.Heartbeat, learned: t.role.Limits.Learned})
	}
	return k
}

const portPattern = `^[a-z][a-z0-9_]{0,30}$`

var portName = matching[string]("port name", "a name from ports", portPattern)
