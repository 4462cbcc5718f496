package notify

import (
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestADatagramIsReadLineByLine(t *testing.T) {
	tests := []struct {
		name string
		in   string
		want []Word
		junk string // part of the complaint; empty: none
	}{
		{"everything that sd_notify and we know", "READY=1\nSTATUS=warming up\nWATCHDOG=1\nSTOPPING=1\nEXTEND_TIMEOUT_USEC=5000000\n",
			[]Word{{Kind: Ready}, {Kind: Status, Text: "warming up"}, {Kind: Alive}, {Kind: Stopping}, {Kind: Extend, Time: 5 * time.Second}}, ""},
		{"our own keys in order", "X_VIGIL_STEP=7\nX_VIGIL_ACK=3\nX_VIGIL_STEP=8\nX_VIGIL_CHECKPOINT=6",
			[]Word{{Kind: Step, Number: 7}, {Kind: Ack, Number: 3}, {Kind: Step, Number: 8}, {Kind: Checkpoint, Number: 6}}, ""},
		{"an error keeps its equal signs", "X_VIGIL_ERROR=a=b=c\nX_VIGIL_FATAL=1", []Word{{Kind: Error, Text: "a=b=c"}, {Kind: Fatal}}, ""},
		{"a trigger is a failure, not a sign of life", "WATCHDOG=trigger", []Word{{Kind: Trigger}}, ""},
		{"the largest step", "X_VIGIL_STEP=9223372036854775807", []Word{{Kind: Step, Number: math.MaxInt64}}, ""},
		{"unknown keys are silent", "MAINPID=4\nX_SOMEBODY=hello\nFDSTORE=1", nil, ""},
		{"nothing at all", "", nil, ""},
		{"a step beyond 63 bits is junk", "X_VIGIL_STEP=9223372036854775808", nil, "X_VIGIL_STEP"},
		{"a negative step is junk", "X_VIGIL_STEP=-1", nil, "X_VIGIL_STEP"},
		{"a step with a plus is junk", "X_VIGIL_STEP=+1", nil, "X_VIGIL_STEP"},
		{"a step that is no number is junk, the other lines count", "X_VIGIL_STEP=ten\nREADY=1", []Word{{Kind: Ready}}, `step "ten"`},
		{"a line without an equal sign is junk, the other lines count", "hello\nX_VIGIL_STEP=1", []Word{{Kind: Step, Number: 1}}, `"hello"`},
		{"a flag that is not 1 is junk", "READY=yes", nil, `READY="yes"`},
		{"what is not UTF-8 is junk as a whole", "READY=1\nSTATUS=\xff\xfe", nil, "UTF-8"},
		{"what is too long is junk as a whole", "READY=1\n" + strings.Repeat("x", MaxDatagram), nil, "more than 65536 bytes"},
		{"phases are opened, closed and followed by the next", "X_VIGIL_PHASE=+eval\nX_VIGIL_PHASE=-eval\nX_VIGIL_PHASE=save shard",
			[]Word{{Kind: PhaseBegin, Text: "eval"}, {Kind: PhaseEnd, Text: "eval"}, {Kind: PhaseNext, Text: "save shard"}}, ""},
		{"a phase without a name is junk", "X_VIGIL_PHASE=+", nil, "want the name of a phase"},
		{"a phase name of 10 kB is refused, the other lines count", "X_VIGIL_PHASE=+" + strings.Repeat("p", 10_000) + "\nX_VIGIL_STEP=1",
			[]Word{{Kind: Step, Number: 1}}, "a name of 10000 bytes, 64 are the most"},
		{"a phase name of 64 bytes is the longest", "X_VIGIL_PHASE=" + strings.Repeat("p", 64), []Word{{Kind: PhaseNext, Text: strings.Repeat("p", 64)}}, ""},
		{"a phase name that would steer a terminal is junk", "X_VIGIL_PHASE=a\x1b[2J", nil, "control characters"},
		{"a hook says that it guesses", "X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=3", []Word{{Kind: Guessed, Text: "hook"}, {Kind: Step, Number: 3}}, ""},
		{"an error that a hook reports is one that nobody has caught", "X_VIGIL_ERROR=ValueError: 3\nX_VIGIL_SOURCE=hook",
			[]Word{{Kind: Uncaught, Text: "ValueError: 3"}, {Kind: Guessed, Text: "hook"}}, ""},
		{"a source that nobody knows is junk", "X_VIGIL_SOURCE=stars\nX_VIGIL_STEP=3", []Word{{Kind: Step, Number: 3}}, "want hook"},
		{"a signal that is armed is named", "X_VIGIL_FAULTHANDLER=SIGUSR1", []Word{{Kind: Armed, Text: "SIGUSR1"}}, ""},
		{"a signal that does not exist is junk", "X_VIGIL_FAULTHANDLER=USR", nil, "want the name of a signal"},
		{"an endless extension is cut, not wrapped", "EXTEND_TIMEOUT_USEC=9223372036854775807", []Word{{Kind: Extend, Time: math.MaxInt64 / 1000 * 1000}}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.in))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("words (-want +got):\n%s", diff)
			}
			switch {
			case tt.junk == "" && err != nil:
				t.Errorf("unexpected complaint: %v", err)
			case tt.junk != "" && (!errors.Is(err, ErrJunk) || !strings.Contains(err.Error(), tt.junk)):
				t.Errorf("complaint %v, want ErrJunk with %q", err, tt.junk)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"READY=1", "X_VIGIL_STEP=12\nWATCHDOG=1", "=\n=\n", "X_VIGIL_STEP=-0", "STATUS=\x80", "EXTEND_TIMEOUT_USEC=9999999999999999999"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		words, err := Parse(in)
		if err != nil && !errors.Is(err, ErrJunk) {
			t.Errorf("error %v is not ErrJunk", err)
		}
		if len(words) > strings.Count(string(in), "\n")+1 {
			t.Errorf("%d words from %q", len(words), in)
		}
		for _, w := range words {
			if w.Number < 0 || w.Time < 0 || strings.Contains(w.Text, "\n") {
				t.Errorf("word %+v from %q", w, in)
			}
		}
	})
}

