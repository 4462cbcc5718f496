package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vigil/internal/event"
	"vigil/internal/proc"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
)

// told is what a command of --on-incident was given, and what it answers.
type told struct {
	mu     sync.Mutex
	all    []string
	answer func() error // nil: it succeeds
}

func (d *told) Run(_ context.Context, cmd proc.Command) (string, error) {
	env := cmd.Env[len(cmd.Env)-2:]
	d.mu.Lock()
	d.all = append(d.all, fmt.Sprintf("%s %s %s: %s", env[0], env[1], strings.Join(cmd.Argv, " "), cmd.Input))
	answer := d.answer
	d.mu.Unlock()
	if answer == nil {
		return "", nil
	}
	return "", answer()
}

func (d *told) Close(context.Context) {}

// realCommands runs commands in earnest, until the end of the test.
func realCommands(t *testing.T, log *slog.Logger) *proc.Commands {
	t.Helper()
	k, err := proc.NewKeeper(proc.Options{Cgroups: proc.NoCgroups})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k.NewCommands(fmt.Sprintf("%s-%d", t.Name(), os.Getpid()), time.Minute, log)
}

func (d *told) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.all)
}

func TestACommandOnIncidentsIsTriedAgainWithGrowingPausesAndThenGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said printed
		d := &told{answer: func() error { return errors.New("exit status 1") }}
		h := newHook(nil, 0, d, slog.New(slog.NewTextHandler(&said, nil)))
		h.begin()
		h.tell(notice{"7", "decided", []byte("{}")}.errand("notify-me"))
		for i, after := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second} {
			time.Sleep(after)
			synctest.Wait()
			if n := len(d.list()); n != i+1 {
				t.Fatalf("run %d times, want %d", n, i+1)
			}
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := d.list(); len(got) != 4 || got[0] != "VIGIL_INCIDENT=7 VIGIL_INCIDENT_STATE=decided sh -c notify-me: {}" {
			t.Errorf("told %q", got)
		}
		if !strings.Contains(said.String(), "--on-incident did not succeed\"") {
			t.Errorf("nobody says that it was given up: %s", said.String())
		}
		h.close()
	})
}

func TestWhoeverTellsOfAnIncidentNeverWaitsAndWhatIsDroppedIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said printed
		began := time.Now()
		d := &told{answer: func() error { time.Sleep(20 * time.Second); return nil }}
		h := newHook(nil, 0, d, slog.New(slog.NewTextHandler(&said, nil)))
		h.begin()
		for range hookQueue + 10 {
			h.tell(notice{"7", "decided", nil}.errand("slow"))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %s", took)
		}
		if n := strings.Count(said.String(), "--on-incident is not told"); n < 9 || n > 10 {
			t.Errorf("%d dropped ones were said", n)
		}
		began = time.Now()
		d.mu.Lock()
		d.answer = nil
		d.mu.Unlock()
		h.close()
		if took := time.Since(began); took > 21*time.Second { // the fake run does not end with its context
			t.Errorf("the end took %s", took)
		}
	})
}

func TestACommandThatHangsEndsWithItsLimitAndWithTheController(t *testing.T) {
	t.Parallel()
	var said printed
	dir := t.TempDir()
	log := slog.New(slog.NewTextHandler(&said, nil))
	h := newHook(os.Environ(), 0, realCommands(t, log), log)
	h.limit, h.backOff, h.rest = 50*time.Millisecond, time.Millisecond, 50*time.Millisecond
	h.begin()
	h.tell(notice{"7", "decided", nil}.errand("sleep 1000 & sleep 1000"))
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for strings.Count(said.String(), "not done after 50ms") < 1+hookRetries {
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", patience, said.String())
		}
		<-tick.C
	}
	h.limit = time.Hour
	h.tell(notice{"8", "decided", nil}.errand("echo ran > " + filepath.Join(dir, "ran") + "; sleep 1000"))
	for {
		if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s the command has not begun", patience)
		}
		<-tick.C
	}
	h.close() // which does not wait for an hour
	if strings.Contains(said.String(), "left behind") {
		t.Errorf("a command that was killed is not gone: %s", said.String())
	}
}

