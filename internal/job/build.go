package job

import (
	"time"

	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"vigil/internal/role"
)

func required(k Key) Key {
	k.Required = true
	return k
}

// ofJob describes a key whose value belongs to the job.
func ofJob[T any](name string, of kind[T], at func(*Job) *T, byDefault, meaning string) Key {
	return leaf(name, of, func(t target) *T { return at(t.job) }, byDefault, meaning)
}

// ofRole describes a key whose value belongs to a role.
func ofRole[T any](name string, of kind[T], at func(*Role) *T, byDefault, meaning string) Key {
	return leaf(name, of, func(t target) *T { return at(t.role) }, byDefault, meaning)
}

func leaf[T any](name string, of kind[T], at func(target) *T, byDefault, meaning string) Key {
	return Key{
		Name: name, Type: of.name, Default: byDefault, Meaning: meaning, schema: of.schema,
		read: func(r *reader, t target, n *node) {
			if v, ok := of.read(r, n); ok {
				*at(t) = v
			}
		},
		write: func(t target) *node { return of.write(*at(t)) },
	}
}

// group describes a mapping with keys of its own.
func group(name, meaning string, keys ...Key) Key {
	k := Key{Name: name, Type: "mapping", Default: "`{}`", Meaning: meaning, Keys: keys}
	k.read = func(r *reader, t target, n *node) { r.mapping(n, k.Keys, t) }
	k.write = func(t target) *node { return writeKeys(k.Keys, t) }
	return k
}

// begun describes a group that does not exist until the file has it.
func begun(k Key, begin func(*Role), exists func(*Role) bool) Key {
	k.Default = "none"
	read, write := k.read, k.write
	k.read = func(r *reader, t target, n *node) {
		begin(t.role)
		read(r, t, n)
	}
	k.write = func(t target) *node {
		if !exists(t.role) {
			return nil
		}
		return write(t)
	}
	return k
}

// nameRule says which names a user may choose in a mapping: it returns the name to keep, or what
// would be right.
type nameRule struct {
	pattern string // of the JSON schema
	check   func(name string) (keep, fix string)
}

// named describes a mapping of names that the user chooses.
func named(name, label string, of kind[string], at func(target) *map[string]string, rule nameRule, meaning string) Key {
	k := Key{Name: name, Type: "mapping", Default: "`{}`", Meaning: meaning}
	k.Keys = []Key{{Name: label, Type: of.name, schema: of.schema}}
	k.schema = anyNamed(rule.pattern, of.schema)
	k.read = func(r *reader, t target, n *node) {
		all := map[string]string{}
		r.names(n, rule, func(name string, value *node) {
			if v, ok := of.read(r, value); ok {
				all[name] = v
			}
		})
		if len(all) > 0 {
			*at(t) = all
		}
	}
	k.write = func(t target) *node {
		n := &node{form: formMapping}
		for _, name := range slices.Sorted(maps.Keys(*at(t))) {
			n.entries = append(n.entries, entry{key: name, value: of.write((*at(t))[name])})
		}
		return n
	}
	return k
}

// anyNamed is the schema of a mapping whose names match a pattern.
func anyNamed(pattern string, values fragment) fragment {
	return fragment{"type": "object", "propertyNames": fragment{"pattern": pattern}, "additionalProperties": values}
}

var envPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// ours are variables that vigil sets in every worker; a value from the job file would be lost.
var ours = []string{"VIGIL_JOB", "VIGIL_ROLE", "VIGIL_RANK", "VIGIL_INCARNATION", "VIGIL_LIFE", "VIGIL_RESUME_STEP", "VIGIL_SERVICE_URL", "VIGIL_CONTROLLER_URL", "VIGIL_INBOX", "VIGIL_PEERS_FILE", "NOTIFY_SOCKET"}

