package notify

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// shows: FAULT-A1
func TestWhatAWordMayDoIsForItsSenderToDecide(t *testing.T) {
	everybody := []Sender{FromWorker, FromBelow, FromTree, FromGone, FromHelper, FromForeign}
	for kind := Kind(1); kind <= lastKind; kind++ {
		for _, sender := range everybody {
			want := Taken
			switch {
			case sender == FromHelper, sender == FromForeign:
				want = Dropped
			case kind != Uncaught, sender == FromWorker:
			case sender == FromBelow:
				want = Held
			default:
				want = Evidence
			}
			if got := Judge(sender, kind); got != want {
				t.Errorf("kind %d of %s is %s, want %s", kind, sender, got, want)
			}
		}
	}
	if got := Judge(0, Step); got != Verdict(0) && got != Dropped {
		t.Errorf("a sender that nobody knows: %s", got)
	}
	if Judge(FromWorker, lastKind+1) != Dropped {
		t.Error("a kind that is in no row is taken")
	}
}

// table renders the rights as the documentation shows them.
func table() string {
	var b strings.Builder
	b.WriteString("| said by |")
	for _, r := range rights {
		fmt.Fprintf(&b, " %s |", r.words)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(rights)+1) + "\n")
	for s := FromWorker; s <= lastSender; s++ {
		fmt.Fprintf(&b, "| %s |", s)
		for _, r := range rights {
			fmt.Fprintf(&b, " %s |", r.by[s])
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestTheDocumentationShowsTheTableOfSendersAndWords(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/reference/words.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := table(); !strings.Contains(string(doc), want) {
		t.Errorf("docs/reference/words.md does not have this table:\n%s", want)
	}
}

func TestTheKernelSaysWhoHasSentADatagram(t *testing.T) {
	path := filepath.Join(shortDir(t), "n")
	var h heard
	r, err := Listen(path, h.take, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	me := Credentials{PID: os.Getpid(), UID: uint32(os.Geteuid())}
	said := func(what string, want Credentials) {
		t.Helper()
		r.Drain()
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.from != want || len(h.words) == 0 {
			t.Errorf("%s: %+v said %v, want %+v", what, h.from, h.words, want)
		}
		h.words, h.from = nil, Credentials{}
	}
	if err := Send(path, "READY=1"); err != nil {
		t.Fatal(err)
	}
	said("sent", me)
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("READY=1")); err != nil {
		t.Fatal(err)
	}
	said("connected", me)
	before := openFiles(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Sendmsg(fd, []byte("READY=1"), unix.UnixRights(int(null.Fd())), &unix.SockaddrUnix{Name: path}, 0)
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	null.Close()
	said("with a descriptor, as FDSTORE=1 has", me)
	if now := openFiles(t); now > before {
		t.Errorf("%d files are open, %d were: a sender's descriptor was kept", now, before)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("SKIPPED: python3 is not installed")
	}
	child := exec.Command(python, "-c", `import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", sys.argv[1])`, path)
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	said("a child that has ended", Credentials{PID: child.Process.Pid, UID: me.UID})
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func BenchmarkReceive(b *testing.B) {
	dir, err := os.MkdirTemp("/tmp", "v")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "n")
	r, err := Listen(path, func(Credentials, []Word) {}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write([]byte("X_VIGIL_STEP=12345")); err != nil {
			b.Fatal(err)
		}
	}
}
