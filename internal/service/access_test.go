package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/go-chi/chi/v5"
	"golang.org/x/sys/unix"

	"vigil/internal/role"
)

// otherUser is another user of the machine.
const otherUser = 65533

// clientOf returns a client whose connections are of that user.
func clientOf(t *testing.T, uid int) *http.Client {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, NOTHING IS SHOWN: only root can give a socket to another user")
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return (&net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
			var owned error
			return errors.Join(raw.Control(func(fd uintptr) { owned = unix.Fchown(int(fd), uid, uid) }), owned)
		}}).DialContext(ctx, network, addr)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// routed returns every operation that a service routes, such as "POST /critic/stop_service", but for those of lives.
func routed(t *testing.T) []string {
	t.Helper()
	var all []string
	err := chi.Walk((&Service{}).routes(), func(method, path string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if !strings.HasPrefix(path, "/life/") {
			all = append(all, method+" "+strings.ReplaceAll(path, "{role}", "critic"))
		}
		return nil
	})
	if err != nil || len(all) < 11 {
		t.Fatalf("routed: %v %v", all, err)
	}
	return all
}

// shows: FAULT-A2
func TestAnotherUserIsServedTheLifeWhoseSecretHeKnowsAndNothingElse(t *testing.T) {
	t.Parallel()
	other := clientOf(t, otherUser)
	s := enter(t, workerOf(`echo "$VIGIL_SERVICE_URL"; exec sleep 1000`))
	at := "http://" + s.hub.Registrations()[0].HTTPAddress
	s.must(run(1))
	var lives [2]string
	for rank := range lives {
		s.awaitLog(1, rank, "/life/")
		lives[rank] = strings.TrimSpace(s.log(1, rank, "stdout"))
	}
	post := func(method, url string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := other.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, op := range append(routed(t), "GET /", "POST /nothing") {
		method, path, _ := strings.Cut(op, " ")
		if got := post(method, at+path); got != http.StatusForbidden {
			t.Errorf("another user: %s = %d, want 403", op, got)
		}
	}
	secrets := [2]string{}
	for rank, url := range lives {
		secret, life, _ := strings.Cut(strings.TrimPrefix(url, at+"/life/"), "/")
		if len(secret) != 32 || life != s.life(1, rank).String() {
			t.Fatalf("VIGIL_SERVICE_URL of rank %d is %s", rank, url)
		}
		secrets[rank] = secret
		for _, verb := range []string{"/heartbeat?step=7", "/notify"} {
			if got := post(http.MethodPost, url+verb); got != http.StatusOK {
				t.Errorf("a worker of another user: %s of rank %d = %d, want 200", verb, rank, got)
			}
		}
		for _, wrong := range []string{
			at + "/life/" + life, at + "/life/" + secret[1:] + "0/" + life, strings.Replace(url, "/1/0/1", "/2/0/1", 1), // another incarnation
			at + "/life/" + secret + "/" + strings.Replace(life, fmt.Sprintf("/%d/1", rank), fmt.Sprintf("/%d/1", 1-rank), 1),
		} {
			if wrong == url {
				continue
			}
			if got := post(http.MethodPost, wrong+"/report_error"); got != http.StatusForbidden {
				t.Errorf("%s = %d, want 403", wrong, got)
			}
		}
		if got := post(http.MethodPost, url+"/stop_service"); got != http.StatusNotFound {
			t.Errorf("stop_service below a life = %d, want 404", got)
		}
	}
	if f := s.ears.awaitState(t, 0, role.WorkerReady); f.PID == 0 {
		t.Error("the worker is gone")
	}
	if n := len(s.ears.failed()); n != 0 {
		t.Errorf("%d failures were told", n)
	}
	// The secrets are in the environment of their workers, and nowhere else.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.service.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range secrets {
		if strings.Contains(s.said.String(), secret) || strings.Contains(string(command), secret) {
			t.Errorf("a secret stands in the service's log or command line")
		}
	}
	// Its own user asks as ever, and a web page that he looks at does not.
	if code, got := request(t, http.MethodGet, at+"/critic/get_step", ""); code != http.StatusOK {
		t.Errorf("the owner: get_step = %d %s", code, got)
	}
	for _, page := range [][2]string{{"Host", "evil.example"}, {"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		for _, url := range []string{at + "/critic/mark_unhealthy_for_testing", at + "/critic/get_step"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(page[0], page[1])
			if page[0] == "Host" {
				req.Host = page[1]
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden {
				t.Errorf("a web page by %v: %s = %d, want 403", page, url, resp.StatusCode)
			}
		}
	}
}
