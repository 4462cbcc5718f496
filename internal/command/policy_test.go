package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/role"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/roleapi"
)

const rulesJob = `name: tiny
controller: {use_health_check: true}
roles:
  actor: {command: ["true"]}
  critic:
    command: ["true"]
    workers: 2
    restart:
      also: [actor]
      rules:
        - {exit_code: 3, action: stop}
        - {message: 'ECC', action: global}
        - {cause: reported, message: late, action: ignore}
`

// jobFile writes a job file and returns its path.
func jobFile(t *testing.T, src string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(path, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// controllerRuns runs the program and returns what it prints.
func controllerRuns(args ...string) (stdout, stderr string, status int) {
	var out, bad bytes.Buffer
	status = Main(append([]string{"controller"}, args...), []string{"HOME=/", "PATH=/usr/bin:/bin"}, &out, &bad)
	return out.String(), bad.String(), status
}

func TestAFailureIsExplainedUpToTheLineThatSettlesIt(t *testing.T) {
	path := jobFile(t, rulesJob)
	for _, c := range []struct {
		args        []string
		first, last string
		settles     string
	}{
		{[]string{"critic", "exited", "--exit-code", "3"}, "critic rank 0 fails now: exited, exit code 3", "stop of the job, exit 1", "rule 1 of critic (exit_code 3) says stop"},
		{[]string{"critic", "exited", "--signal", "segv", "--rank", "1"}, "critic rank 1 fails now: exited, SIGSEGV", "restart in place of actor, critic", "critic can be restarted in place (0 of 2 before)"},
		{[]string{"critic", "exited", "--message", "CUDA error: an ECC error"}, "critic rank 0 fails now: exited, CUDA error: an ECC error", "global restart of actor, critic", `rule 2 of critic (message "ECC") says global`},
		{[]string{"critic", "reported", "--message", "shard 7 is late"}, "critic rank 0 fails now: reported, shard 7 is late", "nothing is done", `rule 3 of critic (cause reported, message "late") says ignore`},
		{[]string{"actor", "silent"}, "actor rank 0 fails now: silent", "global restart of actor, critic", "actor needs a global restart"},
		{[]string{"actor", "silent", "--use-health-check=false"}, "actor rank 0 fails now: silent", "stop of the job, exit 1", "actor rank 0 failed (silent) and nothing is repaired without --use-health-check"},
	} {
		out, bad, status := controllerRuns(append([]string{"policy", "--job", path, "--explain"}, c.args...)...)
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if status != 0 || bad != "" || len(lines) < 5 {
			t.Fatalf("%v: status %d\n%s%s", c.args, status, out, bad)
		}
		settled := lines[len(lines)-2]
		if lines[0] != c.first || lines[len(lines)-1] != c.last || !strings.HasPrefix(settled, "  *  ") || !strings.HasSuffix(settled, c.settles) {
			t.Errorf("%v:\n%s", c.args, out)
		}
		if strings.Count(out, "  *  ") != 1 {
			t.Errorf("%v: more than one line settles it:\n%s", c.args, out)
		}
	}
}

func TestAQuestionThatIsWrongIsAnsweredWithWhatWouldBeRight(t *testing.T) {
	path := jobFile(t, rulesJob)
	for want, args := range map[string]string{
		"did you mean critic?":              "--explain critc exited",
		"the causes are reported, exited":   "--explain critic died",
		"want one of them":                  "--explain critic exited --exit-code 3 --signal KILL",
		"want the name of a signal":         "--explain critic exited --signal FOO",
		"want 0 to 255":                     "--explain critic exited --exit-code 256",
		"critic has the ranks 0 to 1":       "--explain critic exited --rank 2",
		"want a role and a cause":           "--explain critic",
		"want none without --explain":       "critic exited",
		"want --explain ROLE CAUSE with th": "--exit-code 3",
	} {
		_, bad, status := controllerRuns(append([]string{"policy", "--job", path}, strings.Fields(args)...)...)
		if status != ExitUsage || !strings.Contains(bad, want) {
			t.Errorf("%s: status %d, %s", args, status, bad)
		}
	}
}

func TestARunningControllerIsAskedWhatItWouldDo(t *testing.T) {
	var asked url.Values
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query()
		if asked.Get("role") != "critic" {
			roleapi.WriteProblem(w, roleapi.NewProblem(http.StatusUnprocessableEntity, "there is no such role"))
			return
		}
		roleapi.WriteJSON(w, http.StatusOK, httpapi.Forecast{Role: "critic", Rank: 1, Cause: role.Exited, Detail: "SIGSEGV", GlobalRestarts: 2, MaxGlobalRestarts: 5, RestartCount: 1,
			Lines: []httpapi.PolicyLine{{Rule: "fatal", Why: "it is not marked fatal"}, {Rule: "role_can_stay", Fits: true, Why: "it can"}}, Action: role.InPlace, Roles: []role.Name{"actor", "critic"}, WaitSeconds: 2.5})
	}))
	defer server.Close()
	addr := strings.TrimPrefix(server.URL, "http://")
	out, bad, status := controllerRuns("policy", "--explain", "critic", "exited", "--rank", "1", "--signal", "SEGV", "--message", "a & b", "--addr", addr)
	want := `critic rank 1 fails now: exited, SIGSEGV
  global restarts spent 2 of 5, of critic 1 in place
  -  fatal          it is not marked fatal
  *  role_can_stay  it can
restart in place of actor, critic, after a back-off of 2.5s at most
`
	if status != 0 || bad != "" || strings.Join(strings.Fields(out), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("status %d\n%s%s", status, out, bad)
	}
	if asked.Get("message") != "a & b" || asked.Get("rank") != "1" || asked.Get("signal") != "SEGV" || asked.Get("exit_code") != "-1" {
		t.Errorf("asked %v", asked)
	}
	if _, bad, status := controllerRuns("policy", "--explain", "other", "silent", "--addr", addr); status != ExitUsage || !strings.Contains(bad, "there is no such role") {
		t.Errorf("refused: status %d, %s", status, bad)
	}
}

