// Package crowd bounds what the clients of an HTTP server can hold: connections, and answers that do not end. A
// dashboard that leaks connections costs itself the oldest of them, and never the server its descriptors.
package crowd

import (
	"container/list"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
)

// Listener accepts connections and keeps at most a given number open: where there would be more, the one that has been idle
// for longest is closed, one that has not sent a request among them. Where none is idle, a new one waits until
// another ends. State must be its server's ConnState, else every connection counts as idle.
type Listener struct {
	net.Listener
	most  int
	keeps bool // no connection counts as idle

	mu     sync.Mutex
	open   int
	idle   *list.List    // of *conn, the oldest first
	freed  chan struct{} // closed and made again when a connection ends or becomes idle
	closed chan struct{}
	once   sync.Once
	shed   int // how many idle ones were closed to make room
}

// conn is one connection. What is below the line is guarded by Listener.mu.
type conn struct {
	net.Conn
	of *Listener

	// ---
	at   *list.Element // in the list of idle ones; nil: it is not idle
	over bool
}

// Listen bounds l to at most that many connections, one at least.
func Listen(l net.Listener, most int) *Listener {
	return &Listener{Listener: l, most: max(most, 1), idle: list.New(), freed: make(chan struct{}), closed: make(chan struct{})}
}

// Hold bounds l to at most that many connections of which none is closed to make room: a new one waits. It is for servers
// other than HTTP, which do not say what is idle.
func Hold(l net.Listener, most int) *Listener {
	held := Listen(l, most)
	held.keeps = true
	return held
}

// Most is how many connections are kept open.
func (l *Listener) Most() int { return l.most }

// Shed is how many idle connections were closed to make room for new ones.
func (l *Listener) Shed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shed
}

// Accept waits for the next connection, and for room for it. A process without descriptors closes an idle connection
// to take a new one.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	for lacks(err) && l.closeOldest() {
		c, err = l.Listener.Accept()
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // the server looks at what it is
	}
	if !l.makeRoom() {
		c.Close()
		return nil, net.ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	mine := &conn{Conn: c, of: l}
	if !l.keeps {
		mine.at = l.idle.PushBack(mine)
	}
	return mine, nil
}

func lacks(err error) bool { return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) }

// makeRoom returns once there is room for one more, and false if the listener is closed before.
func (l *Listener) makeRoom() bool {
	for {
		l.mu.Lock()
		full, freed := l.open >= l.most, l.freed
		l.mu.Unlock()
		if !full {
			return true
		}
		if l.closeOldest() {
			continue
		}
		select {
		case <-freed:
		case <-l.closed:
			return false
		}
	}
}

// closeOldest closes the connection that has been idle for longest, and reports false where none is.
func (l *Listener) closeOldest() bool {
	l.mu.Lock()
	front := l.idle.Front()
	if front == nil {
		l.mu.Unlock()
		return false
	}
	l.shed++
	l.mu.Unlock()
	_ = front.Value.(*conn).Close() // it may have ended meanwhile, which makes room too
	return true
}

// State takes in what becomes of a connection of a Listener; it is for http.Server.ConnState. Other connections it
// leaves alone.
func State(c net.Conn, state http.ConnState) {
	mine, ok := c.(*conn)
	for !ok {
		outer, wraps := c.(interface{ NetConn() net.Conn }) // TLS does
		if !wraps {
			return
		}
		c = outer.NetConn()
		mine, ok = c.(*conn)
	}
	l := mine.of
	l.mu.Lock()
	defer l.mu.Unlock()
	if mine.over {
		return
	}
	if mine.at != nil {
		l.idle.Remove(mine.at)
		mine.at = nil
	}
	if state == http.StateNew || state == http.StateIdle {
		mine.at = l.idle.PushBack(mine)
		l.tell()
	}
}

// NetConn is the connection itself, for those who ask the kernel about it.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close ends the connection, and makes room for another.
func (c *conn) Close() error {
	l := c.of
	l.mu.Lock()
	if !c.over {
		c.over = true
		l.open--
		if c.at != nil {
			l.idle.Remove(c.at)
			c.at = nil
		}
		l.tell()
	}
	l.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // it is net.Conn's
}

// tell wakes who waits for room. The lock is held.
func (l *Listener) tell() {
	close(l.freed)
	l.freed = make(chan struct{})
}

// Close ends the listener. Connections stay.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close() //nolint:wrapcheck // it is net.Listener's
}

// Streams counts the answers that do not end by themselves. It may be used from many goroutines; the zero value takes
// none.
type Streams struct {
	Most int    // at once
	Why  string // what Most was worked out from, for those who are refused

	mu   sync.Mutex
	open int
}

// FullError says that there are as many streams as there may be. It is answered with 503 and Retry-After.
type FullError struct {
	Most int
	Why  string
}

func (e *FullError) Error() string {
	text := "as many streams are open as this server keeps (" + strconv.Itoa(e.Most) + ")"
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text + "; close one, or try again later"
}

// Enter takes the place of one stream until leave is called, which may be done more than once. The error is a
// *FullError.
func (s *Streams) Enter() (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.Most {
		return nil, &FullError{s.Most, s.Why}
	}
	s.open++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}), nil
}
