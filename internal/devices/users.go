package devices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// User is one process that has a device open.
type User struct {
	PID     int
	Command string // empty when the process cannot be seen from here, as in another container
	UUID    string // of the device
}

// String says it as a person would: "pid 4711 (python3)".
func (u User) String() string {
	if u.Command == "" {
		return fmt.Sprintf("pid %d", u.PID)
	}
	return fmt.Sprintf("pid %d (%s)", u.PID, u.Command)
}

// Describe adds whose it is and since when it runs: "pid 4711 (python3, alice, uid 1001, since 2026-12-01 14:03:05)".
func (u User) Describe() string {
	p := u.Process()
	if u.Command != "" {
		return p.describe(p.Start, u.Command)
	}
	return p.describe(p.Start)
}

// Process is what can be seen of it from here.
func (u User) Process() Process {
	p := Process{PID: u.PID, UID: unknown}
	if st, err := os.Stat(fmt.Sprintf("/proc/%d", u.PID)); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			p.UID = int(sys.Uid)
		}
	}
	if ms, ok := startOf(u.PID); ok {
		p.Start = time.Now().Add(time.Duration(ms-sinceBoot()) * time.Millisecond)
	}
	return p
}

// Users returns every process that computes on a device of this machine, as the vendors' tools see it. Without a tool
// there are none. It is an error if no tool can say.
func Users(ctx context.Context) ([]User, error) {
	var out []User
	var errs []error
	answered := false
	for _, t := range tools {
		path := findTool(t.name())
		if path == "" {
			continue
		}
		used, err := t.users(ctx, askerOf(path))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		answered = true
		for _, u := range used {
			u.Command = command(u.PID)
			out = append(out, u)
		}
	}
	if !answered && len(errs) > 0 {
		return nil, fmt.Errorf("list users of devices: %w", errors.Join(errs...))
	}
	return out, nil
}

// Holders returns which of the processes still hold a device: the proof after stopping, where empty
// means that none does. The processes may be gone; a driver can keep a device for a dead one.
func Holders(ctx context.Context, pids []int) ([]User, error) {
	users, err := Users(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(users, func(u User) bool { return !slices.Contains(pids, u.PID) }), nil
}

func command(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return printable(strings.TrimSpace(string(b)), 40)
}
