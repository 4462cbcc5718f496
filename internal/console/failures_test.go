package console

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/restart"
	"vigil/internal/role"
)

func failed(name role.Name, log string) role.Failure {
	return role.Failure{Life: role.Life{Role: name, Incarnation: 1, Attempt: 1}, Cause: role.Reported, Detail: "no data\nat line 3", Log: log}
}

func inPlace(failures ...role.Failure) Decided {
	d := Decided{Failures: failures, Limit: 3}
	d.Action, d.Rule = role.InPlace, restart.Rule("role_can_stay")
	for _, f := range failures {
		d.Roles = append(d.Roles, f.Life.Role)
	}
	return d
}

// flushed waits until everything is shown, and fails the test if that does not come.
func flushed(t *testing.T, f *Failures) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := f.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestAFailureIsShownWithTheEndOfItsLogAndWhatIsDone(t *testing.T) {
	log := filepath.Join(t.TempDir(), "stderr.log")
	if err := os.WriteFile(log, []byte("first\nTraceback\x1b[31m\nlast"), 0o600); err != nil {
		t.Fatal(err)
	}
	exited := role.Failure{Life: role.Life{Role: "actor", Rank: 2, Incarnation: 1, Attempt: 1}, Cause: role.Exited, Detail: "worker ended", Exit: &role.Exit{Code: 3, PID: 47, Tail: []string{"from memory"}}, Log: "/no/such/file"}
	global := Decided{Failures: []role.Failure{exited}, Global: 2, Limit: 3}
	global.Action, global.Rule = role.Global, restart.Rule("role_needs_global")
	stop := Decided{Failures: []role.Failure{exited}}
	stop.Action, stop.Rule, stop.Exit, stop.Why = role.Stop, restart.Rule("fatal"), 1, "it said so"
	var out bytes.Buffer
	f := NewFailures(Options{To: &out})
	for _, d := range []Decided{inPlace(failed("critic", log)), global, stop} {
		f.Tell(d)
	}
	flushed(t, f)
	want := fmt.Sprintf(`
  critic rank 0 failed (reported): no data
    | first
    | Traceback\x1b[31m
    | last
    log   %s
    rule  role_can_stay -> in_place restart of critic


  actor rank 2 failed (exited): exit code 3 (pid 47): worker ended
    | from memory
    log   /no/such/file
    rule  role_needs_global -> global restart 2 of 3


  actor rank 2 failed (exited): exit code 3 (pid 47): worker ended
    | from memory
    log   /no/such/file
    rule  fatal -> stop, exit 1: it said so

`, log)
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}

	var records bytes.Buffer
	f = NewFailures(Options{Log: slog.New(slog.NewJSONHandler(&records, nil))})
	f.Tell(inPlace(failed("critic", log)))
	flushed(t, f)
	for _, part := range []string{`"msg":"failure"`, `"role":"critic"`, `"cause":"reported"`, `"tail":["first",`, `"action":"in_place"`, `"rule":"role_can_stay"`} {
		if !strings.Contains(records.String(), part) {
			t.Errorf("%s is missing in %s", part, records.String())
		}
	}
}

// What stands in the place of a log may be anything. The kind: a FIFO, a device, a folder, a link, nothing.
// shows: FAULT-H1
func TestOnlyARegularFileIsReadAsALog(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	secret := at("secret")
	for _, err := range []error{unix.Mkfifo(at("fifo"), 0o600), os.Mkdir(at("folder"), 0o700), os.WriteFile(secret, []byte("secret"), 0o600), os.Symlink(secret, at("link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{at("fifo"), at("folder"), at("link"), at("nothing"), "/dev/zero", "/dev/tty"} {
		var out bytes.Buffer
		f := NewFailures(Options{To: &out})
		f.Tell(inPlace(failed("critic", path)))
		flushed(t, f)
		if !strings.Contains(out.String(), "failed (reported): no data") || strings.Contains(out.String(), "    | ") {
			t.Errorf("%s: %s", path, out.String())
		}
	}
}

// hung is a disk that does not answer, until it does.
type hung struct {
	reads  chan struct{} // one for each read that was begun
	answer chan struct{}
}

func (h *hung) tail(string, int) []string {
	h.reads <- struct{}{}
	<-h.answer
	return []string{"at last"}
}

// A log on a disk that does not answer (a hung NFS home) holds up nobody: whoever tells of a failure does not
// wait at all, the failure is shown without its log after readTime, and reads that hang do not pile up.
// shows: FAULT-H1
func TestALogThatCannotBeReadHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		disk := &hung{make(chan struct{}, 1000), make(chan struct{})}
		f := NewFailures(Options{To: &out, Tail: disk.tail})
		began := time.Now()
		var many []role.Failure
		for i := range 100 {
			many = append(many, failed(role.Name(fmt.Sprintf("r%d", i)), "/nfs/stderr.log"))
		}
		for range 50 {
			f.Tell(inPlace(many...))
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("whoever tells of failures waits for %s", waited)
		}
		flushed(t, f)
		if shown := strings.Count(out.String(), "failed (reported)"); shown != 50*100 {
			t.Errorf("%d failures are shown, want all 5000", shown)
		}
		if n := len(disk.reads); n > mostStuck {
			t.Errorf("%d reads hang", n)
		}
		if took := time.Since(began); took > mostStuck*readTime {
			t.Errorf("all are shown after %s", took)
		}
		for _, why := range []string{"the disk has not answered within 2s", "the disk has not answered yet when logs were read before"} {
			if !strings.Contains(out.String(), why) {
				t.Errorf("nothing says: %s", why)
			}
		}

		close(disk.answer) // and logs are shown again
		synctest.Wait()
		out.Reset()
		f.Tell(inPlace(failed("critic", "/nfs/stderr.log")))
		flushed(t, f)
		if !strings.Contains(out.String(), "    | at last\n") {
			t.Errorf("the disk answers, and %s", out.String())
		}
	})
}
