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
		if err != nil || o.Addr().Network() != "unix" {
			return c, err
		}
		uid, err := ofUnix(c)
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
func ofUnix(c net.Conn) (int, error) {
	var who *unix.Ucred
	err := control(c, func(fd int) (err error) {
		who, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask whose connection it is: %w", err)
	}
	return int(who.Uid), nil
}
