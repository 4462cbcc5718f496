package caller

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds every wait of this package's tests.
const patience = time.Minute

// stranger is another user of the machine.
const stranger = 65533

// pair returns both ends of a TCP connection to a listener on addr. With a uid, the client's socket is
// that user's.
func pair(t *testing.T, network, addr, dial string, uid int) (server, client *net.TCPConn) {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Skipf("SKIPPED: %s on %s: %v", network, addr, err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	d := net.Dialer{Timeout: patience}
	if uid >= 0 {
		needRoot(t)
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var owned error
			return errors.Join(raw.Control(func(fd uintptr) { owned = unix.Fchown(int(fd), uid, uid) }), owned)
		}
	}
	c, err := d.Dial("tcp", net.JoinHostPort(dial, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.(*net.TCPConn), c.(*net.TCPConn)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOTHING IS SHOWN: only root can give a socket to another user")
	}
}

// ways are the two ways to ask the kernel.
var ways = map[string]func(local, remote netip.AddrPort) (socket, error){"sock_diag": bySockDiag, "proc": byProc}

// shows: FAULT-A3
func TestTheKernelSaysWhoseConnectionItIs(t *testing.T) {
	for _, at := range []struct{ network, listen, dial string }{
		{"tcp4", "127.0.0.1:0", "127.0.0.1"},
		{"tcp4", "127.0.0.2:0", "127.0.0.2"},
		{"tcp6", "[::1]:0", "::1"},
		{"tcp", "[::]:0", "127.0.0.1"},              // the server's end is v4-mapped
		{"tcp4", "127.0.0.1:0", "::ffff:127.0.0.1"}, // so is how the client has dialled
	} {
		for _, uid := range []int{-1, stranger} {
			t.Run(at.listen+" "+at.dial, func(t *testing.T) {
				server, client := pair(t, at.network, at.listen, at.dial, uid)
				want := uid
				if uid < 0 {
					want = os.Geteuid()
				}
				local, _ := addrOf(server.RemoteAddr())
				remote, _ := addrOf(server.LocalAddr())
				for name, way := range ways {
					if s, err := way(local, remote); err != nil || s.uid != want || s.inode == 0 {
						t.Errorf("%s: %+v %v, want uid %d", name, s, err, want)
					}
				}
				if got, err := Of(server).UID(); err != nil || got != want {
					t.Errorf("caller %d %v, want %d", got, err, want)
				}
				if err := client.CloseWrite(); err != nil { // it may still read the answer
					t.Fatal(err)
				}
				if got, err := Of(server).UID(); err != nil || got != want {
					t.Errorf("caller that has ended its half: %d %v, want %d", got, err, want)
				}
			})
		}
	}
}

// dualStack makes a client whose socket is of IPv6 and whose connection is of IPv4.
func TestASocketOfIPv6ThatSpeaksIPv4IsFound(t *testing.T) {
	needRoot(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, stranger, stranger); err != nil {
		t.Fatal(err)
	}
	to := &unix.SockaddrInet6{Port: l.Addr().(*net.TCPAddr).Port, Addr: netip.MustParseAddr("::ffff:127.0.0.1").As16()}
	if err := unix.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	local, _ := addrOf(server.RemoteAddr())
	remote, _ := addrOf(server.LocalAddr())
	for name, way := range ways {
		if s, err := way(local, remote); err != nil || s.uid != stranger {
			t.Errorf("%s: %+v %v, want uid %d", name, s, err, stranger)
		}
	}
}

// shows: FAULT-A3
func TestWhoHasClosedItsSocketIsNobodyAndNotRoot(t *testing.T) {
	for name, end := range map[string]func(*net.TCPConn) error{
		"closed": (*net.TCPConn).Close,
		"reset":  func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) },
	} {
		server, client := pair(t, "tcp4", "127.0.0.1:0", "127.0.0.1", stranger)
		if _, err := client.Write([]byte("POST / HTTP/1.1\r\n")); err != nil {
			t.Fatal(err)
		}
		if err := end(client); err != nil {
			t.Fatal(err)
		}
		if uid, err := Of(server).UID(); err == nil {
			t.Errorf("%s: the caller is user %d, want nobody", name, uid)
		}
		local, _ := addrOf(server.RemoteAddr())
		remote, _ := addrOf(server.LocalAddr())
		for way, look := range ways {
			if s, err := look(local, remote); err == nil {
				if uid, err := s.owner(); err == nil {
					t.Errorf("%s by %s: the caller is user %d, want nobody", name, way, uid)
				}
			}
		}
	}
}

