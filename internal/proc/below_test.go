package proc

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// saver is a program that saves when it has the stop signal. Its name is in $N.
const saver = `trap "echo saved >>$D/$N; exit 0" TERM; echo $$ >$D/$N.pid; while :; do sleep 0.02; done`

// A wrapper that traps the stop signal waits for a program that has never had it. Who runs below it is sent the signal at
// half of the grace, once, unless the worker has reacted, and never where that is not wanted. Members of the kind: a
// wrapper, a wrapper in a wrapper, one whose program is known since it has spoken, one that starts several.
// shows: FAULT-C4
func TestWhoRunsBelowAWrapperThatTrapsTheSignal(t *testing.T) {
	t.Parallel()
	const wrapper = `trap 'echo noted >>$D/wrapper' TERM; `
	for name, c := range map[string]struct {
		script  string
		spec    StopSpec
		speaker string // that speaks for the worker, by its name
		up      []string
		saved   []string
		told    int // by the report of who was
	}{
		"its child":                {script: wrapper + `N=a sh -c "$SAVER"`, spec: StopSpec{Reach: IfIdle}, up: []string{"a"}, saved: []string{"a"}, told: 1},
		"all of its children":      {script: wrapper + `N=a sh -c "$SAVER" & N=b sh -c "$SAVER" & wait; wait`, spec: StopSpec{Reach: IfIdle}, up: []string{"a", "b"}, saved: []string{"a", "b"}, told: 2},
		"a wrapper in it":          {script: wrapper + `sh -c 'trap : TERM; N=a sh -c "$SAVER"; :'; :`, spec: StopSpec{Reach: IfIdle}, up: []string{"a"}, saved: []string{"a"}, told: 2},
		"who speaks for it":        {script: wrapper + `N=b sh -c "$SAVER" & sh -c 'trap : TERM; N=a sh -c "$SAVER"; exec sleep 300'; :`, spec: StopSpec{Reach: IfIdle}, speaker: "a", up: []string{"a", "b"}, saved: []string{"a"}, told: 1},
		"nobody, it speaks itself": {script: wrapper + `echo $$ >$D/main.pid; N=a sh -c "$SAVER"; :`, spec: StopSpec{Reach: IfIdle}, speaker: "main", up: []string{"main", "a"}},
		"nobody for good":          {script: wrapper + `N=a sh -c "$SAVER"`, spec: StopSpec{Reach: MainOnly}, up: []string{"a"}},
		"everybody at once":        {script: `trap : TERM; N=a sh -c "$SAVER"; N=b sh -c "$SAVER"`, spec: StopSpec{Reach: Everything, Grace: time.Hour}, up: []string{"a"}, saved: []string{"a"}, told: 0},
		"nobody, it is at work":    {script: `trap 'while [ $((i=i+1)) -lt 100000000 ]; do :; done' TERM; N=a sh -c "$SAVER" & while :; do wait; done`, spec: StopSpec{Reach: IfIdle}, up: []string{"a"}},
		"nobody, others say that it is at work": {script: wrapper + `N=a sh -c "$SAVER"`, up: []string{"a"},
			spec: StopSpec{Reach: IfIdle, AtWork: func(*Process) bool { return true }}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t, NoCgroups)
			p, d := startShell(t, k, 0, "export SAVER='"+saver+"'; "+c.script)
			for _, one := range c.up {
				id := pidsFrom(t, d, one+".pid")[0]
				if c.speaker == one {
					c.spec.Speaker = func(*Process) int { return id.PID }
				}
			}
			if c.spec.Grace == 0 {
				c.spec.Grace = 3 * time.Second
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if name == "everybody at once" { // its second program does not end by itself
				go func() {
					for !exists(filepath.Join(d, "b.pid")) || !exists(filepath.Join(d, "a")) {
						time.Sleep(10 * time.Millisecond)
					}
					cancel()
				}()
			}
			told := 0
			c.spec.Told = func(of *Process, h Holder) {
				told++
				if of != p || h.Why == "" {
					t.Errorf("told of %v below pid %d", h, of.PID())
				}
			}
			if r := k.Stop(ctx, []*Process{p}, c.spec); len(r.Left) > 0 {
				t.Errorf("report %+v", r)
			}
			for _, one := range []string{"a", "b"} {
				want := ""
				for _, saved := range c.saved {
					if saved == one {
						want = "saved\n"
					}
				}
				if got, _ := os.ReadFile(filepath.Join(d, one)); string(got) != want {
					t.Errorf("program %s says %q, want %q", one, got, want)
				}
			}
			if noted, _ := os.ReadFile(filepath.Join(d, "wrapper")); strings.Count(string(noted), "noted") > 1 {
				t.Errorf("the wrapper says %q, want that it had the signal once", noted)
			}
			if told != c.told {
				t.Errorf("%d were told of, want %d", told, c.told)
			}
		})
	}
}

// What a process begins once it has the signal is its answer to it, such as the copy that a wrapper makes of a checkpoint:
// it is not told to end in the middle of that, and what ran before is.
// shows: FAULT-C4
func TestWhatAWrapperBeginsAtTheSignalIsNotToldToEnd(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, NoCgroups)
	p, d := startShell(t, k, 0, `sleep 300 & trap 'sh -c "$COPY"; kill $!; exit 0' TERM; echo $! >$D/before; export COPY='
		trap "echo cut short >>$D/copy; exit 1" TERM; until [ -e $D/go ]; do sleep 0.02; done; echo done >>$D/copy'; wait`)
	before := pidsFrom(t, d, "before")[0]
	var told []Ident
	r := k.Stop(t.Context(), []*Process{p}, StopSpec{Reach: IfIdle, Grace: 4 * time.Second, Told: func(_ *Process, h Holder) {
		told = append(told, h.Ident)
		if err := os.WriteFile(filepath.Join(d, "go"), nil, 0o600); err != nil {
			t.Error(err)
		}
	}})
	if text, _ := os.ReadFile(filepath.Join(d, "copy")); string(text) != "done\n" || len(r.Left) > 0 {
		t.Errorf("the copy says %q, report %+v", text, r)
	}
	if len(told) != 1 || told[0] != before {
		t.Errorf("told are %v, want %v", told, before)
	}
}