// record writes incidents as a controller does.
func record(t *testing.T, folder string, incidents ...httpapi.Incident) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, i := range incidents {
		src, err := json.Marshal(i)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, i.ID+".json"), src, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// died is an incident of critic, repaired in place at once.
func died(n int, code *int, detail string) httpapi.Incident {
	at := time.Date(2026, 3, 1, 12, n, 0, 0, time.UTC)
	decided, started, step := at.Add(time.Second), at.Add(2*time.Second), int64(n)
	failed, read := event.New(at, event.Failure), event.New(at, event.Moved)
	failed.ExitCode, failed.Attempt = code, 1
	read.Verb, read.Role, read.Step = "read_step", "critic", &step
	return httpapi.Incident{ID: fmt.Sprint(n), Role: "critic", Rank: 1, Incarnation: n, Cause: role.Exited, Detail: detail, Action: role.InPlace, Rule: "role_can_stay",
		Detected: at, Decided: &decided, Started: &started, Events: []event.Event{failed, read}}
}

func TestAReplayMarksWhatThisPolicyDecidesOtherwise(t *testing.T) {
	run := t.TempDir()
	three := 3
	record(t, filepath.Join(run, "incidents"), died(1, nil, "exit code 1 (pid 4711)"), died(2, nil, "SIGSEGV (pid 4712)"), died(3, &three, "ValueError: bad shard"), died(10, nil, "exit code 1"))
	kept := filepath.Join(run, "incidents", "2", "critic", "2", "1.1")
	if err := os.MkdirAll(kept, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(kept, "stderr.txt"), []byte("CUDA error: an ECC error\nbye\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := jobFile(t, rulesJob)
	want := [][]string{
		{"1", "in_place role_can_stay in_place role_can_stay"},
		{"!", "2", `in_place role_can_stay global role_rule rule 2 of critic (message "ECC") says global`},
		{"!", "3", "in_place role_can_stay stop role_rule rule 1 of critic (exit_code 3) says stop"},
		{"10", "in_place role_can_stay in_place role_can_stay"},
		{"2 of 4 decisions differ"},
		{"the job ends at incident 3 now: exit 1, rule 1 of critic"},
	}
	for _, paths := range [][]string{{run}, {filepath.Join(run, "incidents")}, {filepath.Join(run, "incidents", "10.json"), filepath.Join(run, "incidents", "1.json"), filepath.Join(run, "incidents", "2.json"), filepath.Join(run, "incidents", "3.json")}} {
		out, bad, status := controllerRuns(append([]string{"replay", "--job", path}, paths...)...)
		lines := strings.Split(out, "\n")
		if status != 0 || bad != "" || len(lines) < len(want)+2 {
			t.Fatalf("%v: status %d\n%s%s", paths, status, out, bad)
		}
		for i, words := range want {
			line := strings.Join(strings.Fields(lines[i+2]), " ")
			if !strings.HasPrefix(line, strings.Join(words[:len(words)-1], " ")) || !strings.Contains(line, words[len(words)-1]) {
				t.Errorf("line %d: %q, want %q", i, line, words)
			}
		}
	}
}

func TestWhatIsNoRecordOfThisJobIsRefused(t *testing.T) {
	path, dir := jobFile(t, rulesJob), t.TempDir()
	write := func(name, src string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	stranger := died(1, nil, "exit code 1")
	stranger.Role = "rollout"
	record(t, filepath.Join(dir, "other"), stranger)
	for want, file := range map[string]string{
		"no such file":                       filepath.Join(dir, "missing"),
		"holds none":                         t.TempDir(),
		"broken.json: unexpected end":        write("broken.json", `{"id": "1"`),
		"it has no id, cause or time":        write("empty.json", `{}`),
		`job tiny has no role "rollout"`:     filepath.Join(dir, "other"),
		"want incidents: a file, or a folde": "",
	} {
		args := []string{"replay", "--job", path, file}
		if file == "" {
			args = args[:3]
		}
		if _, bad, status := controllerRuns(args...); status != ExitUsage || !strings.Contains(bad, want) {
			t.Errorf("%s: status %d, %s", file, status, bad)
		}
	}
}
