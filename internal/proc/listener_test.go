package proc

import (
	"net"
	"os"
	"testing"
)

// It does not run beside tests that start processes: until a child has run its program, it has the sockets of all.
func TestWhoListensOnAPortIsFoundAndNobodyElse(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		who, found := ListenerOn(port)
		if !found || who.PID != os.Getpid() || who.UID != os.Geteuid() || !who.Below(os.Getpid()) || !who.Below(os.Getppid()) || who.Below(1<<22) {
			t.Errorf("%s: %+v, %t", l.Addr(), who, found)
		}
		// Somebody who is only connected to it listens on nothing.
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		from := c.LocalAddr().(*net.TCPAddr).Port
		if who, found := ListenerOn(from); found {
			t.Errorf("%+v does not listen on %d", who, from)
		}
		_ = c.Close()
		_ = l.Close()
		if who, found := ListenerOn(port); found {
			t.Errorf("%+v listens still", who)
		}
	}
}

// A port is held while connections that its side has closed linger on it, or live, and nobody listens.
// It does not run beside tests that start processes, as the one above.
// shows: FAULT-F4
func TestAPortThatEarlierConnectionsHoldIsKnownByThem(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if state := Lingering(port); state != "" {
		t.Errorf("somebody listens: held by %q", state)
	}
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if state := Lingering(port); state != "ESTABLISHED" {
		t.Errorf("a connection lives: held by %q", state)
	}
	_ = served.Close()
	_ = c.Close()
	eventually(t, "the connection lingers", func() bool { return Lingering(port) == "TIME_WAIT" })
	if state := Lingering(1); state != "" {
		t.Errorf("a port that nobody uses: held by %q", state)
	}
	again, err := net.Listen("tcp4", l.Addr().String()) // Go sets SO_REUSEADDR
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if state := Lingering(port); state != "" {
		t.Errorf("somebody listens again: held by %q", state)
	}
}
