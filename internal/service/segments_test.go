package service

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vigil/internal/job"
	"vigil/internal/proc"
)

// wholeLog is what a reader of all files of a log reads.
func wholeLog(t *testing.T, path string) (text string, names []string) {
	t.Helper()
	for _, file := range proc.Segments(path) {
		text += readFile(t, file)
		names = append(names, filepath.Base(file))
	}
	return text, names
}

// Of a log that grows too large its beginning and its newest stay, in whole lines, and one line says what lies between.
// shows: FAULT-I11
func TestOfALargeLogTheBeginningAndTheNewestStay(t *testing.T) {
	path := filesIn(t).stdout
	logs := job.Logs{First: 500, MaxSize: 3000, Keep: 3}
	l := startLog(newSegmented(path, logs), time.Second, func(err error) { t.Error(err) })
	line := func(i int) string { return fmt.Sprintf("line %04d %s\n", i, strings.Repeat("x", 40)) }
	const lines = 2000
	for i := range lines {
		l.put([]byte(line(i)))
		if i%10 == 0 { // so that files are not filled in one go
			l.flush(time.Now().Add(time.Minute))
		}
	}
	l.close()
	text, names := wholeLog(t, path)
	if len(names) != 1+3+1 || names[0] != "stdout.first.log" || names[4] != "stdout.log" {
		t.Fatalf("there are %v", names)
	}
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != len(names) {
		t.Errorf("there are more files than a reader reads: %v, %v", all, err)
	}
	var said, missing int64
	next, kept := 0, int64(0)
	for _, got := range strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n") {
		got = strings.TrimSuffix(got, "\n") + "\n"
		if n, _ := fmt.Sscanf(got, "[vigil: %d bytes of output are left out here", &said); n == 1 {
			for next < lines && !strings.Contains(text, line(next)) {
				missing += int64(len(line(next)))
				next++
			}
			continue
		}
		if strings.TrimSpace(got) == "" {
			continue
		}
		if got != line(next) {
			t.Fatalf("line %d reads %q", next, got)
		}
		kept += int64(len(got))
		next++
	}
	if next != lines {
		t.Errorf("the last line that is there is %d", next-1)
	}
	if said == 0 || said != missing {
		t.Errorf("it is said that %d bytes are left out, and %d are", said, missing)
	}
	if strings.Count(text, "left out here") != 1 {
		t.Errorf("it is said %d times", strings.Count(text, "left out here"))
	}
	if newest := kept - logs.First; newest < logs.MaxSize-200 || newest > 2*logs.MaxSize {
		t.Errorf("%d bytes of the newest are kept", newest)
	}
	if tail := proc.Tail(path, 40); len(tail) != 40 || tail[39]+"\n" != line(lines-1) || tail[0]+"\n" != line(lines-40) {
		t.Errorf("the last 40 lines are %d, from %q", len(tail), tail[:min(1, len(tail))])
	}
}

func TestALogThatIsSmallIsOneFile(t *testing.T) {
	path := filesIn(t).stdout
	l := startLog(newSegmented(path, job.Logs{First: 500, MaxSize: 3000, Keep: 3}), time.Second, func(err error) { t.Error(err) })
	l.put([]byte("one\ntwo\n"))
	l.close()
	if text, names := wholeLog(t, path); text != "one\ntwo\n" || len(names) != 1 {
		t.Errorf("%q in %v", text, names)
	}
}

func TestALineWithoutEndIsDividedAndNothingOfItIsLost(t *testing.T) {
	path := filesIn(t).stdout
	r := newSegmented(path, job.Logs{First: 1000, MaxSize: 1_000_000, Keep: 1000})
	endless := strings.Repeat("y", 500_000)
	if n, err := io.WriteString(r, endless); n != len(endless) || err != nil {
		t.Fatalf("wrote %d bytes: %v", n, err)
	}
	r.Close()
	text, names := wholeLog(t, path)
	if text != endless {
		t.Errorf("%d bytes are in the log, want %d", len(text), len(endless))
	}
	for _, name := range names {
		if size := len(readFile(t, filepath.Join(filepath.Dir(path), name))); size > 1000+longestOver {
			t.Errorf("%s has %d bytes", name, size)
		}
	}
}
