package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// crowd opens connections that are kept until the script ends: "crowd idle N [URL]" says nothing on them, "crowd streams
// N" asks on each for the stream of events. URL is the controller's, or what a file has, as @FILE. It sets OPEN and
// REFUSED to how many streams were begun and refused; a refusal must name the limit and say when to come back.
func crowd(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, args, 2)
	s := on(ts)
	at := s.url
	if len(args) > 2 {
		at = args[2]
		if path, ok := strings.CutPrefix(at, "@"); ok {
			text, err := os.ReadFile(ts.MkAbs(path))
			ts.Check(err)
			at = strings.TrimSpace(string(text))
		}
	}
	u, err := url.Parse(at)
	ts.Check(err)
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	open, refused := 0, 0
	for range n {
		c, err := net.DialTimeout("tcp", u.Host, patience)
		ts.Check(err)
		ts.Defer(func() { c.Close() })
		if args[0] == "idle" {
			continue
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "GET /api/v1/events HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\n\r\n", u.Host)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			ts.Fatalf("stream %d of %d is not answered: %v", open+refused, n, err)
		}
		switch answer.StatusCode {
		case http.StatusOK:
			open++
		case http.StatusServiceUnavailable:
			refused++
			text, _ := io.ReadAll(answer.Body)
			if answer.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "streams are open") {
				ts.Fatalf("a stream is refused with %v %s", answer.Header, text)
			}
		default:
			ts.Fatalf("a stream is answered %s", answer.Status)
		}
	}
	ts.Setenv("OPEN", strconv.Itoa(open))
	ts.Setenv("REFUSED", strconv.Itoa(refused))
}
