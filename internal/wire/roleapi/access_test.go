package roleapi_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vigil/internal/wire/caller"
	"vigil/internal/wire/roleapi"
)

// stranger is another user of the machine.
const stranger = 65533

// askAs sends a request of that user to an interface.
func askAs(a roleapi.Access, next http.Handler, c *caller.Caller, method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = "localhost:8000"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if c != nil {
		r = r.WithContext(caller.With(r.Context(), c))
	}
	w := httptest.NewRecorder()
	a.Handler(next).ServeHTTP(w, r)
	return w
}

// shows: FAULT-A3
func TestAnInterfaceServesItsUserAndRoot(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	us, root, other := caller.Known(os.Geteuid()), caller.Known(0), caller.Known(stranger)
	loopback := roleapi.Access{Bound: "127.0.0.1:8000", Open: []string{"/metrics"}}
	ipv6 := roleapi.Access{Bound: "[::1]:8000"}
	withToken := roleapi.Access{Bound: "127.0.0.1:8000", Token: "sesame", Open: []string{"/healthz"}}
	insecure := roleapi.Access{Bound: "0.0.0.0:8000"}
	bearer := []string{"Authorization", "Bearer sesame"}
	for name, c := range map[string]struct {
		access  roleapi.Access
		caller  *caller.Caller
		path    string
		headers []string
		want    int
		says    string
	}{
		"us":                         {access: loopback, caller: us, path: "/x", want: 204},
		"root":                       {access: loopback, caller: root, path: "/x", want: 204},
		"another user":               {access: loopback, caller: other, path: "/x", want: 403, says: "the connection is of user 65533"},
		"another user is helped":     {access: loopback, caller: other, path: "/x", want: 403, says: "--token-file FILE"},
		"another user of IPv6":       {access: ipv6, caller: other, path: "/x", want: 403, says: "user 65533"},
		"another user, what is open": {access: loopback, caller: other, path: "/metrics", want: 204},
		"nobody knows whom":          {access: loopback, path: "/x", want: 403, says: "--token-file FILE"},
		"nobody knows whom, open":    {access: loopback, path: "/metrics", want: 204},
		"a token in vain":            {access: loopback, caller: other, path: "/x", headers: bearer, want: 403},
		"us without the token":       {access: withToken, caller: us, path: "/x", want: 401},
		"us, open beside a token":    {access: withToken, path: "/healthz", want: 204},
		"another user with it":       {access: withToken, caller: other, path: "/x", headers: bearer, want: 204},
		"insecure, said out loud":    {access: insecure, caller: other, path: "/x", want: 204},
		"life without lives":         {access: loopback, caller: other, path: "/life/x/y", want: 403},
	} {
		w := askAs(c.access, served, c.caller, http.MethodPost, c.path, c.headers...)
		if w.Code != c.want || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: %d %s, want %d and %q", name, w.Code, w.Body, c.want, c.says)
		}
	}
}

// shows: FAULT-A2
func TestTheSecretOfALifeOpensItToEveryUserAndAnotherOneToNobody(t *testing.T) {
	f := &fake{}
	for path, want := range map[string]int{
		"/life/" + lifeSecret + "/" + life + "/heartbeat?step=9":     200,
		"/life/" + lifeSecret + "0/" + life + "/heartbeat":           403,
		"/life/" + lifeSecret[1:] + "/" + life + "/heartbeat":        403,
		"/life//" + life + "/heartbeat":                              403,
		"/life/" + life + "/heartbeat":                               403,
		"/life":                                                      403,
		"/life/":                                                     403,
		"/life/" + lifeSecret + "%2F" + life + "/heartbeat":          403,
		"/life/" + lifeSecret + "/" + life + "%2F..%2F/stop_service": 403,
		"/life/" + lifeSecret + "/critic/stop_service":               404,
	} {
		r := httptest.NewRequest(http.MethodPost, path, nil)
		r.Host = "localhost:8000"
		r = r.WithContext(caller.With(r.Context(), caller.Known(stranger)))
		w := httptest.NewRecorder()
		handler(f, "127.0.0.1:8000").ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s = %d %s, want %d", path, w.Code, w.Body, want)
		}
		if strings.Contains(w.Body.String(), lifeSecret) {
			t.Errorf("%s answers with the secret: %s", path, w.Body)
		}
	}
	if len(f.words) != 1 || len(f.asked) != 1 {
		t.Errorf("heard %v and was asked %v, want one heartbeat", f.words, f.asked)
	}
}

func TestSecretsAreOfTheirNameAndKey(t *testing.T) {
	a := roleapi.Secret([]byte("key"), "one")
	if len(a) != 32 || a == roleapi.Secret([]byte("key"), "two") || a == roleapi.Secret([]byte("other"), "one") || a != roleapi.Secret([]byte("key"), "one") {
		t.Errorf("secret %q", a)
	}
	if roleapi.SameSecret("", "") || roleapi.SameSecret(a, "") || roleapi.SameSecret("", a) || !roleapi.SameSecret(a, a) {
		t.Error("an empty secret opens something")
	}
}

// shows: FAULT-A3
func TestWhatIsAskedOfTheServerAsAWholeIsGuardedToo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := roleapi.NewServer(handler(&fake{}, l.Addr().String()), slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	defer func() { srv.Close(); <-done }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "OPTIONS * HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
	if said, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(said), "HTTP/1.1 403 ") {
		t.Errorf("OPTIONS * for another host = %q, %v, want 403", said, err)
	}
}

// shows: FAULT-A3
func TestTheServerAsksTheKernelOnceForEachConnection(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOTHING IS SHOWN: only root can give a socket to another user")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{}
	srv := roleapi.NewServer(handler(f, l.Addr().String()), slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	defer func() { srv.Close(); <-done }()
	for uid, want := range map[int]int{0: 200, stranger: 403} {
		transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return (&net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
				var owned error
				return errors.Join(raw.Control(func(fd uintptr) { owned = unix.Fchown(int(fd), uid, uid) }), owned)
			}}).DialContext(ctx, network, addr)
		}}
		client := &http.Client{Transport: transport}
		for range 2 {
			resp, err := client.Get("http://" + l.Addr().String() + "/critic/get_step")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("user %d = %d, want %d", uid, resp.StatusCode, want)
			}
		}
		transport.CloseIdleConnections()
	}
}
