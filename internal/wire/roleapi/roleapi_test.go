package roleapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"vigil/internal/role"
	"vigil/internal/wire/caller"
	"vigil/internal/wire/roleapi"
)

// fake is two roles; it notes what it was asked and answers with err, or by its current life.
type fake struct {
	asked   []string
	words   []roleapi.Word
	reports []roleapi.Report
	pending bool
	err     error
}

func (f *fake) note(name role.Name, what string, args ...any) error {
	f.asked = append(f.asked, string(name)+" "+fmt.Sprintf(what, args...))
	return f.err
}

func (f *fake) Known() []role.Name { return []role.Name{"actor", "critic"} }

func (f *fake) Step(_ context.Context, n role.Name) (int64, error) { return 41, f.note(n, "step") }

func (f *fake) SetStep(_ context.Context, n role.Name, step int64) (bool, error) {
	return f.pending, f.note(n, "set %d", step)
}

func (f *fake) StopService(_ context.Context, n role.Name) error   { return f.note(n, "stop") }
func (f *fake) MarkUnhealthy(_ context.Context, n role.Name) error { return f.note(n, "mark") }
func (f *fake) ResumeWatch(_ context.Context, n role.Name, rank int) error {
	return f.note(n, "resume %d", rank)
}
func (f *fake) Admit(_ context.Context, n role.Name, rank int, life string) error {
	return f.note(n, "admit %d %q", rank, life)
}

func (f *fake) PauseWatch(_ context.Context, n role.Name, rank int, d time.Duration) error {
	return f.note(n, "pause %d %v", rank, d)
}

func (f *fake) Heartbeat(_ context.Context, n role.Name, w roleapi.Word) error {
	if w.Life != "" && !strings.HasPrefix(w.Life, "tiny-1f0c93ab/critic/2/") {
		return fmt.Errorf("heartbeat of %s: %w", w.Life, roleapi.ErrStale)
	}
	f.words = append(f.words, w)
	return f.note(n, "heartbeat")
}

func (f *fake) ReportError(_ context.Context, n role.Name, r roleapi.Report) error {
	if r.Life != "" && !strings.HasPrefix(r.Life, "tiny-1f0c93ab/critic/2/") {
		return fmt.Errorf("report of %s: %w", r.Life, roleapi.ErrStale)
	}
	f.reports = append(f.reports, r)
	return f.note(n, "report")
}

// ask sends one request as curl would.
func ask(f *fake, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8000"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	r = r.WithContext(caller.With(r.Context(), caller.Known(os.Geteuid())))
	w := httptest.NewRecorder()
	handler(f, "127.0.0.1:8000").ServeHTTP(w, r)
	return w
}

func problem(t *testing.T, w *httptest.ResponseRecorder) roleapi.Problem {
	t.Helper()
	if kind := w.Header().Get("Content-Type"); kind != "application/problem+json" {
		t.Fatalf("content type %q of %d %s, want application/problem+json", kind, w.Code, w.Body)
	}
	var p roleapi.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	if p.Status != w.Code || p.Title != http.StatusText(w.Code) || p.Detail == "" {
		t.Errorf("problem %+v does not fit status %d", p, w.Code)
	}
	return p
}

// shows: R37 R38 R39 R40
func TestTheDebugEndpointsAnswerTheSeedsPathsAndMethodsOnEveryRole(t *testing.T) {
	for _, name := range []string{"actor", "critic"} {
		for _, c := range []struct{ method, path, body, asked string }{
			{"GET", "get_step", `{"step":41}`, "step"},
			{"POST", "set_step?step=100", `{"status":"ok","step":100}`, "set 100"},
			{"POST", "stop_service", `{"status":"ok"}`, "stop"},
			{"GET", "mark_unhealthy_for_testing", `{"status":"ok"}`, "mark"},
			{"POST", "mark_unhealthy_for_testing", `{"status":"ok"}`, "mark"},
		} {
			f := &fake{}
			w := ask(f, c.method, "/"+name+"/"+c.path, "")
			if w.Code != 200 || strings.TrimSpace(w.Body.String()) != c.body || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s /%s/%s = %d %s, want 200 %s", c.method, name, c.path, w.Code, w.Body, c.body)
			}
			if want := []string{name + " " + c.asked}; !slices.Equal(f.asked, want) {
				t.Errorf("%s /%s/%s asked %v, want %v", c.method, name, c.path, f.asked, want)
			}
		}
	}
}

