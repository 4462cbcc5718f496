package controller

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"vigil/internal/wire/notify"
)

const (
	// supervisorEvery is how often a supervisor is told how the job stands, if that has changed.
	supervisorEvery = time.Second
	// loopPatience is how long the repair loop may take to answer before the watchdog is not fed.
	loopPatience = 2 * time.Second
)

// supervisor is whoever has started the controller and wants to hear of it: systemd, or another that keeps
// to sd_notify(3) and sd_watchdog_enabled(3).
type supervisor struct {
	socket string
	every  time.Duration // between two words of the watchdog; 0: none is asked for
	said   string
	ready  bool
	stops  bool // it knows that the job is being stopped
	mute   bool // it could not be told, which was said
}

// newSupervisor reads what the environment says of it; nil: there is none.
func newSupervisor(environ []string, pid int) *supervisor {
	env := map[string]string{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	s := &supervisor{socket: env["NOTIFY_SOCKET"]}
	if s.socket == "" {
		return nil
	}
	limit, err := strconv.ParseInt(env["WATCHDOG_USEC"], 10, 64)
	if whose := env["WATCHDOG_PID"]; err == nil && limit > 0 && (whose == "" || whose == strconv.Itoa(pid)) {
		s.every = time.Duration(limit) * time.Microsecond / 3
	}
	return s
}

// followSupervisor tells the supervisor the truth: READY=1 once every role has begun, STATUS= as it changes,
// WATCHDOG=1 as long as sweeps come in time and the repair loop answers, STOPPING=1 at the end.
func (c *Controller) followSupervisor() func(context.Context) error {
	s := newSupervisor(c.opts.Environ, os.Getpid())
	if s == nil {
		return func(context.Context) error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		status := time.NewTicker(supervisorEvery)
		defer status.Stop()
		var feed <-chan time.Time
		if s.every > 0 {
			watchdog := time.NewTicker(s.every)
			defer watchdog.Stop()
			feed = watchdog.C
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-status.C:
				c.tellStatus(s)
			case <-feed:
				c.feedWatchdog(ctx, s)
			}
		}
	}()
	return func(context.Context) error {
		cancel()
		<-done
		if !s.stops {
			c.tell(s, "STOPPING=1")
		}
		return nil
	}
}

// tellStatus says how the job stands, once it has changed, and once that it is ready.
func (c *Controller) tellStatus(s *supervisor) {
	state, why := view{c}.state()
	text := state
	if why != "" {
		text += ": " + why
	}
	ready := s.ready || (view{c}).Ready() == nil
	stops := s.stops || state == "stopping"
	var words []string
	if text != s.said {
		words = append(words, "STATUS="+strings.ReplaceAll(text, "\n", " "))
	}
	if ready && !s.ready {
		words = append(words, "READY=1")
	}
	if stops && !s.stops {
		words = append(words, "STOPPING=1")
	}
	if len(words) > 0 && c.tell(s, strings.Join(words, "\n")) { // else it is told next time
		s.said, s.ready, s.stops = text, ready, stops
	}
}

// feedWatchdog says that the controller gets on, if it does.
func (c *Controller) feedWatchdog(ctx context.Context, s *supervisor) {
	err := view{c}.Healthy()
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, loopPatience)
		defer cancel()
		err = c.engine.Alive(ctx)
	}
	if err != nil {
		c.log.Error("the supervisor's watchdog is not fed", "error", err)
		return
	}
	c.tell(s, "WATCHDOG=1")
}

// tell sends words and says once that it cannot.
func (c *Controller) tell(s *supervisor, words string) bool {
	err := notify.Send(s.socket, words)
	if err != nil && !s.mute {
		s.mute = true
		c.log.Warn("the supervisor is not told", "error", fmt.Errorf("NOTIFY_SOCKET %s: %w", s.socket, err))
	}
	return err == nil
}
