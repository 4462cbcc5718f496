package roleapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"vigil/internal/role"
	"vigil/internal/wire/caller"
	"vigil/internal/wire/roleapi"
)

// FuzzPathsAndQueries asks a role's endpoints for any path and query, as the owner and as another user who knows the
// secret of lives. What is not 200 or 202 is a problem document that was not made by a fault, no rank, step or life that
// arrives is out of bounds, and another user comes no further than to lives.
func FuzzPathsAndQueries(f *testing.F) {
	for _, url := range []string{
		"/critic/get_step", "/critic/set_step?step=9", "/critic/set_step?step=-1", "/critic/set_step?step=%39&step=9", "/critic/heartbeat?step=9&rank=3&life=" + life,
		"/life/" + lifeSecret + "/" + life + "/heartbeat?step=9223372036854775807", "/life/" + lifeSecret + "/" + life + "/report_error", "/life/" + lifeSecret + "//critic/stop_service",
		"/life/" + lifeSecret + "/../critic/stop_service", "/life/" + lifeSecret + "%2f" + life + "/heartbeat", "/critic/pause_watch?for=1e9h", "/critic/admit?worker=1&life=" + life,
		"/critic/mark_unhealthy_for_testing", "/critic%2Fstop_service", "/%2e%2e/critic/get_step", "/critic/heartbeat?life=a;b&rank=x",
	} {
		f.Add(true, url, "out of memory")
		f.Add(false, url, `{"error":"x","fatal":true}`)
	}
	f.Fuzz(func(t *testing.T, post bool, url, body string) {
		method := http.MethodGet
		if post {
			method = http.MethodPost
		}
		for _, uid := range []int{os.Geteuid(), stranger} {
			r, err := http.NewRequest(method, "http://localhost:8000"+url, strings.NewReader(body))
			if err != nil {
				return
			}
			r.Host = "localhost:8000"
			r = r.WithContext(caller.With(r.Context(), caller.Known(uid)))
			if strings.HasPrefix(body, "{") {
				r.Header.Set("Content-Type", "application/json")
			}
			heard := &fake{}
			w := httptest.NewRecorder()
			handler(heard, "127.0.0.1:8000").ServeHTTP(w, r)
			for _, word := range heard.words {
				if word.Rank < 0 || word.Step != nil && *word.Step < 0 {
					t.Errorf("%s %q: heard %+v", method, url, word)
				}
				if word.Life != "" {
					if l, err := role.ParseLife(word.Life); err != nil || l.Rank != word.Rank {
						t.Errorf("%s %q: heard a word of life %q", method, url, word.Life)
					}
				}
			}
			if ofLife := strings.HasPrefix(r.URL.Path, "/life/"+lifeSecret+"/"); uid == stranger && (len(heard.asked) > 0 || w.Code < 300) && !ofLife {
				t.Errorf("another user: %s %q = %d and asked for %v", method, url, w.Code, heard.asked)
			}
			if uid == stranger {
				for _, asked := range heard.asked {
					if !strings.Contains(asked, "heartbeat") && !strings.Contains(asked, "report") {
						t.Errorf("another user: %s %q asked for %s", method, url, asked)
					}
				}
			}
			var p roleapi.Problem
			if w.Code >= 300 && (json.Unmarshal(w.Body.Bytes(), &p) != nil || p.Status != w.Code || w.Code >= 500) {
				t.Errorf("%s %q = %d %s", method, url, w.Code, w.Body)
			}
		}
	})
}
