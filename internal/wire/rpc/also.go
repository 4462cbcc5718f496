package rpc

import (
	"errors"
	"net"

	"google.golang.org/grpc"

	"vigil/internal/wire/caller"
)

// ServeAlso answers at one more listener until the link is closed, which closes it: at the link's own
// address, where the file of its socket has been removed. Sessions that stand are not touched.
func (l *Link) ServeAlso(listener net.Listener) error {
	if err := l.server.Serve(l.ownersOnly(listener)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// ownersOnly keeps other users than ours and root from a listener, which is said once.
func (l *Link) ownersOnly(listener net.Listener) net.Listener {
	return caller.OwnersOnly(listener, func(why error) {
		l.refusing.Do(func() { l.o.Log.Warn("a connection to the service's socket is refused", "why", why) })
	})
}
