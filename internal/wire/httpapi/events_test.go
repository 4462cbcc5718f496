package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"vigil/internal/event"
	"vigil/internal/wire/caller"
	"vigil/internal/wire/httpapi"
	"vigil/internal/wire/roleapi"
)

// patience is how long a test waits for what must come, also on a machine that is much too busy.
const patience = 3 * time.Minute

func record(f *fake, n int) {
	for range n {
		f.Record(event.New(began, event.Decided))
	}
}

func seqs(events []event.Event) []uint64 {
	var out []uint64
	for _, e := range events {
		out = append(out, e.Seq)
	}
	return out
}

func TestEventsArePagedByACursor(t *testing.T) {
	f := newFake()
	record(f, 5)
	a := newAPI(f, "")
	for _, c := range []struct {
		query string
		want  []uint64
		next  uint64
	}{
		{"", []uint64{1, 2, 3, 4, 5}, 5},
		{"?limit=2", []uint64{1, 2}, 2},
		{"?after=2&limit=2", []uint64{3, 4}, 4},
		{"?after=4", []uint64{5}, 5},
		{"?after=5", nil, 5},
		{"?after=900", []uint64{1, 2, 3, 4, 5}, 5}, // of an earlier numbering
	} {
		w := ask(t, a, http.MethodGet, "/api/v1/events"+c.query)
		var list httpapi.EventList
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(seqs(list.Events), c.want) || list.Next != c.next || list.Missed != 0 {
			t.Errorf("events%s = %s, want %v and next %d", c.query, w.Body, c.want, c.next)
		}
		if !strings.Contains(w.Body.String(), `"events":[`) {
			t.Errorf("events%s is not a list: %s", c.query, w.Body)
		}
	}
}

func TestEventsThatAreNoLongerKeptAreCounted(t *testing.T) {
	f := newFake() // keeps 100
	record(f, 130)
	w := ask(t, newAPI(f, ""), http.MethodGet, "/api/v1/events?after=10&limit=1")
	var list httpapi.EventList
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || list.Missed != 20 || list.Next != 31 {
		t.Errorf("events = %s, want missed 20 and next 31", w.Body)
	}
}

// serve serves the API until the test ends.
func serve(t *testing.T, f *fake) (url string) {
	t.Helper()
	a := newAPI(f, "")
	srv := httptest.NewUnstartedServer(a)
	srv.Config.ConnContext = caller.ConnContext
	srv.Start()
	t.Cleanup(srv.Close)
	t.Cleanup(a.Close) // before the server's, which waits for its streams
	return srv.URL
}

// stream opens the events as server-sent events and hands out their messages.
func stream(t *testing.T, url string, headers ...string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // closed by the reader below
	if err != nil {
		t.Fatal(err)
	}
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		t.Fatalf("stream = %d %s", resp.StatusCode, kind)
	}
	messages := make(chan string, 1000)
	go func() {
		defer close(messages)
		defer resp.Body.Close()
		var lines []string
		for scan := bufio.NewScanner(resp.Body); scan.Scan(); {
			if line := scan.Text(); line != "" {
				lines = append(lines, line)
				continue
			}
			messages <- strings.Join(lines, "|")
			lines = nil
		}
	}()
	return messages
}

func next(t *testing.T, messages <-chan string) string {
	t.Helper()
	select {
	case m := <-messages:
		return m
	case <-time.After(patience):
		t.Fatal("no message within 30s")
		return ""
	}
}

func TestEventsAreStreamedAsTheyHappen(t *testing.T) {
	f := newFake()
	record(f, 2)
	messages := stream(t, serve(t, f)+"/api/v1/events?after=1")
	if m := next(t, messages); m != "retry: 1000" {
		t.Errorf("first message %q", m)
	}
	for seq := 2; seq < 20; seq++ {
		m := next(t, messages)
		data, ok := strings.CutPrefix(m, fmt.Sprintf("id: %d|data: ", seq))
		var e event.Event
		if err := json.Unmarshal([]byte(data), &e); !ok || err != nil || e.Seq != uint64(seq) || e.Kind != event.Decided || e.Rank != -1 {
			t.Fatalf("message %q, want event %d", m, seq)
		}
		record(f, 1)
	}
}

func TestAStreamGoesOnAfterTheLastEventThatWasSeenAndSaysWhatWasMissed(t *testing.T) {
	f := newFake()
	record(f, 150)
	url := serve(t, f)
	for _, c := range []struct{ after, want string }{
		{"120", "id: 121|"},
		{"40", `event: missed|data: {"missed":10}`},
		{"9000", `event: missed|data: {"missed":50}`}, // of an earlier numbering
	} {
		messages := stream(t, url+"/api/v1/events?after=3", "Last-Event-ID", c.after)
		next(t, messages)
		if m := next(t, messages); !strings.HasPrefix(m, c.want) {
			t.Errorf("after %s comes %q, want %q", c.after, m, c.want)
		}
	}
}

func TestAnOpenStreamDoesNotHoldUpShutdown(t *testing.T) {
	l, err := httpapi.Open("127.0.0.1:0", httpapi.Security{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	srv := roleapi.NewServer(newAPI(newFake(), ""), slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	messages := stream(t, "http://"+l.Addr().String()+"/api/v1/events")
	next(t, messages)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		t.Errorf("shutdown with an open stream: %v", err)
	}
	<-served
	for range messages {
	}
}
