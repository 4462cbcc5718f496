package roleapi

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Guard returns a middleware that keeps web pages away. A page in the browser of a user is that user to
// the kernel, so it is refused before anybody is asked who the caller is. Bound is the address listened
// on, HOST:PORT.
//
// Where that is a loopback address, a request whose Host is neither a loopback name or address nor the
// bound one is refused with 403: a page whose name was made to point here (DNS rebinding) sends its own
// name. Everywhere, whatever a browser asks for on behalf of a page of another origin is refused with
// 403, reading as well as changing; but for following a link to the page at /. Programs that are no
// browsers send none of the headers that this looks at.
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
			if !followsLink(r) && cross.Check(asChange(r)) != nil || unsaid(r) {
				WriteProblem(w, NewProblem(http.StatusForbidden, r.Method+" for a web page of another origin: refused"))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// asChange returns r as what http.CrossOriginProtection looks at: it lets pass what only reads.
func asChange(r *http.Request) *http.Request {
	change := *r
	change.Method = http.MethodPost
	return &change
}

// followsLink says whether somebody has followed a link to the page itself, which nobody else can read
// then (Fetch Metadata, W3C).
func followsLink(r *http.Request) bool {
	return r.URL.Path == "/" && r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// unsaid says whether a browser asks for a change by GET and does not say for which page: an image of a
// page may do that in old browsers, and in all where the address is no loopback one and without TLS.
func unsaid(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/mark_unhealthy_for_testing") &&
		r.Header.Get("Sec-Fetch-Site") == "" && strings.HasPrefix(r.UserAgent(), "Mozilla/")
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