// shows: R38
func TestAStepThatIsTakenAtTheNextStartIs202Pending(t *testing.T) {
	w := ask(&fake{pending: true}, "POST", "/critic/set_step?step=5", "")
	if got := strings.TrimSpace(w.Body.String()); w.Code != 202 || got != `{"status":"pending","step":5}` {
		t.Errorf("set_step = %d %s, want 202 pending", w.Code, got)
	}
}

// shows: R38
func TestAStepThatIsNoDecimalIntegerOf63BitsIs400AndSetsNothing(t *testing.T) {
	for _, query := range []string{
		"", "?step=", "?step=-1", "?step=%2B1", "?step=1.5", "?step=1e3", "?step=0x10", "?step=ten", "?step=%201",
		"?step=9223372036854775808", "?step=1&step=2", "?step=1;step=2", "?step=%zz", "?steps=4",
	} {
		f := &fake{}
		w := ask(f, "POST", "/critic/set_step"+query, "")
		if w.Code != 400 || len(f.asked) != 0 {
			t.Errorf("set_step%s = %d and asked %v, want 400 and nothing", query, w.Code, f.asked)
			continue
		}
		problem(t, w)
	}
	if w := ask(&fake{}, "POST", "/critic/set_step?step=9223372036854775807", ""); w.Code != 200 {
		t.Errorf("the largest step = %d %s", w.Code, w.Body)
	}
}

// shows: R39
func TestAStopThatIsNotCompleteIs504WithWhoHeldOn(t *testing.T) {
	held := []string{"rank 2 pid 4711 python3"}
	w := ask(&fake{err: fmt.Errorf("stop: %w", &roleapi.HeldError{Role: "critic", Held: held})}, "POST", "/critic/stop_service", "")
	if p := problem(t, w); w.Code != 504 || !slices.Equal(p.Held, held) {
		t.Errorf("stop_service = %d %s, want 504 with %v", w.Code, w.Body, held)
	}
}

func TestErrorsAreAnsweredByWhatTheyAre(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{fmt.Errorf("get step of critic: %w", roleapi.ErrUnavailable), 503},
		{fmt.Errorf("get step of critic: %w", context.DeadlineExceeded), 504},
		{fmt.Errorf("get step of critic: %w", roleapi.ErrStale), 409},
		{fmt.Errorf("get step of critic: disk on fire"), 500},
		{roleapi.NewProblem(418, "teapot"), 418},
	} {
		w := ask(&fake{err: c.err}, "GET", "/critic/get_step", "")
		if p := problem(t, w); w.Code != c.want || p.Detail != c.err.Error() {
			t.Errorf("%v = %d %s, want %d", c.err, w.Code, w.Body, c.want)
		}
	}
}

// shows: R6
func TestAnUnknownRoleIs404WithTheRolesThatExist(t *testing.T) {
	for method, path := range map[string]string{
		"GET": "/nobody/get_step", "POST": "/nobody/report_error",
	} {
		f := &fake{}
		w := ask(f, method, path, "boom")
		if p := problem(t, w); w.Code != 404 || !slices.Equal(p.Roles, f.Known()) || !strings.Contains(p.Detail, "actor, critic") {
			t.Errorf("%s = %d %s, want 404 with %v", path, w.Code, w.Body, f.Known())
		}
		if len(f.asked) != 0 {
			t.Errorf("%s asked %v", path, f.asked)
		}
	}
	if w := ask(&fake{}, "GET", "/critic/nonsense", ""); problem(t, w).Status != 404 {
		t.Errorf("an unknown verb = %d", w.Code)
	}
}

func TestAWrongMethodIs405WithAllow(t *testing.T) {
	for _, c := range []struct{ method, path, allow string }{
		{"POST", "/critic/get_step", "GET"},
		{"GET", "/critic/set_step", "POST"},
		{"GET", "/critic/stop_service", "POST"},
		{"HEAD", "/critic/mark_unhealthy_for_testing", "GET, POST"},
		{"DELETE", "/critic/heartbeat", "POST"},
	} {
		f := &fake{}
		w := ask(f, c.method, c.path, "")
		if w.Code != 405 || w.Header().Get("Allow") != c.allow || len(f.asked) != 0 {
			t.Errorf("%s %s = %d, Allow %q, asked %v; want 405, %q, nothing", c.method, c.path, w.Code, w.Header().Get("Allow"), f.asked, c.allow)
		}
	}
}

