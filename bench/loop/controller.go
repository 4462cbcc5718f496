package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vigil/internal/event"
	"vigil/internal/job"
)

// patience is how long anything may take before the benchmark gives up.
const patience = 30 * time.Second

// controller is a controller process whose events are followed.
type controller struct {
	cmd    *exec.Cmd
	url    string
	log    *bytes.Buffer // of its standard error, whole once it has ended
	ended  chan struct{} // closed when it has
	stream io.Closer
	events chan event.Event
}

// startController starts the program with the job in a folder of its own, and returns when its HTTP
// interface answers.
func startController(program, folder string, j *job.Job, env []string) (*controller, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("start controller: %w", err)
	}
	file := filepath.Join(folder, "job.yaml")
	if err := os.WriteFile(file, j.YAML(), 0o600); err != nil {
		return nil, fmt.Errorf("start controller: %w", err)
	}
	c := &controller{ended: make(chan struct{}), events: make(chan event.Event, 1024), log: &bytes.Buffer{}}
	c.cmd = exec.Command(program, "--job", file, "--use-health-check", "--max-global-restart", "1000000", "--http", "127.0.0.1:0",
		"--state-dir", filepath.Join(folder, "s"), "--runtime-dir", filepath.Join(folder, "r"), "--log-format", "json")
	c.cmd.Env = append(os.Environ(), env...)
	out, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start controller: %w", err)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start controller: %w", err)
	}
	address := make(chan string, 1)
	go c.read(out, address)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case c.url = <-address:
	case <-c.ended:
		return nil, fmt.Errorf("start controller: it ended with %s\n%s", c.cmd.ProcessState, c.log)
	case <-timer.C:
		return nil, errors.Join(fmt.Errorf("start controller: it says no address within %s", patience), c.cmd.Process.Kill())
	}
	if err := c.follow(); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// read keeps what the controller logs and finds the address of its HTTP interface.
func (c *controller) read(out io.Reader, address chan<- string) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var said struct{ HTTP string }
		if json.Unmarshal(lines.Bytes(), &said) == nil && said.HTTP != "" {
			select {
			case address <- said.HTTP:
			default:
			}
		}
		c.log.Write(lines.Bytes())
		c.log.WriteByte('\n')
	}
	_ = c.cmd.Wait() // its state says how it ended
	close(c.ended)
}

// follow opens the stream of events.
func (c *controller) follow() error {
	req, err := http.NewRequest(http.MethodGet, c.url+"/api/v1/events", nil)
	if err != nil {
		return fmt.Errorf("follow events: %w", err)
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req) //nolint:bodyclose // whoever reads it to its end closes it
	if err != nil {
		return fmt.Errorf("follow events: %w", err)
	}
	c.stream = resp.Body
	go func() {
		defer close(c.events)
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			var ev event.Event
			if ok && json.Unmarshal([]byte(data), &ev) == nil && ev.Kind != "" {
				c.events <- ev
			}
		}
	}()
	return nil
}

// until reads events up to the first that is wanted, and returns all of them.
func (c *controller) until(wanted func(event.Event) bool) ([]event.Event, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var seen []event.Event
	for {
		select {
		case ev, ok := <-c.events:
			if !ok {
				return seen, errors.New("follow events: the stream has ended")
			}
			seen = append(seen, ev)
			if wanted(ev) {
				return seen, nil
			}
		case <-timer.C:
			return seen, fmt.Errorf("follow events: what is waited for has not come within %s; the last was %v", patience, seen[max(0, len(seen)-1):])
		}
	}
}

// kind is an event of that kind.
func kind(k event.Kind) func(event.Event) bool {
	return func(ev event.Event) bool { return ev.Kind == k }
}

// find returns the first event that is wanted.
func find(events []event.Event, wanted func(event.Event) bool) (event.Event, error) {
	for _, ev := range events {
		if wanted(ev) {
			return ev, nil
		}
	}
	return event.Event{}, errors.New("find event: what was waited for has not happened")
}

// post asks the controller for something.
func (c *controller) post(path, body string) error {
	resp, err := http.Post(c.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		return fmt.Errorf("post: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		return errors.Join(fmt.Errorf("post %s: %s: %s", path, resp.Status, text), err)
	}
	return nil
}

// stop ends the job in order and waits for the controller.
func (c *controller) stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop controller: %w", err)
	}
	if c.stream != nil {
		c.stream.Close()
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.ended:
		if c.cmd.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
			return fmt.Errorf("stop controller: it ended with %s\n%s", c.cmd.ProcessState, c.log)
		}
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("stop controller: not done after %s", patience), c.cmd.Process.Kill())
	}
}
