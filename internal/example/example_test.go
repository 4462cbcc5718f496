package example

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// listener is a notify socket that a test reads word by word.
// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 3 * time.Minute

type listener struct {
	t     *testing.T
	c     *net.UnixConn
	w     Worker
	words chan string // closed when nobody listens any more
}

// worker returns a worker of the role that speaks to the listener and steps every two milliseconds.
func worker(t *testing.T, role string) *listener {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "n")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	l := &listener{t: t, c: c, words: make(chan string, 100_000), w: Worker{Role: role, Notify: path, Inbox: filepath.Join(dir, "i"),
		Dir: filepath.Join(dir, "ckpt"), Period: 2 * time.Millisecond, Out: new(bytes.Buffer)}}
	go func() {
		defer close(l.words)
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			l.words <- string(buf[:n])
		}
	}()
	return l
}

// hear reads datagrams until one begins with the prefix, and returns what follows it.
func (l *listener) hear(prefix string) string {
	l.t.Helper()
	over := time.After(patience)
	for {
		select {
		case word := <-l.words:
			if rest, ok := strings.CutPrefix(word, prefix); ok {
				return rest
			}
		case <-over:
			l.t.Fatalf("waited for %s", prefix)
		}
	}
}

// tell sends an order to the inbox.
func (l *listener) tell(text string) {
	l.t.Helper()
	c, err := net.Dial("unixgram", l.w.Inbox)
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(text)); err != nil {
		l.t.Fatal(err)
	}
}

// start runs the worker and returns its end and a way to interrupt it.
func (l *listener) start() (ended <-chan error, interrupt func()) {
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- l.w.Run(ctx) }()
	return done, cancel
}

func (l *listener) end(ended <-chan error) error {
	l.t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		l.t.Fatal("it does not end")
		return nil
	}
}

var roles = []string{"actor", "rollout", "critic", "actor_fwd", "advantages"}

func TestEveryRoleSpeaksStepsAndEndsWellWhenItIsTold(t *testing.T) {
	for _, name := range roles {
		t.Run(name, func(t *testing.T) {
			l := worker(t, name)
			l.w.Resume = 40
			ended, _ := l.start()
			l.hear("READY=1")
			if got := l.hear("X_VIGIL_STEP="); got != "41" {
				t.Errorf("its first step is %s, want the one after the step where it resumes", got)
			}
			l.tell("STOP=1")
			l.hear("STOPPING=1")
			if err := l.end(ended); err != nil {
				t.Errorf("ended with %v", err)
			}
			if _, err := os.Stat(l.w.Inbox); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the inbox is left: %v", err)
			}
		})
	}
}

func TestTheLossOfEveryRoleFalls(t *testing.T) {
	dir := t.TempDir()
	for _, name := range roles { // the actor first: two of the others follow what it has saved
		w := Worker{Role: name, Dir: dir, Out: new(bytes.Buffer)}
		learn := lessons(w.followed)[name]
		var m mind
		untrained := learn(&mind{}, w.chance(0))
		if name == "rollout" || name == "actor_fwd" {
			untrained = lessons(func() policy { return policy{} })[name](&mind{}, w.chance(0))
		}
		for range 300 {
			if err := w.step(&m, learn, newVoice("")); err != nil {
				t.Fatal(err)
			}
		}
		if trained := learn(&m, w.chance(0)); trained > 0.6*untrained {
			t.Errorf("%s: loss %.3f after 300 steps, %.3f before", name, trained, untrained)
		}
	}
}

func TestAStatefulRoleGoesOnFromItsCheckpoint(t *testing.T) {
	l := worker(t, "actor")
	ended, interrupt := l.start()
	if first := l.hear("X_VIGIL_CHECKPOINT="); first != fmt.Sprint(saveEvery) {
		t.Errorf("the first checkpoint is of step %s", first)
	}
	interrupt()
	l.hear("STOPPING=1")
	last := l.hear("X_VIGIL_CHECKPOINT=")
	if err := l.end(ended); !errors.Is(err, ErrTerminated) {
		t.Errorf("ended with %v", err)
	}
	saved, ok := l.w.folder("actor", 0).load(0)
	if !ok || fmt.Sprint(saved.Step) != last || saved.Policy == (policy{}) {
		t.Fatalf("saved %+v, want step %s", saved, last)
	}
	l.w.Resume = saved.Step
	ended, interrupt = l.start()
	if got := l.hear("X_VIGIL_STEP="); got != fmt.Sprint(saved.Step+1) {
		t.Errorf("goes on with step %s after %d", got, saved.Step)
	}
	interrupt()
	_ = l.end(ended)
	if out := l.w.Out.(*bytes.Buffer).String(); !strings.Contains(out, "resumed from checkpoint step="+last) {
		t.Errorf("it printed %s", out)
	}
}

