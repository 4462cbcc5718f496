package warm

import (
	"slices"
	"strings"
	"testing"
)

func TestACommandIsReadAsPythonReadsIt(t *testing.T) {
	for _, c := range []struct{ command, kind, target, flags, args string }{
		{"python3 train.py", "script", "train.py", "", ""},
		{"/usr/bin/python3.11 -u train.py -u --x=1", "script", "train.py", "-u", "-u --x=1"},
		{"python -uBX dev -W ignore -Wonce -m pkg.mod a", "module", "pkg.mod", "-u -B -X dev -W ignore -W once", "a"},
		{"python -umpkg -m", "module", "pkg", "-u", "-m"},
		{"python -cpass -c", "command", "pass", "", "-c"},
		{"python --check-hash-based-pycs always x", "script", "x", "--check-hash-based-pycs always", ""},
	} {
		got, err := read(strings.Fields(c.command))
		if err != nil || got.kind != c.kind || got.target != c.target || strings.Join(got.flags, " ") != c.flags ||
			!slices.Equal(got.words[got.args:], strings.Fields(c.args)) {
			t.Errorf("%s is read as %+v, %v", c.command, got, err)
		}
	}
}

func TestACommandThatNoForkServerCanStandForIsRefusedWithTheReason(t *testing.T) {
	for command, why := range map[string]string{
		"":                    "Python interpreter",
		"torchrun train.py":   `begin with a Python interpreter, but with "torchrun"`,
		"env python train.py": `"env"`,
		"python-config x":     `"python-config"`,
		"python":              "names no program",
		"python -u":           "names no program",
		"python -":            "what - asks",
		"python -i train.py":  "what -i asks",
		"python -uV":          "what -V asks",
		"python --help":       "what --help asks",
		"python -m":           "nothing after -m",
		"python -W":           "nothing after -W",
	} {
		if c, err := read(strings.Fields(command)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: got %+v, %v; wanted an error with %q", command, c, err, why)
		}
	}
}
