package httpapi

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"vigil/internal/wire/crowd"
	"vigil/internal/wire/roleapi"
)

// Security is what protects the interface on an address that others can reach.
type Security struct {
	CertFile, KeyFile string // PEM; both or neither
	Token             string // bearer token
	Insecure          bool   // the user has said out loud that none of it is wanted
}

// CheckBind says whether it is safe to listen on addr, HOST:PORT: a loopback address always is; any
// other, the empty host included, only with TLS and a token, or when Insecure is set. Names other than
// localhost count as reachable by others.
func CheckBind(addr string, s Security) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("check HTTP address %q: want HOST:PORT: %w", addr, err)
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		return errors.New("check HTTP security: a certificate and its key go together, only one is given")
	}
	if roleapi.IsLoopback(host) || s.Insecure {
		return nil
	}
	switch {
	case s.CertFile == "" && s.Token == "":
		return fmt.Errorf("refuse to listen on %s: others can reach it, and there is neither TLS nor a token", addr)
	case s.CertFile == "":
		return fmt.Errorf("refuse to listen on %s: others can reach it, and there is no TLS", addr)
	case s.Token == "":
		return fmt.Errorf("refuse to listen on %s: others can reach it, and there is no token", addr)
	}
	return nil
}

// TLS returns the configuration for the certificate, TLS 1.2 or newer, with HTTP/2; nil when no
// certificate is given.
func (s Security) TLS() (*tls.Config, error) {
	if s.CertFile == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read HTTP certificate: %w", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
	}, nil
}

// Open checks the address, listens on it (see Listen) and speaks TLS on it where there is a
// certificate. It keeps a bounded number of connections; see crowd.Listener. The listener is ready for Serve of NewServer.
func Open(addr string, s Security, connections int) (net.Listener, error) {
	if err := CheckBind(addr, s); err != nil {
		return nil, err
	}
	config, err := s.TLS()
	if err != nil {
		return nil, err
	}
	inner, err := Listen(addr)
	if err != nil {
		return nil, err
	}
	l := crowd.Listen(inner, connections)
	if config == nil {
		return l, nil
	}
	return tls.NewListener(l, config), nil
}