const life = "tiny-1f0c93ab/critic/2/3/1"

func TestAHeartbeatTellsRankLifeAndStep(t *testing.T) {
	step := func(n int64) *int64 { return &n }
	for path, want := range map[string]roleapi.Word{
		"/critic/heartbeat":                                                    {},
		"/critic/heartbeat?step=0":                                             {Step: step(0)},
		"/critic/heartbeat?step=9&rank=3":                                      {Rank: 3, Step: step(9)},
		"/critic/heartbeat?step=9&rank=3&life=" + life:                         {Rank: 3, Life: life, Step: step(9)},
		"/critic/heartbeat?life=" + life:                                       {Rank: 3, Life: life},
		"/life/" + lifeSecret + "/tiny-1f0c93ab/critic/2/3/1/heartbeat?step=9": {Rank: 3, Life: life, Step: step(9)},
	} {
		f := &fake{}
		w := ask(f, "POST", path, "")
		if diff := cmp.Diff([]roleapi.Word{want}, f.words); w.Code != 200 || diff != "" {
			t.Errorf("%s = %d %s (-want +have):\n%s", path, w.Code, w.Body, diff)
		}
	}
}

func TestAHeartbeatWhoseSpeakerMakesNoSenseIs400(t *testing.T) {
	for _, path := range []string{
		"/critic/heartbeat?rank=-1", "/critic/heartbeat?rank=x", "/critic/heartbeat?rank=", "/critic/heartbeat?step=x",
		"/critic/heartbeat?rank=1&rank=1", "/critic/heartbeat?life=", "/critic/heartbeat?life=2",
		"/critic/heartbeat?rank=1&life=" + life, "/actor/heartbeat?life=" + life,
		"/critic/heartbeat?life=tiny-1f0c93ab/critic/2/-1/1", "/life/" + lifeSecret + "/tiny-1f0c93ab/critic/two/3/1/heartbeat",
	} {
		f := &fake{}
		if w := ask(f, "POST", path, ""); w.Code != 400 || len(f.words) != 0 {
			t.Errorf("%s = %d %s, want 400", path, w.Code, w.Body)
		}
	}
}

// shows: R53
func TestWordOfAnEarlierLifeIs409(t *testing.T) {
	for _, path := range []string{
		"/critic/heartbeat?step=9&life=tiny-1f0c93ab/critic/1/3/1",
		"/critic/report_error?life=tiny-1f0c93ab/critic/1/3/1",
		"/life/" + lifeSecret + "/tiny-1f0c93ab/critic/1/3/1/heartbeat?step=9",
		"/life/" + lifeSecret + "/tiny-1f0c93ab/critic/1/3/1/report_error",
	} {
		f := &fake{}
		w := ask(f, "POST", path, "late")
		if p := problem(t, w); p.Status != 409 || len(f.asked) != 0 {
			t.Errorf("%s = %d %s, want 409", path, w.Code, w.Body)
		}
	}
}

func TestAReportIsTextOrJSON(t *testing.T) {
	for _, c := range []struct {
		kind, body string
		want       roleapi.Report
	}{
		{"text/plain", "out of memory\n", roleapi.Report{Text: "out of memory"}},
		{"", "out of memory", roleapi.Report{Text: "out of memory"}},
		{"application/x-www-form-urlencoded", "a=b&c", roleapi.Report{Text: "a=b&c"}}, // curl -d says so
		{"application/json; charset=utf-8", `{"error":"NaN","fatal":true}`, roleapi.Report{Text: "NaN", Fatal: true}},
		{"application/json", `{"error":"NaN"}`, roleapi.Report{Text: "NaN"}},
		{"text/plain", "bad \xff byte", roleapi.Report{Text: "bad � byte"}},
		{"text/plain", "", roleapi.Report{Text: "reported without a text"}},
	} {
		f := &fake{}
		w := ask(f, "POST", "/critic/report_error?rank=1", c.body, "Content-Type", c.kind)
		c.want.Rank = 1
		if diff := cmp.Diff([]roleapi.Report{c.want}, f.reports); w.Code != 200 || diff != "" {
			t.Errorf("%s %q = %d %s (-want +have):\n%s", c.kind, c.body, w.Code, w.Body, diff)
		}
	}
}

