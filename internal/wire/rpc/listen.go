package rpc

import "net"

// Target returns the gRPC target of a listener: unix:///PATH, or HOST:PORT.
func Target(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix://" + l.Addr().String()
	}
	return l.Addr().String()
}
