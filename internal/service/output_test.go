package service

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"vigil/api"
	"vigil/internal/job"
)

// filesIn names the logs of a life in a folder of the test.
func filesIn(t *testing.T) lifeFiles {
	dir := t.TempDir()
	return lifeFiles{stdout: filepath.Join(dir, "stdout.log"), stderr: filepath.Join(dir, "stderr.log")}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// speak has a shell script write on an output, and waits for its end.
func speak(t *testing.T, o *output, script string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Stdout, cmd.Stderr = o.childEnds[0], o.childEnds[1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o.started()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	o.drain()
}

// shows: A81
func TestWhateverAWorkerWritesIsInItsLogByteForByte(t *testing.T) {
	files := filesIn(t)
	o, err := openOutput(files, job.Logs{}, nil, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	speak(t, o, `printf 'whole\nnul\000bad\377\376 '; head -c 3000000 /dev/zero | tr '\0' x; printf '\nlast without end'; printf 'Traceback:\n  File "x"\nRuntimeError: nan' >&2`)
	want := "whole\nnul\x00bad\xff\xfe " + strings.Repeat("x", 3_000_000) + "\nlast without end"
	if got := readFile(t, files.stdout); got != want {
		t.Errorf("stdout.log has %d bytes, want %d, or other ones", len(got), len(want))
	}
	if got := o.stderr.last(2); !slices.Equal(got, []string{`  File "x"`, "RuntimeError: nan"}) {
		t.Errorf("the last lines of standard error are %q", got)
	}
	if got := o.stdout.last(20); got[len(got)-1] != "last without end" {
		t.Errorf("the last line of standard output is %q", got[len(got)-1])
	}
	o.close()
}

func TestAPipeThatSomebodyStillHoldsIsReadOnForAWhileAndHoldsNobodyUp(t *testing.T) {
	slow(t)
	files := filesIn(t)
	o, err := openOutput(files, job.Logs{}, nil, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	flooding := exec.Command("/bin/sh", "-c", "exec yes flood")
	flooding.Stdout = o.childEnds[0]
	if err := flooding.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	speak(t, o, "printf 'said before the end'") // which returns, although somebody holds the pipe
	o.close()
	if took := time.Since(began); took < drainTime {
		t.Errorf("output was read on for only %s", took)
	}
	if err := flooding.Wait(); err == nil { // SIGPIPE, now that nobody reads
		t.Error("the one who held the pipe was not told that nobody reads")
	}
	if !strings.Contains(readFile(t, files.stdout), "said before the end") {
		t.Error("what the worker said is not in the log")
	}
}

// disk is a sink whose room is what a test says.
type disk struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	err   error         // of every write
	stuck chan struct{} // writes wait for it
}

func (d *disk) Write(p []byte) (int, error) {
	d.mu.Lock()
	stuck := d.stuck
	d.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return 0, d.err
	}
	return d.buf.Write(p)
}

func (d *disk) Close() error { return nil }

func (d *disk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *disk) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.buf.String()
}

// shows: A81
func TestAFullDiskLosesNothingThatFitsIntoMemory(t *testing.T) {
	synctest.Test(t, fullDiskLosesNothing)
}

func fullDiskLosesNothing(t *testing.T) {
	d := &disk{err: unix.ENOSPC}
	var said []error
	l := startLog(d, time.Millisecond, func(err error) { said = append(said, err) })
	for i := range 1000 {
		l.put(fmt.Appendf(nil, "line %d\n", i))
	}
	synctest.Wait() // the first write has failed
	d.fail(nil)
	l.close()
	if got := strings.Count(d.text(), "\n"); got != 1000 || !strings.HasPrefix(d.text(), "line 0\n") {
		t.Errorf("%d lines are in the log, want all 1000 from the first on", got)
	}
	if len(said) != 1 || !errors.Is(said[0], unix.ENOSPC) {
		t.Errorf("it was said %d times: %v, want once that the disk is full", len(said), said)
	}
}

// shows: A81
// In fake time, which passes only where somebody waits.
// shows: FAULT-L1
func TestWhatAFullDiskCostsIsCountedAndTheWriterIsNotHeldUp(t *testing.T) {
	synctest.Test(t, fullDiskIsCounted)
}

func fullDiskIsCounted(t *testing.T) {
	d := &disk{err: unix.ENOSPC}
	var said []error
	l := startLog(d, time.Millisecond, func(err error) { said = append(said, err) })
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	l.put(chunk)
	synctest.Wait() // the first write has failed
	began := time.Now()
	for range 1000 {
		l.put(chunk)
	}
	if took := time.Since(began); took > 0 {
		t.Errorf("writing to a full disk took %s", took)
	}
	lost := l.dropped()
	if lost < 1000*64<<10-2*maxPending || lost > 1000*64<<10 {
		t.Errorf("%d bytes are counted as lost", lost)
	}
	d.fail(nil)
	<-time.After(time.Minute) // what waited is written
	l.put([]byte("room again\n"))
	l.close()
	if want := fmt.Sprintf("\n[vigil: %d bytes of output are missing here: the log could not be written]\nroom again\n", lost); !strings.HasSuffix(d.text(), want) {
		t.Errorf("the log ends with %q, want %q", d.text()[max(0, d.buf.Len()-200):], want)
	}
	if len(said) != 2 {
		t.Errorf("it was said %d times: %v, want once at the beginning and once the sum", len(said), said)
	}
}

func TestADiskThatHangsHoldsAWorkerUpOnceAndNotAgain(t *testing.T) { synctest.Test(t, diskHangs) }

func diskHangs(t *testing.T) {
	d := &disk{stuck: make(chan struct{})}
	l := startLog(d, time.Millisecond, func(error) {})
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	began := time.Now()
	for range 100 {
		l.put(chunk)
	}
	if took := time.Since(began); took != stallTime {
		t.Errorf("100 MiB took %s, want %s", took, stallTime)
	}
	close(d.stuck)
	l.close()
	if l.dropped() == 0 {
		t.Error("nothing was dropped")
	}
}

// shows: A81
func TestAFullDiskKillsNoWorkerAndTakesNoTraceback(t *testing.T) {
	r := workerOf(`head -c 2000000 /dev/zero | tr '\0' x && echo "RuntimeError: nan" >&2 && exit 3`)
	s := newStage(t, r)
	for rank := range 2 {
		dir := filepath.Join(s.logDir(), "critic", "1", fmt.Sprintf("%d.1", rank))
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"stdout.log", "stderr.log"} {
			if err := os.Symlink("/dev/full", filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.start()
	s.joined()
	s.must(run(1))
	s.ears.await(t, "the end of both ranks", func() bool { return len(s.ears.failures) == 2 })
	for _, f := range s.ears.failed() {
		if f.Exit == nil || f.Exit.Code != 3 || !slices.Equal(f.Exit.Tail, []string{"RuntimeError: nan"}) {
			t.Errorf("rank %d ended with %+v, want exit code 3 and the last line", f.Life.Rank, f.Exit)
		}
	}
	s.must(stop(&api.Stop{AfterFailure: true}))
	s.ears.await(t, "the full disk to be said, once for each of 4 logs", func() bool {
		n := 0
		for _, text := range s.ears.notices {
			if strings.Contains(text, "no space left on device") {
				n++
			}
		}
		return n == 4
	})
}

// shows: A80
func TestWhatIsStillSaidAfterAWorkersEndGoesToItsOwnLogAndNoOther(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	r := workerOf(`if [ $VIGIL_INCARNATION = 1 ]; then (until [ -e "$GATE" ]; do sleep 0.02; done; echo late; exec sleep 1000) & echo early; exit 4; fi; echo second; exec sleep 1000`)
	r.Env["GATE"] = gate
	s := enter(t, r)
	s.must(run(1))
	s.ears.await(t, "the end of both ranks", func() bool { return len(s.ears.failures) == 2 })
	openGate(t, gate)
	s.awaitLog(1, 0, "late")
	s.must(stop(&api.Stop{AfterFailure: true}))
	s.must(run(2))
	s.awaitLog(2, 0, "second")
	s.must(stop(&api.Stop{}))
	if one, two := s.log(1, 0, "stdout"), s.log(2, 0, "stdout"); one != "early\nlate\n" || two != "second\n" {
		t.Errorf("the logs are %q and %q", one, two)
	}
}

// BenchmarkFlood is a worker that writes as fast as it can.
func BenchmarkFlood(b *testing.B) {
	for _, with := range []struct {
		name    string
		pattern string
	}{{"plain", ""}, {"pattern", `iteration\s+(\d+)`}} {
		b.Run(with.name, func(b *testing.B) {
			files := lifeFiles{stdout: os.DevNull, stderr: os.DevNull}
			var scan func() func([]byte)
			if with.pattern != "" {
				s := &Service{opts: Options{Role: job.Role{Progress: job.Progress{Source: job.FromPattern, Pattern: with.pattern}}}}
				scan = s.scanOf(nil)
			}
			o, err := openOutput(files, job.Logs{}, scan, func(string) {})
			if err != nil {
				b.Fatal(err)
			}
			const size = 512 << 20
			b.SetBytes(size)
			for b.Loop() {
				cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("yes 'a line as programs print them, loss 0.1234' | head -c %d", size))
				cmd.Stdout = o.childEnds[0]
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
				o.drain()
			}
			if lost := o.stdout.log.dropped(); lost > 0 {
				b.Errorf("%d bytes were lost", lost)
			}
			o.close()
		})
	}
}
