// Package caller says which user of this machine is at the other end of a connection. For TCP on
// loopback it asks the kernel for the socket that the connection leads to, by sock_diag(7), or where that
// is not to be had in /proc/net/tcp and tcp6; a Unix socket knows its peer (SO_PEERCRED, unix(7)).
//
// A socket belongs to the user who has made it. One that its program has closed belongs to nobody: many
// kernels show it with user 0, which must not be taken for root.
package caller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Caller is the user at the other end of one connection. Its methods may be called from any goroutine.
type Caller struct {
	ask func() (int, error)

	mu    sync.Mutex
	known bool
	uid   int
}

// Of returns the caller of a connection of TCP or TLS, who is asked about when somebody wants to know. What
// wraps a connection must have the method NetConn, as tls.Conn does, or pass SyscallConn on.
func Of(c net.Conn) *Caller { return &Caller{ask: func() (int, error) { return ask(c) }} }

// Known returns a caller whose user is known already.
func Known(uid int) *Caller { return &Caller{known: true, uid: uid} }

// UID returns the caller's user. The kernel is asked until it has answered once. The error says why it
// cannot be known.
func (c *Caller) UID() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		return c.uid, nil
	}
	uid, err := c.ask()
	if err != nil {
		return 0, err
	}
	c.uid, c.known = uid, true
	return uid, nil
}

// IsOurs says whether a user may do here what we may: our own, and root.
func IsOurs(uid int) bool { return uid == 0 || uid == os.Geteuid() }

type key struct{}

// With returns a context that knows the caller. As ConnContext of an http.Server, ConnContext makes one
// for every connection.
func With(ctx context.Context, c *Caller) context.Context { return context.WithValue(ctx, key{}, c) }

// ConnContext is With and Of, as http.Server.ConnContext wants it.
func ConnContext(ctx context.Context, c net.Conn) context.Context { return With(ctx, Of(c)) }

// From returns the caller that the context knows; without one, a caller of whom nothing can be known.
func From(ctx context.Context) *Caller {
	if c, ok := ctx.Value(key{}).(*Caller); ok {
		return c
	}
	return &Caller{ask: func() (int, error) { return 0, errors.New("the request came by no connection") }}
}

// ask finds the user at the other end of a connection.
func ask(c net.Conn) (int, error) {
	local, ok1 := addrOf(c.LocalAddr())
	remote, ok2 := addrOf(c.RemoteAddr())
	if !ok1 || !ok2 {
		return 0, fmt.Errorf("a connection of type %T does not say where it leads", c)
	}
	found, err := bySockDiag(remote, local)
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, errGone
	case err != nil:
		var second error
		if found, second = byProc(remote, local); second != nil {
			return 0, errors.Join(err, second)
		}
	}
	// As long as our end stands, nobody else can have the other end's addresses: what was found is our peer.
	if err := stands(c); err != nil {
		return 0, err
	}
	return found.owner()
}

// socket is what the kernel tells of the socket at the other end.
type socket struct {
	state uint8
	uid   int
	inode uint64
}

// The states of a TCP connection (tcp_states.h) in which its program may have said something.
const (
	established = 1
	finWait1    = 4 // it has ended its half
	finWait2    = 5
	closeWait   = 8 // the other end has ended its half
)

// errGone says that there is nobody at the other end.
var errGone = errors.New("the program at the other end has closed its connection already")

// owner returns the user whom the socket belongs to.
func (s socket) owner() (int, error) {
	switch {
	case s.state != established && s.state != finWait1 && s.state != finWait2, s.inode == 0:
		return 0, errGone
	case isForeign(s.uid):
		return 0, fmt.Errorf("the user at the other end has no number in this user namespace (it shows as %d)", s.uid)
	}
	return s.uid, nil
}

// stands returns an error if our own end of the connection is over.
func stands(c net.Conn) error {
	var info *unix.TCPInfo
	err := control(c, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	if err != nil {
		return fmt.Errorf("look at the connection: %w", err)
	}
	if info.State != established && info.State != closeWait {
		return errors.New("the connection is over already")
	}
	return nil
}

// control calls look with the descriptor of a connection.
func control(c net.Conn, look func(fd int) error) error {
	for {
		inner, wrapped := c.(interface{ NetConn() net.Conn })
		if !wrapped {
			break
		}
		c = inner.NetConn()
	}
	has, ok := c.(syscall.Conn)
	if !ok {
		return fmt.Errorf("one of type %T has no descriptor", c)
	}
	raw, err := has.SyscallConn()
	if err != nil {
		return err
	}
	var looked error
	return errors.Join(raw.Control(func(fd uintptr) { looked = look(int(fd)) }), looked)
}

// isForeign says whether the number of a user stands for all those that have none in our user namespace
// (user_namespaces(7)).
func isForeign(uid int) bool {
	const overflow = 65534 // unless /proc/sys/kernel/overflowuid says otherwise, which nobody does
	if uid != overflow {
		return false
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(ids)), " ") != "0 0 4294967295"
}

func addrOf(a net.Addr) (netip.AddrPort, bool) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	at := t.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port()), at.IsValid()
}
