package httpapi

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"vigil/internal/wire/caller"
)

// Listen listens on addr, HOST:PORT. If the port is in use, the error says by whom, as far as this
// user may see that: "listen on 127.0.0.1:8000: address already in use by python3 (pid 4711)". It
// wraps syscall.EADDRINUSE then.
func Listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l, nil
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	who := "a process that this user cannot see"
	if resolved, err := net.ResolveTCPAddr("tcp", addr); err == nil {
		if h := holders(resolved.AddrPort()); len(h) > 0 {
			who = strings.Join(h, ", ")
		}
	}
	return nil, fmt.Errorf("listen on %s: %w by %s", addr, syscall.EADDRINUSE, who)
}

// holders names the processes that listen where addr cannot be bound any more: "python3 (pid 4711)".
func holders(addr netip.AddrPort) []string {
	var sockets []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if text, err := os.ReadFile(table); err == nil {
			sockets = append(sockets, listening(string(text), addr)...)
		}
	}
	if len(sockets) == 0 {
		return nil
	}
	return openers(sockets)
}

// listening returns the sockets, as /proc/PID/fd names them, that listen on addr or stand in its way
// because one of the two is a wildcard. Table is the text of /proc/net/tcp or tcp6 (proc(5)).
func listening(table string, addr netip.AddrPort) []string {
	const listen = "0A" // TCP_LISTEN
	var sockets []string
	for line := range strings.SplitSeq(table, "\n") {
		field := strings.Fields(line)
		if len(field) < 10 || field[3] != listen {
			continue
		}
		at, err := caller.ParseProcAddr(field[1])
		if err != nil || at.Port() != addr.Port() {
			continue
		}
		wanted, have := addr.Addr().Unmap(), at.Addr().Unmap()
		if have == wanted || have.IsUnspecified() || !wanted.IsValid() || wanted.IsUnspecified() {
			sockets = append(sockets, "socket:["+field[9]+"]")
		}
	}
	return sockets
}

// openers names the processes that hold one of the sockets open, in order of their pids.
func openers(sockets []string) []string {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil
	}
	var pids []int
	for _, link := range links {
		// Processes end and descriptors close meanwhile, and other users' cannot be read.
		target, err := os.Readlink(link)
		if err != nil || !slices.Contains(sockets, target) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(link, "/")[2]); err == nil && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	var who []string
	for _, pid := range pids {
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue
		}
		who = append(who, fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(comm)), pid))
	}
	return who
}
