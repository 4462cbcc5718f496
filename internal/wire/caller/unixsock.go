package caller

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// OwnersOnly returns l, which closes at once what another user than ours and root has opened on a Unix
// socket. The file's mode says the same; this holds also where somebody has changed it. Refused hears of
// such users, in the goroutine of Accept.
func OwnersOnly(l net.Listener, refused func(error)) net.Listener { return ownersOnly{l, refused} }

type ownersOnly struct {
	net.Listener
	refused func(error)
}

// Accept waits for the next connection of a user who may have one.
func (o ownersOnly) Accept() (net.Conn, error) {
	for {
		c, err := o.Listener.Accept()
		if err != nil {
			return nil, err
		}
		unixConn, ok := c.(*net.UnixConn)
		if !ok {
			return c, nil
		}
		uid, err := ofUnix(unixConn)
		if err == nil && IsOurs(uid) {
			return c, nil
		}
		if err == nil {
			err = fmt.Errorf("it is of user %d", uid)
		}
		c.Close()
		o.refused(err)
	}
}

// ofUnix returns the user who has connected.
func ofUnix(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("ask whose connection it is: %w", err)
	}
	var who *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { who, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, fmt.Errorf("ask whose connection it is: %w", err)
	}
	if asked != nil {
		return 0, fmt.Errorf("ask whose connection it is: %w", asked)
	}
	return int(who.Uid), nil
}
