package scenario

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
)

const reference = "README.md"

const introduction = `# Stories

A story is a file under ` + "`testdata`" + `: a text that says what it shows, what is done (` + "`-- scenario --`" + `), and what a user could read
afterwards (` + "`-- events --`" + `, and ` + "`-- log --`" + ` where the log matters). Health store, checker, policy, repair loop and journal are the
real ones; services and workers are played, and time is fake. A story that needs no others is best read first: ` + "`critic_killed.txtar`" + `.

Write the scenario, run ` + "`go test ./internal/scenario -run Stories/NAME -update`" + `, and read the events. A line that is no directive, or a
wrong one, fails the test with file, line and what was probably meant.

This page is written from the tables in ` + "`directives_test.go` and `settings_test.go`" + `; after a change there, run
` + "`go test ./internal/scenario -run Reference -update`" + `. ROLE is a role of the job, RANK one of its ranks from 0 (0 where it is left out),
DURATION such as 90s or 1m30s, TIMES, STEP and CODE are numbers, CAUSE is a cause of failures, PHASE any name, TEXT the rest of the line.
VERB is a call of the engine: %s.
`

// The reference is written from the tables that the stories are read by.
// shows: FAULT-L2
func TestTheReferenceOfStoriesSaysWhatTheTablesSay(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, introduction, strings.Join(verbs, ", "))
	for _, c := range directives {
		fmt.Fprintf(&b, "\n## %s\n\n| directive | what it does | where |\n| --- | --- | --- |\n", c.title)
		for _, d := range c.directives {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", d.form(), d.does, d.when)
		}
	}
	for _, name := range directiveNames() {
		table := settingsOf[name]
		if table == nil {
			continue
		}
		fmt.Fprintf(&b, "\n## Settings of `%s`\n\n| setting | value | what it is |\n| --- | --- | --- |\n", name)
		for _, s := range table {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.key, s.value, s.does)
		}
	}
	if *update {
		if err := os.WriteFile(reference, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := os.ReadFile(reference); err != nil || string(is) != b.String() {
		t.Errorf("%s is not what the tables say (%v): run go test ./internal/scenario -run Reference -update", reference, err)
	}
}

// A story that cannot be read says where, what, and what was probably meant; it neither panics nor
// is played in part. The kind: unknown and malformed directives, settings and parts of the file, and
// lines that stand where they make no sense.
// shows: FAULT-L2
func TestAMistakeInAStoryIsExplained(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"a mistyped directive", "job critic\nwait 1s\nkil critic", `s.txtar:6: "kil critic": there is no directive "kil"; did you mean "kill"?`},
		{"a word far from all directives", "job critic\nwait 1s\nexplode critic", `there is no directive "explode"; want one of admit, checkpoint, `},
		{"a role that is not there", "job critic\nwait 1s\nkill critc", `s.txtar:6: "kill critc": there is no role "critc"; did you mean "critic"?; the form is: kill ROLE [RANK]`},
		{"a rank that is not there", "job critic:2\nwait 1s\nkill critic 2", `RANK is "2", critic has the ranks 0 to 1; the form is: kill ROLE [RANK]`},
		{"an argument that is missing", "job critic\nwait 1s\nexit critic 0", `CODE is missing; the form is: exit ROLE RANK CODE`},
		{"no argument at all", "job critic\nwait", `s.txtar:5: "wait": DURATION is missing; the form is: wait DURATION`},
		{"an argument too many", "job critic\nwait 1s\nadmit critic 0 1", `"1" is too much`},
		{"a duration without its unit", "job critic\nwait 20", `DURATION is "20", want one such as`},
		{"a number that is none", "job critic\nwait 1s\ncheckpoint critic many", `STEP is "many", want a number`},
		{"a call that is not there", "job critic\nwait 1s\nslow stop critic 2s", `VERB is "stop"`},
		{"a cause that is not there", "job critic\nwait 1s\nfail critic hardwear", `CAUSE is "hardwear"; did you mean "hardware"?`},
		{"a mistyped setting", "job critic\nrole critic escalateat=2\nwait 1s", `there is no setting "escalateat"; did you mean "escalate_at"?`},
		{"a value that cannot be", "job critic\nrole critic unit=wroker\nwait 1s", `unit: it is "wroker"; did you mean "worker"?`},
		{"a number of a setting that is none", "job critic\npolicy max_global=x\nwait 1s", `max_global: "x" is no number`},
		{"a duration of a setting that is none", "job critic\nrole critic window=5\nwait 1s", `window: "5" is no duration`},
		{"another role that is not there", "job critic\nrole critic also=actor\nwait 1s", `also: there is no role "actor"`},
		{"a rule's condition that is not there", "job critic\nrole critic rule=stop,code:3\nwait 1s", `rule: a condition is "code"; want one of cause`},
		{"a phase without a limit", "job critic\nrole critic phase=step\nwait 1s", `phase: "step" is not PHASE:DURATION`},
		{"a number of workers that is none", "job critic:two", `critic has "two" workers, want a number from 1`},
		{"a failure before the job has begun", "job critic\nkill critic\nwait 1s", `s.txtar:5: "kill critic": the job has not begun`},
		{"a setting after the job has begun", "job critic\nwait 1s\nrole critic every=2s", `it comes before the first wait`},
		{"no job", "wait 1s", `s.txtar:4: "wait 1s": there is no job`},
		{"no wait", "job critic", `s.txtar: the story never begins its job: it has no wait`},
		{"a crash without a journal", "job critic\nwait 1s\ncrash", `nothing outlives this controller: say "journal 0s"`},
		{"two mistakes", "job critic\nwait 1s\nkil critic\nwiat 2s", `"wiat 2s": there is no directive "wiat"; did you mean "wait"?`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := open("s.txtar", []byte("A story.\n\n-- scenario --\n"+c.script+"\n-- events --\n"))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
	if *update { // which writes a part that is missing
		return
	}
	for want, file := range map[string]string{
		`a part is "event"; did you mean "events"?`: "-- scenario --\njob critic\nwait 1s\n-- event --\n",
		`it has no part -- scenario --`:             "job critic\n-- events --\n",
		`it has no part -- events --`:               "-- scenario --\njob critic\nwait 1s\n",
	} {
		if _, _, err := open("s.txtar", []byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

// What is found only while a story is played ends it in order, with the line.
// shows: FAULT-L2
func TestALineThatCannotBePlayedIsExplained(t *testing.T) {
	for script, want := range map[string]string{
		"job critic\njournal 0s\nwait 5s\ncrash\nrestart critic":                   `s.txtar:5: "restart critic": nobody can ask a controller that is dead`,
		"job critic\njournal 0s\nwait 5s\nnext-controller":                         `s.txtar:4: "next-controller": the controller lives`,
		"job critic\njournal 0s\nwait 5s\ncrash\nwait 5s":                          `s.txtar:5: the story ends with a dead controller`,
		"job critic\njournal 0s\nwait 5s\ncrash\ncrash":                            `s.txtar:5: "crash": the controller is dead`,
		"job critic\njournal 0s\nwait 5s\ncrash\nstop-role critic\nwait 1s\ncrash": `s.txtar:5: "stop-role critic": nobody can ask`,
	} {
		lines, err := read("s.txtar", 1, script)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) { _, _, err = tell(t, lines) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}
