package roleapi_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
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

// foreign are the headers of a browser that asks for a page of another origin.
var foreign = [][]string{
	{"Origin", "https://evil.example"},
	{"Origin", "null"},
	{"Sec-Fetch-Site", "cross-site"},
	{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"},
	{"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:3000"},
}

// shows: FAULT-A3
func TestAWebPageOfAnotherOriginChangesAndReadsNothing(t *testing.T) {
	own := [][]string{
		nil,
		{"Origin", "http://localhost:8000"},
		{"Sec-Fetch-Site", "same-origin", "Origin", "http://localhost:8000"},
		{"Sec-Fetch-Site", "none"}, // typed by hand
	}
	for _, request := range []string{
		"POST /critic/set_step?step=1", "POST /critic/stop_service", "POST /critic/report_error",
		"POST /critic/mark_unhealthy_for_testing", "GET /critic/mark_unhealthy_for_testing", "GET /critic/get_step",
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

func TestAWebPageOfAnotherOriginIsNoWorkerEither(t *testing.T) {
	path := "/life/" + lifeSecret + "/" + life + "/heartbeat"
	for _, headers := range append(slices.Clone(foreign), []string{"Host", "evil.example"}) {
		f := &fake{}
		if w := ask(f, http.MethodPost, path, "", headers...); w.Code != 403 || len(f.words) != 0 {
			t.Errorf("with %v = %d and heard %v, want 403 and nothing", headers, w.Code, f.words)
		}
	}
}

// A link to the page may stand on any page; what it shows is read by nobody else.
func TestALinkToThePageMayBeFollowed(t *testing.T) {
	link := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	frame := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}
	for _, c := range []struct {
		method, path string
		headers      []string
		want         int
	}{
		{http.MethodGet, "/", link, 404}, // nobody routes it here
		{http.MethodGet, "/", frame, 403},
		{http.MethodPost, "/", link, 403},
		{http.MethodGet, "/critic/get_step", link, 403},
		{http.MethodGet, "/critic/mark_unhealthy_for_testing", link, 403},
	} {
		f := &fake{}
		if w := ask(f, c.method, c.path, "", c.headers...); w.Code != c.want || len(f.asked) != 0 {
			t.Errorf("%s %s with %v = %d %s and asked %v, want %d", c.method, c.path, c.headers, w.Code, w.Body, f.asked, c.want)
		}
	}
}

func TestAnOldBrowserThatDoesNotSayForWhomItAsksChangesNothingByGET(t *testing.T) {
	for agent, want := range map[string]int{"Mozilla/5.0 (X11; Linux x86_64)": 403, "curl/8.14.1": 200, "": 200} {
		if w := ask(&fake{}, http.MethodGet, "/critic/mark_unhealthy_for_testing", "", "User-Agent", agent); w.Code != want {
			t.Errorf("%q = %d %s, want %d", agent, w.Code, w.Body, want)
		}
	}
	if w := ask(&fake{}, http.MethodGet, "/critic/get_step", "", "User-Agent", "Mozilla/5.0"); w.Code != 200 {
		t.Errorf("get_step = %d %s, want 200", w.Code, w.Body)
	}
}