func TestAnotherConnectionWithTheSameAddressesIsNotTakenForOurs(t *testing.T) {
	needRoot(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	connect := func(from net.Addr, uid int) (server net.Conn, client *net.TCPConn) {
		t.Helper()
		d := net.Dialer{Timeout: patience, LocalAddr: from, Control: func(_, _ string, raw syscall.RawConn) error {
			var owned error
			return errors.Join(raw.Control(func(fd uintptr) { owned = unix.Fchown(int(fd), uid, uid) }), owned)
		}}
		c, err := d.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if server, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		return server, c.(*net.TCPConn)
	}
	first, client := connect(nil, stranger)
	if _, err := client.Write([]byte("POST /critic/stop_service HTTP/1.1\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(client.SetLinger(0), client.Close()); err != nil { // it is reset, so its port is free at once
		t.Fatal(err)
	}
	second, _ := connect(client.LocalAddr(), 0)
	if first.RemoteAddr().String() != second.RemoteAddr().String() {
		t.Fatalf("two connections from %s and %s, want the same", first.RemoteAddr(), second.RemoteAddr())
	}
	if uid, err := Of(first).UID(); err == nil {
		t.Errorf("a connection of user %d that was reset is taken for one of user %d", stranger, uid)
	}
	if uid, err := Of(second).UID(); err != nil || uid != 0 {
		t.Errorf("the one that stands: user %d %v, want 0", uid, err)
	}
}

func TestACallerIsAskedAboutOnceAndAgainOnlyWhereNothingWasFound(t *testing.T) {
	asked := 0
	answer := errors.New("not now")
	c := &Caller{ask: func() (int, error) { asked++; return 7, answer }}
	if _, err := c.UID(); !errors.Is(err, answer) {
		t.Errorf("error %v", err)
	}
	answer = nil
	for range 3 {
		if uid, err := c.UID(); uid != 7 || err != nil {
			t.Errorf("caller %d %v", uid, err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times, want twice", asked)
	}
	if uid, err := Known(8).UID(); uid != 8 || err != nil {
		t.Errorf("known caller %d %v", uid, err)
	}
	if _, err := From(context.Background()).UID(); err == nil {
		t.Error("a request without a connection has a caller")
	}
	if uid, _ := From(With(context.Background(), Known(9))).UID(); uid != 9 {
		t.Errorf("caller %d of the context, want 9", uid)
	}
}

func TestWhatCannotBeAskedIsAnError(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, err := Of(a).UID(); err == nil || !strings.Contains(err.Error(), "net.pipe") {
		t.Errorf("a pipe: %v", err)
	}
	for _, m := range [][]byte{nil, make([]byte, headerSize), make([]byte, headerSize+8)} {
		if _, err := readDiag(m); err == nil {
			t.Errorf("an answer of %d bytes was taken", len(m))
		}
	}
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 00000000 many 0 77 1\n"
	local, remote := netip.MustParseAddrPort("127.0.0.1:8000"), netip.MustParseAddrPort("127.0.0.1:40000")
	if _, found, err := inTable(strings.NewReader(table), local, remote); found || err == nil {
		t.Errorf("a user that is no number: %v %v", found, err)
	}
}

// hides wraps a connection and keeps its descriptor to itself; passes does not.
type (
	hides  struct{ net.Conn }
	passes struct{ *net.TCPConn }
)

func TestWhatWrapsAConnectionMustSayWhatItWraps(t *testing.T) {
	server, _ := pair(t, "tcp4", "127.0.0.1:0", "127.0.0.1", -1)
	if uid, err := Of(hides{server}).UID(); err == nil || !strings.Contains(err.Error(), "caller.hides has no descriptor") {
		t.Errorf("a wrapper that hides what it wraps: %d %v", uid, err)
	}
	if uid, err := Of(passes{server}).UID(); err != nil || uid != os.Geteuid() {
		t.Errorf("a wrapper that passes it on: %d %v", uid, err)
	}
}

func TestTLSIsLookedThrough(t *testing.T) {
	server, _ := pair(t, "tcp4", "127.0.0.1:0", "127.0.0.1", -1)
	if uid, err := Of(tls.Server(server, &tls.Config{})).UID(); err != nil || uid != os.Geteuid() {
		t.Errorf("caller %d %v", uid, err)
	}
}

// shows: FAULT-A3
func TestAUnixSocketThatIsOpenToAllServesItsOwnerOnly(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	refused := make(chan error, 1)
	go func() {
		for {
			c, err := OwnersOnly(l, func(err error) { refused <- err }).Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("welcome\n"))
			c.Close()
		}
	}()
	// SO_PEERCRED is who has connected: a thread of ours that is another user meanwhile.
	as := func(uid int) string {
		c, err := dialAs(path, uid)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(patience))
		line, _ := bufio.NewReader(c).ReadString('\n')
		return line
	}
	if got := as(0); got != "welcome\n" {
		t.Errorf("the owner got %q", got)
	}
	if got := as(stranger); got != "" {
		t.Errorf("another user got %q", got)
	}
	select {
	case err := <-refused:
		if !strings.Contains(err.Error(), "user 65533") {
			t.Errorf("refused: %v", err)
		}
	case <-time.After(patience):
		t.Error("nobody was refused")
	}
}

func BenchmarkAsking(b *testing.B) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	server, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	for b.Loop() {
		if _, err := Of(server).UID(); err != nil {
			b.Fatal(err)
		}
	}
}
