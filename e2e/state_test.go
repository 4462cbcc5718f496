package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// object is a JSON object.
type object map[string]any

// field returns a field as text, numbers without an exponent.
func (o object) field(name string) (string, bool) {
	v, ok := o[name]
	switch v := v.(type) {
	case nil:
		return "", ok
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	default:
		src, err := json.Marshal(v)
		return string(src), err == nil
	}
}

var wish = regexp.MustCompile(`^(\w+)(>=|=|~)(.*)$`)

// meets says which of the conditions does not hold.
func (o object) meets(conditions []string) error {
	for _, c := range conditions {
		m := wish.FindStringSubmatch(c)
		if m == nil {
			return fmt.Errorf("%q is no condition", c)
		}
		got, ok := o.field(m[1])
		switch m[2] {
		case "=":
			ok = ok && got == m[3]
		case "~":
			ok = ok && regexp.MustCompile(m[3]).MatchString(got)
		default:
			a, errA := strconv.ParseFloat(got, 64)
			b, errB := strconv.ParseFloat(m[3], 64)
			ok = ok && errA == nil && errB == nil && a >= b
		}
		if !ok {
			return fmt.Errorf("%s does not hold: %s is %q", c, m[1], got)
		}
	}
	return nil
}

// fetch reads a JSON object from the controller.
func (s *stage) fetch(path string) (object, error) {
	code, body, err := s.ask("GET", path, "")
	if err != nil {
		return nil, err
	}
	if code != 200 {
		return nil, fmt.Errorf("GET %s: %d: %s", path, code, body)
	}
	var o object
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	return o, d.Decode(&o)
}

func awaitRole(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	s := on(ts)
	eventually(ts, func() error {
		o, err := s.fetch("/api/v1/roles/" + args[0])
		if err == nil {
			err = o.meets(args[1:])
		}
		if err != nil {
			return fmt.Errorf("role %s: %w (%v)%s", args[0], err, o, s.said())
		}
		return nil
	})
}

// said is the log of every controller, to be shown with a failure.
func (s *stage) said() string {
	var b strings.Builder
	for name, r := range s.runs {
		fmt.Fprintf(&b, "\n%s said:\n%s", name, read(r.log))
	}
	return b.String()
}

func awaitWorker(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 3)
	s := on(ts)
	rank, err := strconv.Atoi(args[1])
	ts.Check(err)
	eventually(ts, func() error {
		o, err := s.fetch("/api/v1/roles/" + args[0])
		if err != nil {
			return err
		}
		workers, _ := o["workers"].([]any)
		if rank >= len(workers) {
			return fmt.Errorf("%s has no rank %d", args[0], rank)
		}
		if err := object(workers[rank].(map[string]any)).meets(args[2:]); err != nil {
			return fmt.Errorf("%s rank %d: %w (%v)%s", args[0], rank, err, o, s.said())
		}
		return nil
	})
}

func awaitJob(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1)
	s := on(ts)
	eventually(ts, func() error {
		o, err := s.fetch("/api/v1/job")
		if err == nil {
			err = o.meets(args)
		}
		if err != nil {
			return fmt.Errorf("job: %w%s", err, s.said())
		}
		return nil
	})
}

func awaitOne(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	s := on(ts)
	eventually(ts, func() error {
		all, err := s.fetch("/api/v1/incidents")
		if err != nil {
			return err
		}
		list, _ := all["incidents"].([]any) // newest first
		for _, one := range list {
			if o := object(one.(map[string]any)); o["role"] == args[0] {
				return o.meets(args[1:])
			}
		}
		return fmt.Errorf("%s has no incident: %v", args[0], list)
	})
}

func keep(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 3)
	eventually(ts, func() error {
		o, err := on(ts).fetch("/api/v1/roles/" + args[1])
		if err != nil {
			return err
		}
		if len(args) > 3 {
			rank, err := strconv.Atoi(args[3])
			ts.Check(err)
			workers, _ := o["workers"].([]any)
			if rank >= len(workers) {
				return fmt.Errorf("%s has no rank %d: %v", args[1], rank, o)
			}
			o = object(workers[rank].(map[string]any))
		}
		value, ok := o.field(args[2])
		if !ok || args[2] == "pid" && value == "0" {
			return fmt.Errorf("there is no %s: %v", args[2], o)
		}
		ts.Setenv(args[0], value)
		return nil
	})
}
