// Command recording makes docs/recovery.svg: it runs the built-in job, kills a worker of the critic,
// and draws what the terminals showed. Run it from the root of the repository: go run ./tools/recording
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// line is one line of the recording, with the time at which it is shown.
type line struct {
	at    time.Duration
	text  string
	class string // c: a command, n: a note, empty: output
}

type role struct {
	Name        string `json:"name"`
	Incarnation int    `json:"incarnation"`
	Workers     []struct {
		PID int `json:"pid"`
	} `json:"workers"`
}

func main() {
	log.SetFlags(0)
	lines, err := record()
	if err != nil {
		log.Fatal("recording: ", err)
	}
	if err := os.WriteFile("docs/recovery.svg", draw(lines), 0o644); err != nil {
		log.Fatal("recording: ", err)
	}
}

// output collects what the controller prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func record() ([]line, error) {
	dir, err := os.MkdirTemp("", "recording")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin := filepath.Join(dir, "controller")
	if out, err := exec.Command("go", "build", "-o", bin, "./cmd/controller").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	said := &output{}
	job := exec.CommandContext(ctx, bin, "--use-health-check", "--http", "127.0.0.1:0", "--state-dir", filepath.Join(dir, "state"))
	job.Stderr = said
	if err := job.Start(); err != nil {
		return nil, err
	}
	defer func() { _ = job.Process.Signal(syscall.SIGINT); _ = job.Wait() }()
	url, err := until(ctx, func() string {
		if m := regexp.MustCompile(`http=(http://\S+)`).FindStringSubmatch(said.String()); m != nil {
			return m[1]
		}
		return ""
	})
	if err != nil {
		return nil, err
	}
	status := func() (string, []role) {
		out, _ := exec.Command(bin, "status", "--http", url).Output()
		raw, _ := exec.Command(bin, "status", "--http", url, "-o", "json").Output()
		var s struct{ Roles []role }
		_ = json.Unmarshal(raw, &s)
		return string(out), s.Roles
	}
	critic := func(roles []role) role {
		for _, r := range roles {
			if r.Name == "critic" {
				return r
			}
		}
		return role{}
	}
	before, err := until(ctx, func() string {
		out, roles := status()
		if c := critic(roles); len(c.Workers) == 0 || strings.Contains(out, "none yet") || !regexp.MustCompile(`step \d\d`).MatchString(out) {
			return ""
		}
		return out
	})
	if err != nil {
		return nil, err
	}
	_, roles := status()
	c := critic(roles)
	mark := len(said.String())
	if err := syscall.Kill(c.Workers[0].PID, syscall.SIGKILL); err != nil {
		return nil, err
	}
	after, err := until(ctx, func() string {
		if _, roles := status(); critic(roles).Incarnation <= c.Incarnation || !strings.Contains(said.String(), "restarted in place") {
			return ""
		}
		out, _ := status()
		if strings.Contains(out, "none yet") {
			return ""
		}
		return out
	})
	if err != nil {
		return nil, err
	}
	var lines []line
	at := time.Duration(0)
	add := func(pause time.Duration, class, text string) {
		at += pause
		for l := range strings.Lines(strings.TrimRight(text, "\n")) {
			lines = append(lines, line{at, strings.ReplaceAll(strings.TrimRight(l, "\n"), dir, "~"), class})
			at += 30 * time.Millisecond
		}
	}
	add(0, "c", "$ controller status")
	add(300*time.Millisecond, "", before)
	add(1500*time.Millisecond, "c", fmt.Sprintf("$ kill -9 %d        # the critic's worker", c.Workers[0].PID))
	add(200*time.Millisecond, "n", strings.TrimRight(said.String()[mark:], "\n"))
	add(1500*time.Millisecond, "c", "$ controller status")
	add(300*time.Millisecond, "", after)
	return lines, nil
}

// until asks until there is an answer.
func until(ctx context.Context, ask func() string) (string, error) {
	for {
		if answer := ask(); answer != "" {
			return answer, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// draw makes the picture: every line appears at its time and stays; after a rest it begins again.
func draw(lines []line) []byte {
	const width, left, top, height = 1000, 16, 30, 17
	total := lines[len(lines)-1].at + 8*time.Second
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d">`+"\n", width, top+height*(len(lines)+1))
	b.WriteString("<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#d8dee9}.c{fill:#a3be8c;font-weight:bold}.n{fill:#ebcb8b}</style>\n")
	b.WriteString(`<rect width="100%" height="100%" rx="8" fill="#20242c"/>` + "\n")
	for i, l := range lines {
		from := float64(l.at) / float64(total)
		fmt.Fprintf(&b, `<text xml:space="preserve" x="%d" y="%d" class="%s">%s<animate attributeName="opacity" values="0;0;1;1" keyTimes="0;%.4f;%.4f;1" dur="%.1fs" repeatCount="indefinite"/></text>`+"\n",
			left, top+height*i, l.class, html.EscapeString(l.text), from, min(from+0.0001, 1), total.Seconds())
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