func TestAReportThatIsTooLargeOrBrokenIsRefused(t *testing.T) {
	f := &fake{}
	if w := ask(f, "POST", "/critic/report_error", strings.Repeat("x", roleapi.MaxBody)); w.Code != 200 {
		t.Errorf("a report of the largest size = %d", w.Code)
	}
	f = &fake{}
	if w := ask(f, "POST", "/critic/report_error", strings.Repeat("x", roleapi.MaxBody+1)); problem(t, w).Status != 413 {
		t.Errorf("a report of a byte more = %d, want 413", w.Code)
	}
	if w := ask(f, "POST", "/critic/report_error", `{"error":`, "Content-Type", "application/json"); problem(t, w).Status != 400 {
		t.Errorf("broken JSON = %d, want 400", w.Code)
	}
	if len(f.reports) != 0 {
		t.Errorf("took %d reports", len(f.reports))
	}
}

func TestThePauseOfAWatchIsATimeAboveZero(t *testing.T) {
	f := &fake{}
	if w := ask(f, "POST", "/critic/pause_watch?for=90s", ""); w.Code != 200 {
		t.Errorf("pause_watch = %d %s", w.Code, w.Body)
	}
	if w := ask(f, "POST", "/critic/resume_watch", ""); w.Code != 200 {
		t.Errorf("resume_watch = %d %s", w.Code, w.Body)
	}
	for _, query := range []string{"", "?for=", "?for=0s", "?for=-1s", "?for=10", "?for=soon"} {
		if w := ask(f, "POST", "/critic/pause_watch"+query, ""); problem(t, w).Status != 400 {
			t.Errorf("pause_watch%s = %d, want 400", query, w.Code)
		}
	}
	if want := []string{"critic pause -1 1m30s", "critic resume -1"}; !slices.Equal(f.asked, want) {
		t.Errorf("asked %v, want %v", f.asked, want)
	}
}

func TestOneWorkerIsNamedByItsRank(t *testing.T) {
	f := &fake{}
	for _, path := range []string{"/critic/pause_watch?for=90s&worker=2", "/critic/resume_watch?worker=2", "/critic/admit?worker=0", "/critic/admit?worker=1&life=tiny-1f0c93ab/critic/2/1/3"} {
		if w := ask(f, "POST", path, ""); w.Code != 200 {
			t.Errorf("%s = %d %s", path, w.Code, w.Body)
		}
	}
	if want := []string{"critic pause 2 1m30s", "critic resume 2", `critic admit 0 ""`, `critic admit 1 "tiny-1f0c93ab/critic/2/1/3"`}; !slices.Equal(f.asked, want) {
		t.Errorf("asked %v, want %v", f.asked, want)
	}
	for _, path := range []string{"/critic/admit", "/critic/admit?worker=", "/critic/admit?worker=-1", "/critic/admit?worker=1&worker=2", "/critic/admit?worker=1&life=x", "/critic/admit?worker=0&life=tiny-1f0c93ab/critic/2/1/3", "/critic/resume_watch?worker=x"} {
		if w := ask(f, "POST", path, ""); problem(t, w).Status != 400 {
			t.Errorf("%s = %d, want 400", path, w.Code)
		}
	}
	f.err = roleapi.NewProblem(409, "admit critic rank 1: it is starting, not ready")
	if w := ask(f, "POST", "/critic/admit?worker=1", ""); problem(t, w).Status != 409 {
		t.Errorf("admit = %d, want 409", w.Code)
	}
}

// handler is the interface as a service has it.
// lifeSecret is in the paths of lives.
const lifeSecret = "5ec4e7"

func handler(roles roleapi.Roles, bound string) http.Handler {
	r := roleapi.NewRouter()
	roleapi.Mount(r, roles)
	roleapi.MountLives(r, roles)
	a := roleapi.Access{Bound: bound, Life: func(_, secret, rest string) (string, roleapi.Worth) {
		if !roleapi.SameSecret(secret, lifeSecret) {
			return "", roleapi.WrongSecret
		}
		return "/life/" + rest, roleapi.OpensPath
	}}
	return a.Handler(r)
}
