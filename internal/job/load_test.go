package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"

	"vigil/internal/role"
)

var update = flag.Bool("update", false, "write the files that tests compare with")

var sameJob = cmp.Options{cmpopts.IgnoreUnexported(Job{}), cmpopts.EquateEmpty()}

// shows: A10
func TestABadJobFileIsRefusedWithEveryMistakeAndItsLine(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			story, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse("job.yaml", story.Files[0].Data, "/jobs")
			var bad *Error
			if !errors.As(err, &bad) {
				t.Fatalf("want an *Error, got %v", err)
			}
			got := err.Error() + "\n"
			if *update {
				story.Files[1].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(story), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(story.Files[1].Data), got); diff != "" {
				t.Errorf("the error text differs (-want +got):\n%s", diff)
			}
		})
	}
}

func mustParse(t *testing.T, text string) *Job {
	t.Helper()
	j, err := Parse("job.yaml", []byte(text), "/jobs")
	if err != nil {
		t.Fatalf("parse:\n%s\n%v", text, err)
	}
	return j
}

// shows: A10
func TestASilentFileMeansTheDocumentedDefaults(t *testing.T) {
	j := mustParse(t, "name: tiny\nroles:\n  data: {command: [data]}\n  actor: {command: [train]}\n")
	plain := Role{
		Name: "data", Command: []string{"data"}, Workers: 1, Workdir: "/jobs",
		Placement: Placement{Strategy: Pack}, Devices: DevicesAll, Distributed: Torch,
		Completion: Finish, State: Stateless, NotifyAccess: ProcessTree, WandB: WandBNone,
		Stop:       StopPolicy{Signal: "TERM", Grace: 30 * time.Second, GraceOnFailure: 3 * time.Second},
		Limits:     Limits{Floor: 2 * time.Minute},
		Progress:   Progress{Expect: OnceSeen, Source: FromWord},
		Logs:       Logs{First: 16 << 20, MaxSize: 256 << 20, Keep: 8},
		Checkpoint: Checkpoint{By: SavedByAll},
		Restart: Restart{OnFailure: role.InPlace, EscalateAt: 3, MaxRewind: -1,
			BackOff: BackOff{Base: time.Second, Max: time.Minute, ResetAfter: time.Minute}, Unit: UnitRole, MinAvailable: -1},
	}
	lead := plain
	lead.Name, lead.Command, lead.State, lead.Restart.OnFailure = "actor", []string{"train"}, Checkpointed, role.Global
	want := &Job{Name: "tiny", Lead: "actor", Roles: []Role{plain, lead}}
	if diff := cmp.Diff(want, j, sameJob); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheLeadIsTheFirstRoleWhereThereIsNoActor(t *testing.T) {
	j := mustParse(t, "name: tiny\nroles: {b: {command: [x]}, a: {command: [x]}}")
	if j.Lead != "b" || j.Roles[0].State != Checkpointed || j.Roles[1].State != Stateless {
		t.Errorf("lead %s, states %s and %s", j.Lead, j.Roles[0].State, j.Roles[1].State)
	}
}

func TestActorRolloutAndActorFwdAreRestartedGloballyAndTheOthersInPlace(t *testing.T) {
	j := mustParse(t, "name: tiny\nroles: {actor: {command: [x]}, rollout: {command: [x]}, actor_fwd: {command: [x]}, critic: {command: [x]}, advantages: {command: [x]}, rollouts: {command: [x], restart: {on_failure: stop}}}")
	want := map[role.Name]role.Action{"actor": role.Global, "rollout": role.Global, "actor_fwd": role.Global, "critic": role.InPlace, "advantages": role.InPlace, "rollouts": role.Stop}
	for _, r := range j.Roles {
		if r.Restart.OnFailure != want[r.Name] {
			t.Errorf("%s: %s, want %s", r.Name, r.Restart.OnFailure, want[r.Name])
		}
	}
}

// shows: A10
func TestTheJobFileBeatsEveryDefault(t *testing.T) {
	j, err := Load("testdata/good/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("testdata/good")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"use-health-check": "true", "max-global-restart": "3"}, j.Controller); diff != "" {
		t.Errorf("controller (-want +got):\n%s", diff)
	}
	actor, _ := j.Role("actor")
	want := &Role{
		Name: "actor", Command: []string{"python3", "train_actor.py", "--port", "${port.http}", "0x10"}, Workers: 2,
		Resources:   Resources{GPUs: 1, CPUs: 0.5, Memory: 8 << 30},
		Placement:   Placement{Strategy: Spread, Group: "shared", PerNode: 1},
		Devices:     DevicesOwn,
		Distributed: None,
		DependsOn:   []role.Name{"data"},
		Completion:  Once,
		State:       Checkpointed,
		Env:         map[string]string{"OMP_NUM_THREADS": "2", "URL": "http://localhost:${port.http}"},
		EnvFile:     filepath.Join(dir, "secrets.env"),
		Workdir:     filepath.Join(dir, "run"),
		Ports:       []Port{{"grpc", 29500}, {"http", 0}},
		Ready:       &Probe{HTTP: &HTTPProbe{Port: "http", Path: "/health"}, Period: 2 * time.Second, Timeout: time.Second},
		Stop:        StopPolicy{Signal: "INT", Grace: 90 * time.Second, GraceWritten: true, SignalTo: SignalTree},
		Alive:       &Alive{Probe: Probe{HTTP: &HTTPProbe{Port: "http", Path: "/health"}, Period: 5 * time.Second, Timeout: 3 * time.Second}, Failures: 4},
		Limits: Limits{Start: 30 * time.Minute, Heartbeat: 2 * time.Minute, Floor: 5 * time.Second,
			Phases: map[string]time.Duration{"checkpoint": 15 * time.Minute, "save shard": 90 * time.Second}, WarmUp: WarmUp{Steps: 3, Limit: 20 * time.Minute}},
		Progress:   Progress{Expect: Always, Source: FromHook},
		Logs:       Logs{First: 16 << 20, MaxSize: 256 << 20, Keep: 8},
		Checkpoint: Checkpoint{By: SavedByRank0},
		Restart: Restart{OnFailure: role.Stop, Also: []role.Name{"critic"}, MaxRewind: 100,
			BackOff: BackOff{Base: 2 * time.Second, Max: 8 * time.Second, ResetAfter: time.Hour}, Unit: UnitWorker, MinAvailable: 0, Rejoin: RejoinManual},
		Hooks: Hooks{WorkerDown: []string{"python3", "tell.py", "remove", "${port.http}"}, WorkerReady: []string{"./tell"}},

		NotifyAccess: AnyProcess, User: "trainer:gpu", WandB: WandBResume,
	}
	if diff := cmp.Diff(want, actor); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	critic, _ := j.Role("critic")
	if !critic.Limits.Learned || critic.Limits.Heartbeat != 0 || critic.State != Checkpointed {
		t.Errorf("critic: %+v, state %s", critic.Limits, critic.State)
	}
	if critic.Ready.TCP.Port != "web" || critic.Ready.Period != time.Second || critic.Ready.Timeout != 10*time.Second {
		t.Errorf("critic's probe: %+v", critic.Ready)
	}
}

func TestAnchorsAndMergesSaveTyping(t *testing.T) {
	j, err := Load("testdata/good/merged.yaml")
	if err != nil {
		t.Fatal(err)
	}
	actor, _ := j.Role("actor")
	rollout, _ := j.Role("rollout")
	critic, _ := j.Role("critic")
	if !cmp.Equal(rollout.Command, actor.Command) || !cmp.Equal(critic.Command, actor.Command) {
		t.Errorf("commands: %q, %q, %q", actor.Command, rollout.Command, critic.Command)
	}
	if rollout.Workers != 4 || rollout.Stop.Grace != 10*time.Second || rollout.Stop.GraceOnFailure != time.Second {
		t.Errorf("rollout: %d workers, %+v", rollout.Workers, rollout.Stop)
	}
}

func TestWindowsLineEndingsAndAByteOrderMarkAreNotPartOfTheText(t *testing.T) {
	text, err := os.ReadFile("testdata/good/crlf.yaml")
	if err != nil {
		t.Fatal(err)
	}
	j := mustParse(t, "\uFEFF"+string(text))
	if j.Name != "crlf" || j.Roles[0].Command[0] != "true" {
		t.Errorf("%q %q", j.Name, j.Roles[0].Command)
	}
}

func TestAJobWrittenAsAFileIsReadAsTheSameJob(t *testing.T) {
	files, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		j, err := Load(file)
		if err != nil {
			t.Error(err)
			continue
		}
		roundTrip(t, j)
	}
	one, err := OneRole("train me.py", 4, []string{"python3", "-c", "print('a: b')"}, ".")
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, one)
}