var (
	envKey = nameRule{envPattern.String(), func(name string) (string, string) {
		switch {
		case !envPattern.MatchString(name):
			return "", "want the name of an environment variable: letters, digits and _, no digit first"
		case slices.Contains(ours, name):
			return "", "vigil sets this variable itself in every worker"
		}
		return name, ""
	}}
	flagPattern = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
	flagKey     = nameRule{flagPattern.String(), func(name string) (string, string) {
		if !flagPattern.MatchString(name) {
			return "", "want the long name of a flag without leading dashes, such as max_global_restart"
		}
		return strings.ReplaceAll(name, "_", "-"), ""
	}}
	portRule = nameRule{portPattern, func(name string) (string, string) {
		if !regexp.MustCompile(portPattern).MatchString(name) {
			return "", "want a lower-case letter, then up to 30 of a-z, 0-9 and _"
		}
		return name, ""
	}}
	roleRule = nameRule{rolePattern, func(name string) (string, string) {
		if _, err := role.ParseName(name); err != nil {
			_, why, _ := strings.Cut(err.Error(), fmt.Sprintf("%q", name))
			if strings.HasPrefix(why, ":") {
				return "", strings.TrimLeft(why, ": ")
			}
			return "", "it" + why
		}
		return name, ""
	}}
)

func portsKey() Key {
	k := Key{Name: "ports", Type: "mapping", Default: "`{}`",
		Meaning: "TCP ports that are leased for each worker life. `auto` is any free one. `${port.NAME}` stands for the number in `command`, `env`, `ready.exec`, `alive.exec` and `hooks`."}
	k.Keys = []Key{{Name: "NAME", Type: portNumber.name, schema: portNumber.schema}}
	k.schema = anyNamed(portPattern, portNumber.schema)
	k.read = func(r *reader, t target, n *node) {
		r.names(n, portRule, func(name string, value *node) {
			v, _ := portNumber.read(r, value) // declared even with a bad number: one mistake, one problem
			t.role.Ports = append(t.role.Ports, Port{name, v})
		})
		slices.SortFunc(t.role.Ports, func(a, b Port) int { return strings.Compare(a.Name, b.Name) })
	}
	k.write = func(t target) *node {
		n := &node{form: formMapping}
		for _, p := range t.role.Ports {
			n.entries = append(n.entries, entry{key: p.Name, value: portNumber.write(p.Number)})
		}
		return n
	}
	return k
}

func rolesKey(keys []Key) Key {
	k := Key{Name: "roles", Type: "mapping", Required: true,
		Meaning: "The parts of the job, by name: a lower-case letter, then up to 30 of a-z, 0-9 and _. `api`, `life`, `metrics`, `healthz` and `readyz` are taken."}
	k.Keys = []Key{{Name: "NAME", Type: "mapping", Meaning: "One role.", Keys: keys}}
	k.read = func(r *reader, t target, n *node) {
		r.names(n, roleRule, func(name string, value *node) {
			one := newRole(role.Name(name))
			r.mapping(value, keys, target{job: t.job, role: &one})
			t.job.Roles = append(t.job.Roles, one)
		})
		if n.form == formMapping && len(n.entries) == 0 {
			r.wrong(n, "no role", "want at least one")
		}
	}
	k.write = func(t target) *node {
		n := &node{form: formMapping}
		for i := range t.job.Roles {
			one := &t.job.Roles[i]
			n.entries = append(n.entries, entry{key: string(one.Name), value: writeKeys(keys, target{job: t.job, role: one})})
		}
		return n
	}
	return k
}

// writeKeys writes those keys that have something to say, nil when none has.
func writeKeys(keys []Key, t target) *node {
	n := &node{form: formMapping}
	for _, k := range keys {
		if v := k.write(t); v != nil && (v.form != formMapping || len(v.entries) > 0) {
			n.entries = append(n.entries, entry{key: k.Name, value: v})
		}
	}
	if len(n.entries) == 0 {
		return nil
	}
	return n
}

// graceOnFailureKey notes that the user wrote the value: it is not made shorter then.
func graceOnFailureKey() Key {
	k := ofRole("grace_on_failure", duration(0), func(r *Role) *time.Duration { return &r.Stop.GraceOnFailure }, "`3s`",
		"The same where a rank of the role has failed. Unless it is given here, a worker that does not react to the signal is killed after one second: its main thread is blocked and none of its threads uses the CPU.")
	read, write := k.read, k.write
	k.read = func(r *reader, t target, n *node) {
		read(r, t, n)
		t.role.Stop.GraceWritten = true
	}
	k.write = func(t target) *node {
		if !t.role.Stop.GraceWritten {
			return nil
		}
		return write(t)
	}
	return k
}
