package crowd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 2 * time.Minute

// serve serves with at most that many connections, until the test ends.
func serve(t *testing.T, most int, handler http.HandlerFunc) (*Listener, string) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(inner, most)
	server := &http.Server{Handler: handler, ConnState: State, ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return l, l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a request and returns the connection with the answer read.
func ask(t *testing.T, c net.Conn, path string) {
	t.Helper()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("no answer to %s: %v", path, err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
}

// shows: FAULT-H4
func TestTheOldestIdleConnectionMakesRoomForANewOne(t *testing.T) {
	l, addr := serve(t, 4, func(w http.ResponseWriter, r *http.Request) {})
	var all []net.Conn
	for i := range 40 {
		c := dial(t, addr)
		all = append(all, c)
		if i%2 == 0 { // others never say anything
			ask(t, c, "/")
		}
	}
	ask(t, dial(t, addr), "/")
	for i, c := range all[:30] {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatalf("connection %d says something", i)
		}
	}
	if n := l.Shed(); n < 36 {
		t.Errorf("%d connections were closed", n)
	}
}

// shows: FAULT-H4
func TestAConnectionAtWorkIsNotClosed(t *testing.T) {
	began, goOn := make(chan bool), make(chan bool)
	l, addr := serve(t, 2, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			began <- true
			<-goOn
		}
	})
	one, two := dial(t, addr), dial(t, addr)
	answered := make(chan bool)
	for _, c := range []net.Conn{one, two} {
		go func() { ask(t, c, "/slow"); answered <- true }()
		<-began
	}
	waits := dial(t, addr)
	done := make(chan bool)
	go func() { ask(t, waits, "/"); done <- true }()
	select {
	case <-done:
		t.Error("a third connection is served while two are at work")
	case <-time.After(50 * time.Millisecond):
	}
	goOn <- true
	goOn <- true
	<-answered
	<-answered
	<-done
	if l.Shed() > 1 {
		t.Errorf("%d connections were closed", l.Shed())
	}
}

func TestACloseEndsTheWaitForRoom(t *testing.T) {
	began, goOn := make(chan bool), make(chan bool)
	l, addr := serve(t, 1, func(w http.ResponseWriter, r *http.Request) { began <- true; <-goOn })
	busy := dial(t, addr)
	go fmt.Fprint(busy, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-began
	waits := dial(t, addr)
	l.Close()
	if _, err := waits.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that waits is answered after the end")
	}
	close(goOn)
}

func TestStreamsBeyondTheLimitAreRefusedByName(t *testing.T) {
	s := Streams{Most: 2, Why: "64 open files are allowed (ulimit -n)"}
	leave, err := s.Enter()
	_, other := s.Enter()
	if err != nil || other != nil {
		t.Fatal(err, other)
	}
	_, err = s.Enter()
	if full := new(FullError); !errors.As(err, &full) || err.Error() != "as many streams are open as this server keeps (2): 64 open files are allowed (ulimit -n); close one, or try again later" {
		t.Errorf("the third gets %v", err)
	}
	leave()
	leave()
	if _, err := s.Enter(); err != nil {
		t.Error(err)
	}
	if _, err := s.Enter(); err == nil {
		t.Error("leaving twice makes room for two")
	}
}

func TestAHeldConnectionIsNotClosedToMakeRoom(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Hold(inner, 1)
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- c
		}
	}()
	dial(t, l.Addr().String())
	first := <-accepted
	dial(t, l.Addr().String())
	select {
	case <-accepted:
		t.Fatal("a second connection is taken beside the one that is held")
	case <-time.After(50 * time.Millisecond):
	}
	if first.(interface{ NetConn() net.Conn }).NetConn() == nil {
		t.Error("nobody can ask whose the connection is")
	}
	first.Close()
	if c := <-accepted; c == nil || l.Shed() != 0 {
		t.Errorf("%v, %d were closed", c, l.Shed())
	}
}
