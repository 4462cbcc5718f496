package devices

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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

// Users returns every process that computes on a device of this machine, as nvidia-smi sees it.
// Without nvidia-smi there are none.
func Users(ctx context.Context) ([]User, error) {
	rows, err := ask(ctx, "--query-compute-apps=pid,gpu_uuid", 2)
	if err != nil {
		return nil, fmt.Errorf("list users of GPUs: %w", err)
	}
	var out []User
	for _, r := range rows {
		if pid, err := strconv.Atoi(r[0]); err == nil {
			out = append(out, User{PID: pid, Command: command(pid), UUID: r[1]})
		}
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
	return strings.TrimSpace(string(b))
}
