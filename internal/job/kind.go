package job

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/nearest"
	"vigil/internal/role"
)

// fragment is a piece of a JSON schema.
type fragment map[string]any

// kind is a kind of value: how it is named, read and written. Read returns false after it has told
// a problem. Write returns nil where the key is left out.
type kind[T any] struct {
	name   string
	schema fragment
	read   func(*reader, *node) (T, bool)
	write  func(T) *node
}

func text(s string) *node   { return &node{form: formText, text: s} }
func number(s string) *node { return &node{form: formNumber, text: s} }

// scalar makes a kind that is written as one word: parse returns false for text that it cannot take,
// and want completes "want ...".
func scalar[T any](name, want string, schema fragment, forms []form, parse func(string) (T, bool), write func(T) *node) kind[T] {
	read := func(r *reader, n *node) (T, bool) {
		v, ok := parse(n.text)
		right := slices.Contains(forms, n.form)
		fix := "want " + want
		switch {
		case ok && right:
			return v, true
		case ok && (n.form == formNumber || n.form == formTruth) && slices.Contains(forms, formText):
			fix = fmt.Sprintf("want text: write it in quotes, %q", n.text)
		case ok && n.form == formText && n.text != "":
			fix = "write it without quotes"
		}
		var none T
		r.wrong(n, n.say(), fix)
		return none, false
	}
	return kind[T]{name, schema, read, write}
}

// matching is text of a pattern.
func matching[T ~string](name, want, pattern string) kind[T] {
	re := regexp.MustCompile(pattern)
	return scalar(name, want, fragment{"type": "string", "pattern": pattern}, []form{formText},
		func(s string) (T, bool) { return T(s), re.MatchString(s) },
		func(v T) *node {
			if v == "" {
				return nil
			}
			return text(string(v))
		})
}

// oneOf is one of a few words. A near miss is answered with the word that was meant.
func oneOf[T ~string](words ...T) kind[T] {
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	read := func(r *reader, n *node) (T, bool) {
		if n.form == formText && slices.Contains(names, n.text) {
			return T(n.text), true
		}
		fix := "want " + alternation(names)
		if meant := nearest.Word(n.text, names); meant != "" && n.form == formText {
			fix = fmt.Sprintf("did you mean %s? It is one of %s", meant, strings.Join(names, ", "))
		}
		r.wrong(n, n.say(), fix)
		return "", false
	}
	return kind[T]{strings.Join(names, ", "), fragment{"enum": names}, read, func(v T) *node { return text(string(v)) }}
}

// alternation says "a, b or c".
func alternation(names []string) string { return enumerate(names, "or") }

// conjunction says "a, b and c".
func conjunction(names []string) string { return enumerate(names, "and") }

