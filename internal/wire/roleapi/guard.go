package roleapi

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Guard returns a middleware that keeps web pages away from an interface that asks nobody who they
// are. Bound is the address listened on, HOST:PORT.
//
// Where that is a loopback address, a request whose Host is neither a loopback name or address nor the
// bound one is refused with 403: a page whose name was made to point here (DNS rebinding) sends its own
// name. Everywhere, a request that changes something and that a browser sent for a page of another
// origin is refused with 403. Programs that are no browsers send none of the headers that this looks at.
func Guard(bound string) func(http.Handler) http.Handler {
	boundHost := hostOf(bound)
	checkHost := IsLoopback(boundHost)
	cross := http.NewCrossOriginProtection()
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if host := hostOf(r.Host); checkHost && host != boundHost && !IsLoopback(host) {
				WriteProblem(w, NewProblem(http.StatusForbidden, "host "+r.Host+" is not this machine's loopback: refused, since web pages can be made to call it"))
				return
			}
			if err := cross.Check(asChange(r)); err != nil {
				WriteProblem(w, NewProblem(http.StatusForbidden, r.Method+" "+r.URL.Path+" for a web page of another origin: refused"))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// asChange returns r, as a POST where it is a GET that changes something.
func asChange(r *http.Request) *http.Request {
	if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/mark_unhealthy_for_testing") {
		return r
	}
	change := *r
	change.Method = http.MethodPost
	return &change
}

// IsLoopback says whether host, without a port, can only mean this machine: localhost, a name below
// it, or a loopback address. It asks no name server.
func IsLoopback(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// hostOf returns the host of HOST, HOST:PORT or [HOST]:PORT.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return strings.Trim(address, "[]")
}
