package job

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"vigil/internal/role"
)

// RoleRule says what is done about the failures of a role that it fits. A condition that is not given
// fits every failure.
type RoleRule struct {
	Causes  []role.Cause // one of these; empty: any
	Exits   []int        // the process ended with one of these codes; empty: any end, or none
	Signals []string     // the process was killed by one of these, without SIG; empty: any end, or none
	Message string       // RE2, found in what the failure says; empty: anything
	Action  role.Action  // in_place, global, stop or ignore
}

// String says the rule's conditions: "cause exited or stuck, exit_code 3".
func (r *RoleRule) String() string {
	var all []string
	add := func(key string, values []string) {
		if len(values) > 0 {
			all = append(all, key+" "+alternation(values))
		}
	}
	add("cause", texts(r.Causes))
	codes := make([]string, len(r.Exits))
	for i, c := range r.Exits {
		codes[i] = strconv.Itoa(c)
	}
	add("exit_code", codes)
	add("signal", r.Signals)
	if r.Message != "" {
		all = append(all, fmt.Sprintf("message %q", r.Message))
	}
	if len(all) == 0 {
		return "any failure"
	}
	return strings.Join(all, ", ")
}

func texts[T ~string](words []T) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = string(w)
	}
	return out
}

// any reports whether the rule fits every failure.
func (r *RoleRule) any() bool {
	return len(r.Causes) == 0 && len(r.Exits) == 0 && len(r.Signals) == 0 && r.Message == ""
}

// ignorable are the causes of failures that leave the worker alive, so that it can be left alone.
var ignorable = []role.Cause{role.Reported, role.Silent, role.Stuck, role.NoStart, role.NotReady}

// rules finds rules that contradict themselves, that nothing reaches, and that leave a role for dead.
func (r *Role) rules(key string, wrong tell) {
	for i := range r.Restart.Rules {
		rule, at := &r.Restart.Rules[i], fmt.Sprintf("%s[%d]", key, i)
		if rule.Action == "" {
			continue // told already
		}
		if len(rule.Exits) > 0 && len(rule.Signals) > 0 {
			wrong(at, "no process ends both with an exit code and by a signal", "make two rules of it")
		}
		if rule.any() && i < len(r.Restart.Rules)-1 {
			wrong(at, "it fits every failure, so the rules below it are never reached", "say a cause, exit_code, signal or message, or put it last")
		}
		if rule.Action != role.Ignore {
			continue
		}
		want := "want " + alternation(texts(ignorable))
		if len(rule.Causes) == 0 {
			wrong(at, "ignore needs a cause: a worker that has ended would not be begun again", "say cause: one or more of "+conjunction(texts(ignorable)))
		}
		for k, c := range rule.Causes {
			if !slices.Contains(ignorable, c) {
				wrong(fmt.Sprintf("%s.cause[%d]", at, k), fmt.Sprintf("%q cannot be ignored: nothing would begin the worker again", c), want)
			}
		}
	}
}

// ruleCauses are the causes that a rule can name. What an operator asks for is done in any case.
var ruleCauses = slices.DeleteFunc(role.Causes(), func(c role.Cause) bool { return c == role.Operator })

// ruleKeys are the keys of one rule.
func ruleKeys() []Key {
	return []Key{
		leaf("cause", oneOrMore(oneOf(ruleCauses...)), func(t target) *[]role.Cause { return &t.rule.Causes }, "any", "The failure's cause, one or a list."),
		leaf("exit_code", oneOrMore(whole[int](0, 255)), func(t target) *[]int { return &t.rule.Exits }, "any", "The code that the process ended with, one or a list."),
		leaf("signal", oneOrMore(signal), func(t target) *[]string { return &t.rule.Signals }, "any", "The signal that killed the process, with or without `SIG`, one or a list."),
		leaf("message", anyExpression, func(t target) *string { return &t.rule.Message }, "any",
			"A regular expression ([RE2](https://github.com/google/re2/wiki/Syntax)) that is found anywhere in the failure's detail, or in a line of the end of the worker's standard error."),
		required(leaf("action", oneOf(role.InPlace, role.Global, role.Stop, role.Ignore), func(t target) *role.Action { return &t.rule.Action }, "",
			"What is done: `in_place`, whatever has been spent; `global`, while the global budget lasts; `stop`, with exit 1; `ignore`: nothing, the worker goes on and is watched as before (for `reported`, `silent`, `stuck`, `no_start`, `not_ready`).")),
	}
}

// rulesKey describes the list of rules.
func rulesKey() Key {
	keys := ruleKeys()
	k := Key{Name: "rules", Type: "list of mappings", Default: "`[]`", Keys: keys,
		Meaning: "What is done about certain failures, instead of what the other keys say. The first rule that fits settles it; all conditions of a rule must hold."}
	k.schema = fragment{"type": "array", "items": object(keys)}
	k.read = func(r *reader, t target, n *node) {
		if n.form != formList {
			r.wrong(n, n.say(), "want a list of rules, such as [{exit_code: 3, action: stop}]")
			return
		}
		for i, item := range n.items {
			var one RoleRule
			before := len(r.problems)
			r.item(i, item, func() { r.mapping(item, keys, target{job: t.job, role: t.role, rule: &one}) })
			if len(r.problems) > before {
				one = RoleRule{} // without an action: one mistake, one problem
			}
			t.role.Restart.Rules = append(t.role.Restart.Rules, one)
		}
	}
	k.write = func(t target) *node {
		if len(t.role.Restart.Rules) == 0 {
			return nil
		}
		n := &node{form: formList}
		for i := range t.role.Restart.Rules {
			n.items = append(n.items, writeKeys(keys, target{job: t.job, role: t.role, rule: &t.role.Restart.Rules[i]}))
		}
		return n
	}
	return k
}

// budgetKeys are the keys of restart that let restarts be forgotten.
func budgetKeys() []Key {
	return []Key{
		rulesKey(),
		ofRole("window", duration(0), func(r *Role) *time.Duration { return &r.Restart.Window }, "`0`: the life of the job",
			"Only restarts of the role within so long count for `escalate_at`. Of the lead role, the same holds for the job's global restarts and `--max-global-restart`."),
		ofRole("forgive_after", duration(0), func(r *Role) *time.Duration { return &r.Restart.ForgiveAfter }, "`0`: never",
			"After so much time in which the role ran and gained steps that it had not had before, one restart in place is given back; of the lead role, a global one where there is none in place. It is reckoned when something fails; nothing is saved up."),
	}
}

// oneOrMore is one value of a kind, or a list of them that is not empty.
func oneOrMore[T any](of kind[T]) kind[[]T] {
	all := list(of, 1)
	read := func(r *reader, n *node) ([]T, bool) {
		if n.form == formList {
			return all.read(r, n)
		}
		v, ok := of.read(r, n)
		return []T{v}, ok
	}
	schema := fragment{"anyOf": []any{of.schema, all.schema}}
	return kind[[]T]{of.name + "; or a list of these", schema, read, all.write}
}

// anyExpression is a regular expression.
var anyExpression = kind[string]{
	name: "RE2", schema: fragment{"type": "string", "minLength": 1}, write: line.write,
	read: func(r *reader, n *node) (string, bool) {
		text, ok := line.read(r, n)
		if !ok {
			return "", false
		}
		_, err := regexp.Compile(text)
		if bad := new(syntax.Error); errors.As(err, &bad) {
			r.wrong(n, fmt.Sprintf("not a regular expression: %s: %q", bad.Code, shorten(bad.Expr)), "want RE2, such as 'CUDA error: .*ECC'")
		}
		return text, true // given, even if bad: one mistake, one problem
	},
}
