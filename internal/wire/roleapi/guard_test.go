package roleapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAHostThatIsNotOursIsRefusedOnLoopback(t *testing.T) {
	for host, want := range map[string]int{
		"localhost:8000": 200, "LOCALHOST": 200, "localhost.:8000": 200, "critic.localhost:8000": 200,
		"127.0.0.1:8000": 200, "127.1.2.3": 200, "[::1]:8000": 200, "[::1]": 200, "localhost:9000": 200, // a tunnel's port
		"evil.example:8000": 403, "127.0.0.1.evil.example": 403, "localhost.evil.example": 403, "192.168.1.4:8000": 403, "": 403,
	} {
		if w := ask(&fake{}, http.MethodGet, "/critic/get_step", "", "Host", host); w.Code != want {
			t.Errorf("host %q = %d %s, want %d", host, w.Code, w.Body, want)
		}
	}
}

func TestAnAddressThatOthersReachTakesAnyHost(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/critic/get_step", nil)
	r.Host = "trainer.example"
	w := httptest.NewRecorder()
	handler(&fake{}, "0.0.0.0:8000").ServeHTTP(w, r)
	if w.Code != 200 {
		t.Errorf("host on 0.0.0.0 = %d %s, want 200", w.Code, w.Body)
	}
}

func TestAWebPageOfAnotherOriginChangesNothing(t *testing.T) {
	foreign := [][]string{
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:3000"},
	}
	own := [][]string{
		nil,
		{"Origin", "http://localhost:8000"},
		{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:8000"},
		{"Sec-Fetch-Site", "none"}, // typed by hand
	}
	for _, request := range []string{
		"POST /critic/set_step?step=1", "POST /critic/stop_service", "POST /critic/report_error",
		"POST /critic/mark_unhealthy_for_testing", "GET /critic/mark_unhealthy_for_testing",
	} {
		method, path, _ := strings.Cut(request, " ")
		for _, headers := range foreign {
			f := &fake{}
			if w := ask(f, method, path, "", headers...); w.Code != 403 || len(f.asked) != 0 {
				t.Errorf("%s with %v = %d and asked %v, want 403 and nothing", request, headers, w.Code, f.asked)
			}
		}
		for _, headers := range own {
			if w := ask(&fake{}, method, path, "", headers...); w.Code != 200 {
				t.Errorf("%s with %v = %d %s, want 200", request, headers, w.Code, w.Body)
			}
		}
	}
}
