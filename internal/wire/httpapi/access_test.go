package httpapi

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"vigil/internal/wire/caller"
)

// stranger is another user of the machine.
const stranger = 65533

// every returns all operations that are routed, such as "GET /critic/get_step".
func every(t *testing.T) []string {
	t.Helper()
	fill := strings.NewReplacer("{role}", "critic", "{id}", "1", "{rank}", "0")
	var all []string
	err := chi.Walk(routed().router, func(method, path string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		all = append(all, method+" "+fill.Replace(path))
		return nil
	})
	if err != nil || len(all) < 20 {
		t.Fatalf("routed: %v %v", all, err)
	}
	return all
}

// statusFor asks for an operation in the name of a user, behind the checks alone: what is let through is 204.
func statusFor(o Options, uid int, operation string, headers ...string) int {
	method, path, _ := strings.Cut(operation, " ")
	r := httptest.NewRequest(method, path, nil)
	r.Host = "localhost:8000"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	r = r.WithContext(caller.With(r.Context(), caller.Known(uid)))
	w := httptest.NewRecorder()
	access(o).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })).ServeHTTP(w, r)
	return w.Code
}

// shows: FAULT-A3
func TestAnotherUserIsServedMetricsAndProbesOnly(t *testing.T) {
	open := []string{"GET /metrics", "GET /healthz", "GET /readyz"}
	loopback := Options{Bound: "127.0.0.1:8000"}
	private, token := loopback, loopback
	private.Private = true
	token.Token = "sesame"
	privateToken := token
	privateToken.Private = true
	for _, op := range every(t) {
		want := http.StatusForbidden
		if slices.Contains(open, op) {
			want = http.StatusNoContent
		}
		if got := statusFor(loopback, stranger, op); got != want {
			t.Errorf("another user: %s = %d, want %d", op, got, want)
		}
		if got := statusFor(loopback, os.Geteuid(), op); got != http.StatusNoContent {
			t.Errorf("the owner: %s = %d", op, got)
		}
		if got := statusFor(private, stranger, op); got != http.StatusForbidden {
			t.Errorf("another user, --private-metrics: %s = %d", op, got)
		}
		if got := statusFor(privateToken, os.Geteuid(), op); got != http.StatusUnauthorized {
			t.Errorf("without the token, --private-metrics: %s = %d", op, got)
		}
		want = http.StatusUnauthorized
		if slices.Contains(open[1:], op) {
			want = http.StatusNoContent
		}
		if got := statusFor(token, os.Geteuid(), op); got != want {
			t.Errorf("without the token: %s = %d, want %d", op, got, want)
		}
		if got := statusFor(token, stranger, op, "Authorization", "Bearer sesame"); got != http.StatusNoContent {
			t.Errorf("with the token: %s = %d", op, got)
		}
	}
}

// shows: FAULT-A3
func TestAWebPageOfAnotherOriginGetsNothingWhateverItAsksFor(t *testing.T) {
	for _, op := range every(t) {
		for _, headers := range [][]string{
			{"Origin", "https://evil.example"},
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
			{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"},
			{"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:3000"},
		} {
			if got := statusFor(Options{Bound: "127.0.0.1:8000"}, os.Geteuid(), op, headers...); got != http.StatusForbidden {
				t.Errorf("%s with %v = %d, want 403", op, headers, got)
			}
		}
	}
}

// shows: FAULT-A2
func TestTheSecretOfWorkersOpensWhatWorkersNeedAndNothingElse(t *testing.T) {
	const secret = "5ec4e7"
	o := Options{Bound: "127.0.0.1:8000", Secret: secret}
	needed := []string{
		"GET /api/v1/roles", "GET /api/v1/roles/critic", "GET /api/v1/roles/critic/workers", "GET /critic/get_step",
		"POST /critic/heartbeat", "POST /critic/report_error", "POST /critic/pause_watch", "POST /critic/resume_watch", "POST /critic/admit",
	}
	token := o
	token.Token = "sesame"
	for _, op := range every(t) {
		method, path, _ := strings.Cut(op, " ")
		below := func(secret string) string { return method + " /life/" + secret + path }
		want, unopened := http.StatusForbidden, http.StatusUnauthorized
		if slices.Contains(needed, op) || slices.Contains([]string{"/metrics", "/healthz", "/readyz"}, path) {
			want = http.StatusNoContent
		}
		if slices.Contains(needed, op) || slices.Contains([]string{"/healthz", "/readyz"}, path) {
			unopened = http.StatusNoContent
		}
		if got := statusFor(o, stranger, below(secret)); got != want {
			t.Errorf("a worker of another user: %s = %d, want %d", op, got, want)
		}
		if got := statusFor(token, stranger, below(secret)); got != unopened {
			t.Errorf("a worker without the token: %s = %d, want %d", op, got, unopened)
		}
		if got := statusFor(o, os.Geteuid(), below(secret)); got != http.StatusNoContent {
			t.Errorf("a worker of the owner: %s = %d", op, got)
		}
		for _, uid := range []int{stranger, os.Geteuid()} {
			if got := statusFor(o, uid, below("5ec4e8")); got != http.StatusForbidden {
				t.Errorf("with a wrong secret: %s = %d", op, got)
			}
		}
	}
	for _, op := range needed {
		if !slices.Contains(every(t), op) {
			t.Errorf("%s is not routed", op)
		}
	}
	if got := statusFor(Options{Bound: "127.0.0.1:8000"}, stranger, "POST /life//critic/admit"); got != http.StatusForbidden {
		t.Errorf("without a secret the empty one opens: %d", got)
	}
}

// shows: FAULT-A3
func TestTheAddressOfTheMetricsServesMetricsAndProbesOnly(t *testing.T) {
	for _, bound := range []string{"127.0.0.1:9100", "0.0.0.0:9100"} {
		h := routed().Harmless(bound)
		for _, op := range every(t) {
			method, path, _ := strings.Cut(op, " ")
			r := httptest.NewRequest(method, path, nil)
			r.Host = "127.0.0.1:9100"
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			switch {
			case path == "/healthz", path == "/readyz":
				if w.Code != http.StatusOK {
					t.Errorf("%s = %d %s", op, w.Code, w.Body)
				}
			case path == "/metrics": // there are none here
				if w.Code != http.StatusNotFound || strings.Contains(w.Body.String(), "only") {
					t.Errorf("%s = %d %s", op, w.Code, w.Body)
				}
			case w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "only /metrics, /healthz, /readyz"):
				t.Errorf("%s = %d %s, want 404", op, w.Code, w.Body)
			}
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	routed().Harmless("0.0.0.0:9100").ServeHTTP(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("a page of another origin got %d", w.Code)
	}
}

func TestTheGuideNamesWhatTheSecretOpens(t *testing.T) {
	page, err := os.ReadFile("../../../docs/guides/security.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range workerOperations {
		if !strings.Contains(string(page), "`"+op+"`") {
			t.Errorf("docs/guides/security.md does not name %s", op)
		}
	}
}
