package httpapi_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"vigil/internal/wire/caller"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/roleapi"
)

// FuzzRequests sends any request, by its first bytes as they come from the network, to the interface on loopback and to
// that of the metrics, in the name of the owner, of another user and without the token. No request is more than
// refused; what is refused is a problem document; and another user is served metrics and probes only.
func FuzzRequests(f *testing.F) {
	for _, first := range []string{
		"GET /api/v1/job HTTP/1.1\r\nHost: localhost", "POST /critic/set_step?step=9 HTTP/1.1\r\nHost: 127.0.0.1:8000",
		"POST /critic/heartbeat?step=1&rank=0&life=tiny-1f0c93ab/critic/1/0/1 HTTP/1.1\r\nHost: [::1]", "POST /critic/pause_watch?for=1m&worker=0 HTTP/1.1\r\nHost: localhost",
		"GET /life/5ec4e7/critic/get_step HTTP/1.1\r\nHost: localhost", "POST /life/5ec4e7/critic/stop_service HTTP/1.1\r\nHost: localhost",
		"POST /life/5ec4e7%2Fcritic/admit HTTP/1.1\r\nHost: localhost", "GET /metrics/..//api/v1/roles HTTP/1.1\r\nHost: localhost",
		"GET /%6Detrics HTTP/1.1\r\nHost: localhost", "GET http://localhost/api/v1/job HTTP/1.1\r\nHost: localhost", "OPTIONS * HTTP/1.1\r\nHost: localhost",
		"GET /api/v1/events?after=18446744073709551615&limit=1 HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 7", "GET / HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Mode: navigate",
		"GET /api/v1/policy/explain?role=critic&cause=exited HTTP/1.1\r\nHost: localhost\r\nOrigin: null", "GET /healthz HTTP/1.1\r\nHost: evil.example",
		"POST /critic/report_error HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json",
	} {
		f.Add(first)
	}
	const secret = "5ec4e7"
	apiOf := map[string]*httpapi.API{}
	for _, token := range []string{"", "sesame"} {
		apiOf[token] = httpapi.New(httpapi.Options{Controller: newFake(), Roles: steps{}, Bound: "127.0.0.1:8000", Token: token, Secret: secret,
			Metrics: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	}
	f.Fuzz(func(t *testing.T, first string) {
		if strings.Contains(first, "event-stream") {
			t.Skip() // a stream has no end
		}
		for _, c := range []struct {
			who   string
			uid   int
			token string
			open  []string
		}{
			{"the owner", os.Geteuid(), "", nil},
			{"another user", 65533, "", []string{"/metrics", "/healthz", "/readyz"}},
			{"without the token", os.Geteuid(), "sesame", []string{"/healthz", "/readyz"}},
		} {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(first + "\r\n\r\n")))
			if err != nil {
				return
			}
			r = r.WithContext(caller.With(r.Context(), caller.Known(c.uid)))
			api := apiOf[c.token]
			w := httptest.NewRecorder()
			api.ServeHTTP(w, r)
			path, worker := strings.CutPrefix(r.URL.Path, "/life/"+secret)
			served := w.Code < 400
			switch {
			case c.open == nil:
			case served && worker && r.URL.RawPath == "" && !strings.Contains(path, "stop") && !strings.Contains(path, "set_step") && !strings.Contains(path, "restart") && !strings.Contains(path, "mark"):
			case served && (!slices.Contains(c.open, r.URL.Path) || r.Method != http.MethodGet):
				t.Errorf("%s is served: %q = %d %s", c.who, first, w.Code, w.Body)
			}
			var p roleapi.Problem
			if !served && (w.Header().Get("Content-Type") != "application/problem+json" || json.Unmarshal(w.Body.Bytes(), &p) != nil || p.Status != w.Code) {
				t.Errorf("%s: %q = %d %s %s, which is no problem document", c.who, first, w.Code, w.Header().Get("Content-Type"), w.Body)
			}
			if w.Code >= 500 {
				t.Errorf("%s: %q = %d %s", c.who, first, w.Code, w.Body)
			}
			if strings.Contains(w.Body.String(), secret) && !strings.Contains(strings.ReplaceAll(first, "/life/"+secret, ""), secret) {
				t.Errorf("%s: %q is answered with the secret: %s", c.who, first, w.Body)
			}
			harmless := httptest.NewRecorder()
			api.Harmless("0.0.0.0:9100").ServeHTTP(harmless, r)
			if harmless.Code < 400 && !slices.Contains([]string{"/metrics", "/healthz", "/readyz"}, r.URL.Path) {
				t.Errorf("the address of the metrics serves %q = %d", first, harmless.Code)
			}
		}
	})
}
