package proc

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Loopback returns the address at which this machine speaks to itself: 127.0.0.1, or ::1 where only that exists, as in a
// container without IPv4.
var Loopback = sync.OnceValue(func() string {
	if binds("tcp4", "127.0.0.1") || !binds("tcp6", "::1") {
		return "127.0.0.1"
	}
	return "::1"
})

// binds reports whether a host's address is one of this machine's. What cannot be tried for another reason counts as one.
func binds(network, host string) bool {
	l, err := net.Listen(network, net.JoinHostPort(host, "0"))
	if err != nil {
		return !noAddress(err)
	}
	l.Close()
	return true
}

// noAddress reports whether an error says that the machine does not have an address, or not its kind.
func noAddress(err error) bool {
	return errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)
}