func roundTrip(t *testing.T, j *Job) {
	t.Helper()
	again, err := Parse("again.yaml", j.YAML(), "/elsewhere")
	if err != nil {
		t.Errorf("read again:\n%s\n%v", j.YAML(), err)
		return
	}
	if diff := cmp.Diff(j, again, sameJob); diff != "" {
		t.Errorf("(-first +again):\n%s\n%s", diff, j.YAML())
	}
	if !bytes.Equal(j.YAML(), again.YAML()) {
		t.Errorf("written again differs:\n%s\n%s", j.YAML(), again.YAML())
	}
}

func TestAFileThatExplodesIsRefusedQuickly(t *testing.T) {
	slow(t)
	var bomb strings.Builder
	bomb.WriteString("name: bomb\nenv0: &e0 {A: a}\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&bomb, "env%d: &e%d [*e%d, *e%d, *e%d]\n", i, i, i-1, i-1, i-1)
	}
	var merges, values, many strings.Builder
	merges.WriteString("name: bomb\nroles: &r0\n")
	for i := range 400 {
		fmt.Fprintf(&merges, "  r%d: {command: [x]}\n", i)
	}
	for i := 1; i < 400; i++ {
		fmt.Fprintf(&merges, "x%d: &r%d {<<: *r%d, y%d: 1}\n", i, i, i-1, i)
	}
	values.WriteString("name: bomb\nroles:\n  r: &r {command: [" + strings.Repeat("x,", 20_000) + "x]}\n")
	for i := range 900 {
		fmt.Fprintf(&values, "  r%d: *r\n", i)
	}
	many.WriteString("name: many\nroles:\n")
	for i := range 2500 {
		fmt.Fprintf(&many, "  role_%d: {command: [x], depends_on: [roll_%d]}\n", i, i)
	}
	for _, c := range []struct{ name, text, want string }{
		{"aliases of aliases", bomb.String(), "unknown key"},
		{"merges of merges", merges.String(), "merges make more than 50000 keys"},
		{"one value, many roles", values.String(), "aliases make more than 200000 values"},
		{"open brackets", "a: " + strings.Repeat("[", 40_000), "nested deeper than 64 levels"},
		{"dashes", strings.Repeat("- ", 40_000), "nested deeper than 64 levels"},
		{"an indentation of 1000", "a:\n" + strings.Repeat(" ", 1000) + "b: c\n", "nested deeper than 64 levels"},
		{"question marks", strings.Repeat("? ", 20_000), "more than 1000 anchors"},
		{"anchors", strings.Repeat("&a ", 20_000), "more than 1000 anchors"},
		{"tags", strings.Repeat("!a\n", 20_000), "more than 1000 anchors"},
		{"colons", strings.Repeat("a: ", 20_000), "not YAML"},
		{"keys", strings.Repeat("a: b\n", 100_000), "more than 50000 YAML tokens"},
		{"unknown keys", "name: x\n" + keys(10_000), "unknown key"},
		{"more than a mebibyte", strings.Repeat("# x\n", 1<<18) + "#", "larger than 1 MiB"},
		{"zeros", string(make([]byte, 1<<20)), "control character U+0000"},
		{"many roles that depend on none", many.String(), "there are 2500 roles, none of that name"},
		{"no text", "name: \xff", "not UTF-8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("job.yaml", []byte(c.text), "/jobs")
			var bad *Error
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("want an *Error with %q, got %.1000v", c.want, err)
			}
			if len(bad.Problems) > maxProblems || len(err.Error()) > 100_000 {
				t.Errorf("%d problems in %d bytes", len(bad.Problems), len(err.Error()))
			}
		})
	}
}

func keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: v\n", i)
	}
	return b.String()
}

func TestLoadSaysWhichFileIsNotThere(t *testing.T) {
	_, err := Load("testdata/no such file.yaml")
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "read job file: open testdata/no such file.yaml") {
		t.Errorf("got %v", err)
	}
}

func TestTheBuiltinJobHasTheFiveRolesOfReinforcementLearning(t *testing.T) {
	j := Builtin("/bin/vigil")
	if len(j.relations()) != 0 {
		t.Error(j.relations())
	}
	var got []string
	for _, r := range j.Roles {
		got = append(got, fmt.Sprintf("%s %d %s %s %s", r.Name, r.Workers, r.State, r.Restart.OnFailure, r.Command))
	}
	want := []string{
		"actor 2 checkpoint global [/bin/vigil example-worker actor]",
		"rollout 2 none global [/bin/vigil example-worker rollout]",
		"critic 1 checkpoint in_place [/bin/vigil example-worker critic]",
		"actor_fwd 1 none global [/bin/vigil example-worker actor_fwd]",
		"advantages 1 none in_place [/bin/vigil example-worker advantages]",
	}
	if diff := cmp.Diff(want, got); diff != "" || j.Lead != "actor" || j.Name != "example" {
		t.Errorf("job %s, lead %s (-want +got):\n%s", j.Name, j.Lead, diff)
	}
}

