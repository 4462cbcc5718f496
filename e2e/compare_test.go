package e2e

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func equal(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || (args[0] == args[1]) == neg {
		ts.Fatalf("%q", args)
	}
}

func more(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	a, errA := strconv.ParseInt(args[0], 10, 64)
	b, errB := strconv.ParseInt(args[1], 10, 64)
	ts.Check(errors.Join(errA, errB))
	if a <= b {
		ts.Fatalf("%d is not more than %d", a, b)
	}
}

func untilFile(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	pattern := regexp.MustCompile("(?m)" + args[1])
	eventually(ts, func() error {
		src, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && !pattern.Match(src) {
			err = fmt.Errorf("%s does not have %q: %s", args[0], args[1], src)
		}
		return err
	})
}

func quiet(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 1)
	eventually(ts, func() error {
		info, err := os.Stat(ts.MkAbs(args[0]))
		ts.Check(err)
		if age := time.Since(info.ModTime()); age < time.Second {
			return fmt.Errorf("%s was written to %s ago", args[0], age)
		}
		return nil
	})
}