func TestACommandThatDoesNotReadTheIncidentSucceedsAll(t *testing.T) {
	t.Parallel()
	h := newHook(os.Environ(), 0, realCommands(t, slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler))
	if said, err := h.once(notice{"7", "decided", make([]byte, 1<<20)}.errand("exit 0")); err != nil {
		t.Errorf("%v, it said %q", err, said)
	}
	if said, err := h.once(notice{"7", "decided", nil}.errand("echo out; echo oops >&2; exit 3")); err == nil || said != "out\noops" {
		t.Errorf("%v, it said %q", err, said)
	}
}

// A command's uploader in the background is deliberate and has as long as the command might have had; what has not ended
// by then, or by the end of the job, is ended.
// shows: FAULT-K3
func TestWhatACommandPutsIntoTheBackgroundHasItsTimeAndIsThenEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit, rest time.Duration
		ended       bool // before the hook was closed
	}{
		"at its limit":             {limit: 300 * time.Millisecond, rest: patience, ended: true},
		"at the end of the job":    {limit: time.Hour, rest: 50 * time.Millisecond},
		"by itself, at the end of": {limit: time.Hour, rest: patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said printed
			log := slog.New(slog.NewTextHandler(&said, nil))
			h := newHook(os.Environ(), c.limit, realCommands(t, log), log)
			h.rest = c.rest
			h.begin()
			dir := t.TempDir()
			upload := "setsid sh -c 'echo $$ > pid; mv pid uploader; exec sleep 1000' &"
			if !c.ended && c.rest == patience { // it goes on when the command is over, and is done before all is ended
				upload = "(sleep 0.5; echo $$ > uploader; touch done) &"
			}
			e := notice{"7", "decided", nil}.errand(upload)
			e.dir = dir
			h.tell(e)
			wait := time.Now().Add(patience)
			for said := false; !said; said = fileThere(filepath.Join(dir, "uploader")) {
				if time.Now().After(wait) {
					t.Fatal("the uploader does not run")
				}
				time.Sleep(5 * time.Millisecond)
			}
			for c.ended && !strings.Contains(said.String(), "was ended") {
				if time.Now().After(wait) {
					t.Fatalf("nothing was ended: %s", said.String())
				}
				time.Sleep(5 * time.Millisecond)
			}
			h.close()
			want := 1
			if fileThere(filepath.Join(dir, "done")) {
				want = 0
			}
			if n := strings.Count(said.String(), "--on-incident: what it has left in the background was ended"); n != want {
				t.Errorf("said %d times, want %d: %s", n, want, said.String())
			}
			pid, _ := os.ReadFile(filepath.Join(dir, "uploader"))
			if want == 1 && fileThere("/proc/"+strings.TrimSpace(string(pid))) {
				t.Errorf("pid %s is there still", pid)
			}
		})
	}
}

func fileThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readIncident reads an incident's file.
func readIncident(t *testing.T, dir, id string) (i httpapi.Incident) {
	t.Helper()
	src, err := os.ReadFile(filepath.Join(dir, id+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(src, &i); err != nil {
		t.Fatal(err)
	}
	return i
}

// shows: A13
func TestAnIncidentIsWrittenInEachOfItsStatesAndToldTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := &told{}
		history := event.NewHistory(10)
		h := newHook(nil, 0, d, slog.New(slog.DiscardHandler))
		n := newIncidents(dir, history, h, "notify-me", slog.New(slog.DiscardHandler))
		log := event.NewLog(100, history.Observe, n.Observe)
		end := n.follow()
		record := func(kind event.Kind, change func(*event.Event)) {
			e := event.New(time.Now(), kind)
			e.Role, e.Incident, e.Incarnation = "critic", "1", 1
			change(&e)
			log.Record(e)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		record(event.Failure, func(e *event.Event) { e.Cause, e.Detail = role.Silent, "no heartbeat for 5s" })
		if i := readIncident(t, dir, "1"); i.Cause != role.Silent || i.Decided != nil || !i.Open || i.Evidence != nil {
			t.Errorf("detected: %+v", i)
		}
		record(event.Decided, func(e *event.Event) { e.Action, e.Roles = role.InPlace, []role.Name{"critic"} })
		if i := readIncident(t, dir, "1"); i.Decided == nil || i.Action != role.InPlace {
			t.Errorf("decided: %+v", i)
		}
		kernel := filepath.Join(dir, "1", "critic", "1", "0.1", "kernel.txt")
		if err := errors.Join(os.MkdirAll(filepath.Dir(kernel), 0o700), os.WriteFile(kernel, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		record(event.Moved, func(e *event.Event) { e.Verb = "stop_service" })
		if i := readIncident(t, dir, "1"); i.Stopped == nil || i.Clean == nil || !slices.Equal(i.Evidence, []string{kernel}) {
			t.Errorf("stopped: %+v", i)
		}
		record(event.Moved, func(e *event.Event) { e.Verb, e.Incarnation = "run", 2 })
		record(event.PlanEnded, func(e *event.Event) { e.Roles, e.Incarnation = []role.Name{"critic"}, 2 })
		if i := readIncident(t, dir, "1"); i.Started == nil || i.Open || i.FirstStep != nil {
			t.Errorf("started: %+v", i)
		}
		record(event.FirstStep, func(e *event.Event) { e.Incident, e.Incarnation = "", 2 })
		if i := readIncident(t, dir, "1"); i.FirstStep == nil || len(i.Events) < 4 {
			t.Errorf("first step: %+v", i)
		}
		if err := end(t.Context()); err != nil {
			t.Error(err)
		}
		var states []string
		for _, one := range d.list() {
			head, body, _ := strings.Cut(one, ": ")
			states = append(states, head)
			if !json.Valid([]byte(body)) {
				t.Errorf("told no JSON: %s", body)
			}
		}
		if want := []string{"VIGIL_INCIDENT=1 VIGIL_INCIDENT_STATE=decided sh -c notify-me", "VIGIL_INCIDENT=1 VIGIL_INCIDENT_STATE=ended sh -c notify-me"}; !slices.Equal(states, want) {
			t.Errorf("told %q, want %q", states, want)
		}
	})
}

func TestManyChangesAtOnceAreWrittenInOneGoAndTheLastBeforeTheEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		history := event.NewHistory(10)
		n := newIncidents(dir, history, nil, "", slog.New(slog.DiscardHandler))
		log := event.NewLog(100, history.Observe, n.Observe)
		end := n.follow()
		for i := range 5 {
			e := event.New(time.Now(), event.Failure)
			e.Role, e.Incident = "critic", fmt.Sprint(i+1)
			log.Record(e)
		}
		log.Record(event.New(time.Now(), event.JobEnded))
		if err := end(t.Context()); err != nil {
			t.Error(err)
		}
		for i := range 5 {
			if got := readIncident(t, dir, fmt.Sprint(i+1)); got.Open {
				t.Errorf("incident %d was not written at the end", i+1)
			}
		}
	})
}

// shows: FAULT-A1
//
// A controller may itself be a worker's program, or a service of systemd's: its commands do not speak for it.
func TestACommandCannotSpeakForTheControllersOwnSupervisor(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "env")
	voice := []string{"NOTIFY_SOCKET=/run/outer", "WATCHDOG_USEC=1", "VIGIL_INBOX=/run/in", "VIGIL_SERVICE_URL=http://outer", "VIGIL_HOOK_PID=1", "TORCHELASTIC_ERROR_FILE=/outer"}
	h := newHook(append(os.Environ(), append(voice, "VIGIL_JOB=tiny")...), 0, realCommands(t, slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler))
	h.begin()
	h.tell(notice{"7", "decided", nil}.errand("env > " + out))
	h.close()
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range voice {
		if name, _, _ := strings.Cut(pair, "="); strings.Contains("\n"+string(got), "\n"+name+"=") {
			t.Errorf("the command has %s", name)
		}
	}
	if !strings.Contains(string(got), "VIGIL_JOB=tiny") || !strings.Contains(string(got), "VIGIL_INCIDENT=7") {
		t.Errorf("the command has\n%s", got)
	}
}