func TestALifeThatGoesOnLearnsWhatOneWithoutAnEndWouldHave(t *testing.T) {
	run := func(w Worker, m mind, steps int) mind {
		for range steps {
			if err := w.step(&m, lessons(w.followed)[w.Role], newVoice("")); err != nil {
				t.Fatal(err)
			}
		}
		return m
	}
	whole := run(Worker{Role: "actor", Dir: t.TempDir(), Out: new(bytes.Buffer)}, mind{}, 47)
	w := Worker{Role: "actor", Dir: t.TempDir(), Resume: 33, Out: new(bytes.Buffer)}
	run(w, mind{}, 33)
	m := w.begin()
	if m.Step != 30 {
		t.Fatalf("begins at %d", m.Step)
	}
	if got := run(w, m, 17); got != whole {
		t.Errorf("got %+v\nwant %+v", got, whole)
	}
}

func TestASetStepIsAcknowledgedAndCountedFrom(t *testing.T) {
	l := worker(t, "rollout")
	ended, _ := l.start()
	l.hear("X_VIGIL_STEP=")
	l.tell("nonsense")
	l.tell("SET_STEP=-4 SEQ=6")
	l.tell("SET_STEP=500 SEQ=7")
	if got := l.hear("X_VIGIL_ACK="); got != "7" {
		t.Errorf("acknowledged %s", got)
	}
	if got := l.hear("X_VIGIL_STEP="); got != "501" {
		t.Errorf("the step after it is %s", got)
	}
	l.tell("STOP=1")
	if err := l.end(ended); err != nil {
		t.Error(err)
	}
}

func TestASignalWithVigilsWordIsAGoodEnd(t *testing.T) {
	l := worker(t, "critic")
	ended, interrupt := l.start()
	l.hear("READY=1")
	l.tell("STOP=1")
	interrupt()
	if err := l.end(ended); err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestAWorkerThatNobodyListensToStillWorks(t *testing.T) {
	l := worker(t, "actor")
	ended, interrupt := l.start()
	l.hear("READY=1")
	_ = l.c.Close() // from here on its words find nobody
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		if m, ok := l.w.folder("actor", 0).load(0); ok && m.Step >= 4*saveEvery {
			break
		}
		select {
		case <-look.C:
		case <-deadline.C:
			t.Fatal("it does not get on")
		}
	}
	interrupt()
	_ = l.end(ended)
}

func TestACheckpointThatCannotBeReadIsPassedOver(t *testing.T) {
	d := folder(t.TempDir())
	for _, step := range []int64{10, 20, 30, 40, 50, 60} {
		if err := d.save(mind{Step: step}); err != nil {
			t.Fatal(err)
		}
	}
	if got := fmt.Sprint(d.steps()); got != "[20 30 40 50 60]" {
		t.Errorf("kept %s", got)
	}
	if err := os.WriteFile(d.path(60), []byte(`{"step": 6`), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]int64{0: 50, 60: 50, 45: 40, 40: 40, 7: 50} {
		if m, ok := d.load(limit); !ok || m.Step != want {
			t.Errorf("with limit %d it loads %d, %v, want %d", limit, m.Step, ok, want)
		}
	}
	if err := d.save(mind{Step: 41}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(d.steps()); strings.Contains(got, "50") || !strings.Contains(got, "41") {
		t.Errorf("after going back to 41 there are %s", got)
	}
	if left, _ := filepath.Glob(filepath.Join(string(d), ".new-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTheEnvironmentSaysWhoAWorkerIs(t *testing.T) {
	env := map[string]string{"VIGIL_RANK": "1", "VIGIL_RESUME_STEP": "12", "NOTIFY_SOCKET": "/n", "VIGIL_INBOX": "/i", "VIGIL_LIFE": "demo-0a1b2c3d/actor/2/1/1"}
	w := fromEnvironment("actor", func(k string) string { return env[k] })
	if w.Rank != 1 || w.Resume != 12 || w.Notify != "/n" || w.Inbox != "/i" || !strings.HasSuffix(w.Dir, "-demo-0a1b2c3d") {
		t.Errorf("got %+v", w)
	}
	env["VIGIL_EXAMPLE_DIR"] = "/d"
	if w := fromEnvironment("actor", func(k string) string { return env[k] }); w.Dir != "/d" {
		t.Errorf("got %+v", w)
	}
}

func TestAnUnknownRoleIsRefused(t *testing.T) {
	cmd := Command()
	cmd.SetArgs([]string{"cook"})
	cmd.SetErr(new(bytes.Buffer))
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), `no role "cook"`) {
		t.Errorf("got %v", err)
	}
}
