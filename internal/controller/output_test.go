package controller

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vigil/internal/job"
)

const teeJob = `
name: tee
roles:
  actor: {command: [true], workers: 2}
  critic: {command: [true]}
`

func TestWhoseOutputIsShownIsWhatWasAskedFor(t *testing.T) {
	j, err := job.Parse("job.yaml", []byte(teeJob), "/")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		words         []string
		actor0, actor bool // rank 0, rank 1
		critic        bool
	}{
		{[]string{"all"}, true, true, true},
		{[]string{"actor"}, true, true, false},
		{[]string{"actor:1"}, false, true, false},
		{[]string{"actor:1", "actor"}, true, true, false},
		{[]string{"actor", "actor:1"}, true, true, false},
		{[]string{"actor:0", "critic:0"}, true, false, true},
		{nil, false, false, false},
	} {
		s, err := selectOutput(j, one.words)
		if err != nil {
			t.Errorf("%v: %v", one.words, err)
		}
		if got := [3]bool{s.has("actor", 0), s.has("actor", 1), s.has("critic", 0)}; got != [3]bool{one.actor0, one.actor, one.critic} {
			t.Errorf("%v shows actor 0, actor 1, critic 0: %v", one.words, got)
		}
	}
	_, err = selectOutput(j, []string{"actr", "actor:2", "actor:x", "critic"})
	if err == nil || strings.Count(err.Error(), "\n") != 2 || !strings.Contains(err.Error(), `did you mean "actor"?`) {
		t.Errorf("the complaint is %v, want a line for each of three mistakes", err)
	}
}

// screen is a terminal that can be read by a test.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// shows: A80
func TestALogThatIsBegunAnewIsShownOnWithoutALineLost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout.log")
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := io.WriteString(f, text); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	var shown screen
	var gone atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		follow(path, io.SeekStart, gone.Load, &prefixed{to: &terminal{w: &shown}, prefix: "[actor 0] "})
	}()
	await := func(text string) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(patience); !strings.Contains(shown.String(), text); <-tick.C {
			if time.Now().After(deadline) {
				t.Fatalf("%q is not shown, but %q", text, shown.String())
			}
		}
	}
	await("first")
	write("last before\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("first after\n")
	await("first after")
	write("without end")
	gone.Store(true)
	<-ended
	if want := "[actor 0] first\n[actor 0] last before\n[actor 0] first after\n[actor 0] without end\n"; shown.String() != want {
		t.Errorf("shown is %q, want %q", shown.String(), want)
	}
}

func TestATerminalThatTakesNothingIsGivenUpAtTheEnd(t *testing.T) {
	slow(t)
	path := filepath.Join(t.TempDir(), "stdout.log")
	if err := os.WriteFile(path, fmt.Appendln(nil, "a line"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe() // nobody reads
	defer r.Close()
	out := &terminal{w: w}
	var following sync.WaitGroup
	following.Go(func() { follow(path, io.SeekStart, func() bool { return true }, &prefixed{to: out}) })
	err := out.finish(context.Background(), &following) // which returns, although nobody reads
	if err == nil || !strings.Contains(err.Error(), "the terminal has taken nothing") {
		t.Errorf("the error is %v", err)
	}
}
