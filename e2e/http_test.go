package e2e

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// ask makes a request and returns what came.
func (s *stage) ask(method, path, body string) (int, string, error) {
	if strings.HasPrefix(path, "/") {
		path = s.url + path
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if strings.HasPrefix(body, "{") {
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(got), err
}

func get(ts *testscript.TestScript, neg bool, args []string) { request(ts, neg, "GET", args) }

func post(ts *testscript.TestScript, neg bool, args []string) { request(ts, neg, "POST", args) }

func request(ts *testscript.TestScript, neg bool, method string, args []string) {
	want(ts, neg, args, 1)
	status := http.StatusOK
	if rest, ok := strings.CutPrefix(args[0], "-"); ok {
		var err error
		status, err = strconv.Atoi(rest)
		ts.Check(err)
		args = args[1:]
	}
	body := strings.Join(args[1:], " ")
	if file, ok := strings.CutPrefix(body, "@"); ok {
		body = ts.ReadFile(file)
	}
	code, got, err := on(ts).ask(method, args[0], body)
	ts.Check(err)
	_, _ = io.WriteString(ts.Stdout(), got)
	if code != status {
		ts.Fatalf("%s %s: %d, want %d: %s", method, args[0], code, status, got)
	}
}
