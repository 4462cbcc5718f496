package rpc

import (
	"errors"
	"net"

	"google.golang.org/grpc"
)

// ServeAlso answers at one more listener until the link is closed, which closes it: at the link's own
// address, where the file of its socket has been removed. Sessions that stand are not touched.
func (l *Link) ServeAlso(listener net.Listener) error {
	if err := l.server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