func TestAJobOfOneRoleIsRestartedGlobally(t *testing.T) {
	j, err := OneRole("../my run!.py", 4, []string{"python3", "train.py"}, "/tmp")
	if err != nil {
		t.Fatal(err)
	}
	r := j.Roles[0]
	if j.Name != "my-run-.py" || j.Lead != "main" || r.Workers != 4 || r.Restart.OnFailure != role.Global || r.State != Checkpointed || r.Workdir != "/tmp" {
		t.Errorf("%s %s %+v", j.Name, j.Lead, r)
	}
	if _, err := OneRole("x", 1, nil, "/"); err == nil || err.Error() != "make job: no command" {
		t.Errorf("no command: %v", err)
	}
	if _, err := OneRole("x", -1, []string{"x"}, "/"); err == nil {
		t.Error("-1 workers are taken")
	}
}

func TestLevelsPutEveryRoleAfterWhatItDependsOn(t *testing.T) {
	j := mustParse(t, "name: x\nroles: {a: {command: [x], depends_on: [c, b]}, b: {command: [x], depends_on: [c]}, c: {command: [x]}, d: {command: [x]}}")
	if diff := cmp.Diff([][]role.Name{{"c", "d"}, {"b"}, {"a"}}, j.Levels()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPortsAreExpandedWhereTheyAreNamedAndNothingElseIs(t *testing.T) {
	got, err := ExpandPorts("a${port.http}b${HOME}${port.http}${port.http", map[string]int{"http": 80})
	if want := "a80b${HOME}80${port.http"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := ExpandPorts("a${port.x}", map[string]int{"http": 80}); err == nil || !strings.Contains(err.Error(), `no port "x"`) {
		t.Errorf("a port that is not there: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.txtar", "testdata/good/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			if story := txtar.Parse(text); len(story.Files) > 0 {
				text = story.Files[0].Data
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		j, err := Parse("job.yaml", text, "/jobs")
		var bad *Error
		if err != nil {
			if !errors.As(err, &bad) || len(bad.Problems) == 0 || err.Error() == "" {
				t.Fatalf("want an *Error, got %v", err)
			}
			return
		}
		roundTrip(t, j)
	})
}

// A role that a controller of an earlier version wrote down is not another role because of a key that it did not know.
func TestTheDefaultAccessToANotifySocketIsNotWrittenDown(t *testing.T) {
	for access, want := range map[NotifyAccess]bool{"": false, ProcessTree: false, AnyProcess: true} {
		src, err := json.Marshal(Role{Name: "actor", NotifyAccess: access})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(src), "NotifyAccess"); got != want {
			t.Errorf("%q is written: %t, want %t", access, got, want)
		}
	}
}

// slow skips a test that takes real time where only the quick ones are wanted (go test -short).
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes real time: not with -short")
	}
}