// shortDir is a folder whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// heard collects words.
type heard struct {
	mu    sync.Mutex
	words []Word
	from  Credentials // of the last one
}

func (h *heard) take(from Credentials, w []Word) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.from = from
	h.words = append(h.words, w...)
}

func TestTheLastWordsOfADeadWorkerAreHandledInOrderByDrain(t *testing.T) {
	path := filepath.Join(shortDir(t), "n")
	var h heard
	r, err := Listen(path, h.take, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v; want 0600", info.Mode(), err)
	}
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const n = 200
	for i := range n {
		if _, err := conn.Write([]byte("X_VIGIL_STEP=" + strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	r.Drain()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.words) != n {
		t.Fatalf("%d words, want %d", len(h.words), n)
	}
	for i, w := range h.words {
		if w != (Word{Kind: Step, Number: int64(i)}) {
			t.Fatalf("word %d is %+v", i, w)
		}
	}
}

func TestJunkIsCountedAndSaidOnce(t *testing.T) {
	path := filepath.Join(shortDir(t), "n")
	var (
		h    heard
		said []error
	)
	r, err := Listen(path, h.take, func(err error) { said = append(said, err) })
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"hello", "\xff", strings.Repeat("y", MaxDatagram+100), "X_VIGIL_STEP=x", "READY=1"} {
		if err := Send(path, s); err != nil {
			t.Fatal(err)
		}
	}
	r.Drain()
	r.Close()
	if r.Junk() != 4 || len(said) != 1 {
		t.Errorf("junk counted %d times and said %d times, want 4 and 1", r.Junk(), len(said))
	}
	if diff := cmp.Diff([]Word{{Kind: Ready}}, h.words); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there after Close: %v", err)
	}
	r.Drain() // a closed socket has nothing to say
	r.Close()
}

func TestNobodyAtTheInboxIsSaidAtOnce(t *testing.T) {
	dir := shortDir(t)
	if err := Send(filepath.Join(dir, "none"), Stop); !errors.Is(err, ErrNobody) {
		t.Errorf("no socket: %v, want ErrNobody", err)
	}
	gone := filepath.Join(dir, "gone")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: gone, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := Send(gone, Stop); !errors.Is(err, ErrNobody) {
		t.Errorf("dead socket: %v, want ErrNobody", err)
	}
}

func TestAFullInboxNeverBlocks(t *testing.T) {
	path := filepath.Join(shortDir(t), "i")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range 100_000 {
		err := Send(path, SetStep(5, int64(i)))
		if err == nil {
			continue
		}
		if errors.Is(err, ErrNobody) || !strings.Contains(err.Error(), "full") {
			t.Errorf("full inbox: %v", err)
		}
		return
	}
	t.Error("an inbox that nobody reads never filled")
}
