package role_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"vigil/internal/role"
)

func TestANameIsALowerCaseLetterAndUpToThirtyMoreAndNoPathOfOurs(t *testing.T) {
	for _, good := range []string{"a", "actor_fwd", "r2", strings.Repeat("x", 31)} {
		if n, err := role.ParseName(good); err != nil || string(n) != good {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range append([]string{"", "Actor", "2x", "_x", "a-b", "a/b", "a\n", "ä", strings.Repeat("x", 32)}, role.Taken()...) {
		if _, err := role.ParseName(bad); err == nil {
			t.Errorf("%q can name a role", bad)
		} else if !strings.Contains(err.Error(), "role name") {
			t.Errorf("%q: the error says %v", bad, err)
		}
	}
	role.Taken()[0] = "changed"
	if _, err := role.ParseName("api"); err == nil {
		t.Error("a reader has changed the names that are taken")
	}
}

func TestALifeReadsBackWhatItWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := role.Life{
			Job:         rapid.StringMatching(`[a-z][a-z0-9-]{0,20}-[0-9a-f]{8}`).Draw(t, "job"),
			Role:        role.Name(rapid.StringMatching(`[a-z][a-z0-9_]{0,30}`).Filter(func(s string) bool { _, err := role.ParseName(s); return err == nil }).Draw(t, "role")),
			Incarnation: rapid.IntRange(0, 1000).Draw(t, "incarnation"),
			Rank:        rapid.IntRange(role.NoRank, 10_000).Draw(t, "rank"),
			Attempt:     rapid.IntRange(0, 10).Draw(t, "attempt"),
		}
		back, err := role.ParseLife(l.String())
		if err != nil || back != l {
			t.Fatalf("%s is read as %+v, %v", l, back, err)
		}
	})
}

func TestWhatIsNoLifeIsRefused(t *testing.T) {
	for _, bad := range []string{"", "a/b/1/0", "a/b/1/0/1/x", "a/B/1/0/1", "a/b/x/0/1", "a/b/1/0/y", "a/b/-1/0/1", "a/b/1/-2/1", "a/b/1/0/-1", "a/api/1/0/1"} {
		if l, err := role.ParseLife(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, l)
		}
	}
}

func TestAnEndIsSaidAsAPersonWould(t *testing.T) {
	for want, e := range map[string]role.Exit{
		"exit code 3":                            {Code: 3},
		"exit code 3 (pid 4711)":                 {Code: 3, PID: 4711},
		"SIGKILL (pid 4711)":                     {Signal: "SIGKILL", PID: 4711},
		"SIGKILL (pid 4711, sent by oom-killer)": {Signal: "SIGKILL", PID: 4711, Sender: "oom-killer"},
		"SIGSEGV (sent by vigil)":                {Signal: "SIGSEGV", Sender: "vigil"},
	} {
		if got := e.String(); got != want {
			t.Errorf("%+v reads %q, want %q", e, got, want)
		}
	}
}

func TestAFailureNamesTheRankOrTheWholeRole(t *testing.T) {
	f := role.Failure{Life: role.Life{Role: "critic", Rank: 2}}
	if f.Subject() != "critic rank 2" {
		t.Errorf("subject %q", f.Subject())
	}
	f.Life.Rank = role.NoRank
	if f.Subject() != "critic" {
		t.Errorf("subject %q", f.Subject())
	}
}

func TestAFailureCannotSteerTheTerminal(t *testing.T) {
	f := role.Failure{Detail: "\x1b[2Jbad \x07batch\tat step 3\r\nTraceback"}
	if got, want := f.Line(), `\x1b[2Jbad \x07batch	at step 3`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
