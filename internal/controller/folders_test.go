package controller

import (
	"strings"
	"testing"
)

// shows: FAULT-K2
func TestTheStateHomeIsAnAbsolutePathOrTheFlagIsNamed(t *testing.T) {
	for _, c := range []struct{ home, state, want, wrong string }{
		{home: "/h", want: "/h/.local/state/vigil"},
		{home: "/", want: "/.local/state/vigil"},
		{home: "/h", state: "/s", want: "/s/vigil"},
		{home: "h", state: "/s", want: "/s/vigil"},
		{home: "", wrong: "neither XDG_STATE_HOME nor HOME is set: give --state-dir"},
		{home: "h", wrong: `HOME is "h", which is no absolute path: set it, or give --state-dir`},
		{home: "/h", state: "./s", wrong: `XDG_STATE_HOME is "./s", which is no absolute path: set it, or give --state-dir`},
	} {
		t.Setenv("HOME", c.home)
		t.Setenv("XDG_STATE_HOME", c.state)
		got, err := StateHome()
		if got != c.want || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("HOME=%q XDG_STATE_HOME=%q: %q, %v", c.home, c.state, got, err)
		}
	}
}