func enumerate(names []string, last string) string {
	if len(names) == 1 {
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " " + last + " " + names[len(names)-1]
}

// whole is a whole number from low to high.
func whole[T ~int | ~int64](low, high int64) kind[T] {
	want := fmt.Sprintf("a whole number from %d to %d", low, high)
	schema := fragment{"type": "integer", "minimum": low, "maximum": high}
	if high == math.MaxInt64 {
		want = fmt.Sprintf("a whole number, %d or more", low)
		schema = fragment{"type": "integer", "minimum": low}
	}
	return scalar("whole number", want, schema, []form{formNumber},
		func(s string) (T, bool) {
			v, err := strconv.ParseInt(s, 10, 64)
			return T(v), err == nil && v >= low && v <= high
		},
		func(v T) *node {
			if int64(v) < low {
				return nil
			}
			return number(strconv.FormatInt(int64(v), 10))
		})
}

// share is a number of CPUs, which may be a part of one.
var share = scalar("number", "a number, 0 or more, such as 2 or 0.5",
	fragment{"type": "number", "minimum": 0}, []form{formNumber},
	func(s string) (float64, bool) {
		v, err := strconv.ParseFloat(s, 64)
		return v, err == nil && v >= 0 && !math.IsInf(v, 0) && decimal.MatchString(s)
	},
	func(v float64) *node { return number(strconv.FormatFloat(v, 'f', -1, 64)) })

var decimal = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// truth is true or false.
var truth = scalar("true, false", "true or false", fragment{"type": "boolean"}, []form{formTruth},
	func(s string) (bool, bool) { v, err := strconv.ParseBool(s); return v, err == nil },
	func(v bool) *node {
		if !v {
			return nil
		}
		return &node{form: formTruth, text: "true"}
	})

const durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`

var durationShape = regexp.MustCompile(durationPattern)

// duration is a time of at least low, in Go's notation. A plain 0 needs no unit.
func duration(low time.Duration) kind[time.Duration] {
	want := fmt.Sprintf("a time of %v or more with its unit, such as 90s or 1h30m", low)
	var shape any = fragment{"type": "string", "pattern": durationPattern}
	switch low {
	case 0:
		want = "a time with its unit, 0 or more, such as 90s or 1h30m"
		shape = []any{shape, fragment{"const": 0}}
	case 1:
		want = "a time of more than 0 with its unit, such as 90s or 1h30m"
	}
	schema, ok := shape.(fragment)
	if !ok {
		schema = fragment{"anyOf": shape}
	}
	return scalar("duration", want, schema, []form{formText, formNumber},
		func(s string) (time.Duration, bool) {
			v, err := time.ParseDuration(s)
			return v, err == nil && v >= low && durationShape.MatchString(s)
		},
		func(v time.Duration) *node {
			if v < low {
				return nil
			}
			return text(shortDuration(v))
		})
}

// shortDuration writes 30s, 1h30m and 0s, where time.Duration writes 1h30m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// heartbeatLimit is the limit between two words, learned or given.
type heartbeatLimit struct {
	given   time.Duration
	learned bool
}

const minHeartbeat = 5 * time.Second

var heartbeat = scalar("`learned`, or duration of 5s or more", "learned, or a time of 5s or more with its unit, such as 2m",
	fragment{"anyOf": []any{fragment{"const": "learned"}, fragment{"type": "string", "pattern": durationPattern}}}, []form{formText},
	func(s string) (heartbeatLimit, bool) {
		if s == "learned" {
			return heartbeatLimit{learned: true}, true
		}
		v, err := time.ParseDuration(s)
		return heartbeatLimit{given: v}, err == nil && v >= minHeartbeat && durationShape.MatchString(s)
	},
	func(v heartbeatLimit) *node {
		switch {
		case v.learned:
			return text("learned")
		case v.given > 0:
			return text(shortDuration(v.given))
		}
		return nil
	})

var (
	memoryShape = regexp.MustCompile(memoryPattern)
	memoryUnits = map[string]int64{"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
)

const memoryPattern = `^([0-9]+)(Ki|Mi|Gi|Ti)?$`

// ParseSize reads a number of bytes as sizes in a job file are written: plain, or with Ki, Mi, Gi or Ti.
func ParseSize(s string) (int64, error) {
	m := memoryShape.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q: want bytes, or a whole number with Ki, Mi, Gi or Ti, such as 8Gi", s)
	}
	v, err := strconv.ParseInt(m[1], 10, 64)
	unit := memoryUnits[m[2]]
	if err != nil || v > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q: it is too large", s)
	}
	return v * unit, nil
}

// memory is a number of bytes, plain or with a binary unit.
var memory = scalar("size", "bytes, or a whole number with Ki, Mi, Gi or Ti, such as 8Gi",
	fragment{"anyOf": []any{fragment{"type": "integer", "minimum": 0}, fragment{"type": "string", "pattern": memoryPattern}}},
	[]form{formText, formNumber},
	func(s string) (int64, bool) {
		v, err := ParseSize(s)
		return v, err == nil
	},
	func(v int64) *node {
		for _, unit := range []string{"Ti", "Gi", "Mi", "Ki"} {
			if size := memoryUnits[unit]; v > 0 && v%size == 0 {
				return text(strconv.FormatInt(v/size, 10) + unit)
			}
		}
		return number(strconv.FormatInt(v, 10))
	})

// portNumber is a TCP port, or auto for any free one, which is 0.
var portNumber = scalar("`auto`, or whole number from 1 to 65535", "auto, or a port from 1 to 65535",
	fragment{"anyOf": []any{fragment{"const": "auto"}, fragment{"type": "integer", "minimum": 1, "maximum": 65535}}},
	[]form{formText, formNumber},
	func(s string) (int, bool) {
		if s == "auto" {
			return 0, true
		}
		v, err := strconv.ParseUint(s, 10, 16)
		return int(v), err == nil && v > 0
	},
	func(v int) *node {
		if v == 0 {
			return text("auto")
		}
		return number(strconv.Itoa(v))
	})

// signal is the name of a signal that can end a process, kept without SIG.
var signal = scalar("signal name", "the name of a signal that ends a process, such as TERM or INT",
	fragment{"type": "string", "pattern": "^(SIG)?[A-Z0-9]+$"}, []form{formText},
	func(s string) (string, bool) {
		s = strings.TrimPrefix(s, "SIG")
		return s, unix.SignalNum("SIG"+s) != 0 && !slices.Contains([]string{"STOP", "TSTP", "TTIN", "TTOU", "CONT", "CHLD", "CLD", "URG", "WINCH"}, s)
	},
	text)

// word is any scalar, taken as it is written: 0x10 stays 0x10, true stays true.
var word = scalar("text", "text", fragment{"type": []string{"string", "number", "boolean"}}, []form{formText, formNumber, formTruth},
	func(s string) (string, bool) { return s, !strings.Contains(s, "\x00") }, text)

// line is text that is not empty.
var line = scalar("text", "text that is not empty", fragment{"type": "string", "minLength": 1}, []form{formText},
	func(s string) (string, bool) { return s, s != "" && !strings.Contains(s, "\x00") },
	func(s string) *node {
		if s == "" {
			return nil
		}
		return text(s)
	})

// expression is a regular expression with a group.
var expression = kind[string]{
	name: "RE2", schema: fragment{"type": "string", "minLength": 1}, write: line.write,
	read: func(r *reader, n *node) (string, bool) {
		text, ok := line.read(r, n)
		if !ok {
			return "", false
		}
		re, err := regexp.Compile(text)
		var bad *syntax.Error
		switch {
		case errors.As(err, &bad):
			r.wrong(n, fmt.Sprintf("not a regular expression: %s: %q", bad.Code, shorten(bad.Expr)), "want RE2 with a group for the step, such as 'iteration\\s+(\\d+)'")
		case re.NumSubexp() == 0:
			r.wrong(n, "the expression has no group", "put the step in parentheses, such as 'iteration\\s+(\\d+)'")
		}
		return text, true // given, even if bad: one mistake, one problem
	},
}

const rolePattern = `^[a-z][a-z0-9_]{0,30}$`

// roleName is the name of a role; that the role exists is checked when all are known.
var roleName = matching[role.Name]("role name", "the name of a role: a lower-case letter, then up to 30 of a-z, 0-9 and _", rolePattern)

// list is a list of a kind with at least low values.
func list[T any](of kind[T], low int) kind[[]T] {
	schema, want := fragment{"type": "array", "items": of.schema}, "want a list, such as [a, b]"
	if low > 0 {
		schema["minItems"], want = low, "want a list that is not empty, such as [a, b]"
	}
	read := func(r *reader, n *node) ([]T, bool) {
		if n.form != formList || len(n.items) < low {
			r.wrong(n, n.say(), want)
			return nil, false
		}
		var all []T
		good := true
		for i, item := range n.items {
			r.item(i, item, func() {
				v, ok := of.read(r, item)
				all, good = append(all, v), good && ok
			})
		}
		return all, good
	}
	write := func(all []T) *node {
		if len(all) == 0 {
			return nil
		}
		n := &node{form: formList}
		for _, v := range all {
			n.items = append(n.items, of.write(v))
		}
		return n
	}
	return kind[[]T]{"list of " + of.name, schema, read, write}
}
