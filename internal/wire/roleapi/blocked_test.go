package roleapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"vigil/internal/role"
	"vigil/internal/wire/caller"
	"vigil/internal/wire/roleapi"
)

// blocked is a role whose stop and reports hang until let go.
type blocked struct {
	fake
	entered chan string
	letGo   chan struct{}
}

func (b *blocked) StopService(context.Context, role.Name) error {
	b.entered <- "stop"
	<-b.letGo
	return nil
}

func (b *blocked) ReportError(context.Context, role.Name, roleapi.Report) error {
	b.entered <- "report"
	<-b.letGo
	return nil
}

// shows: D21
func TestHeartbeatsGoOnWhileAStopAndReportsAreBlocked(t *testing.T) {
	b := &blocked{entered: make(chan string, 10), letGo: make(chan struct{})}
	srv := httptest.NewUnstartedServer(handler(b, "127.0.0.1:0"))
	srv.Config.ConnContext = caller.ConnContext
	srv.Start()
	defer srv.Close()
	client := &http.Client{Timeout: 20 * time.Second}
	post := func(path string) (int, error) {
		resp, err := client.Post(srv.URL+path, "text/plain", nil)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	ends := make(chan int, 6)
	for _, path := range []string{"/critic/stop_service", "/critic/report_error", "/critic/report_error", "/critic/report_error", "/actor/report_error", "/actor/stop_service"} {
		go func() {
			status, err := post(path)
			if err != nil {
				t.Error(err)
			}
			ends <- status
		}()
	}
	for range cap(ends) {
		<-b.entered
	}
	for range 20 {
		if status, err := post("/critic/heartbeat?step=1"); err != nil || status != 200 {
			t.Fatalf("heartbeat = %d %v, want 200", status, err)
		}
	}
	if len(ends) != 0 || len(b.words) != 20 {
		t.Errorf("%d blocked requests ended, %d heartbeats arrived; want none and 20", len(ends), len(b.words))
	}
	close(b.letGo)
	for range cap(ends) {
		if status := <-ends; status != 200 {
			t.Errorf("a request that was let go = %d", status)
		}
	}
}
