package proc

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Listener is who listens on a TCP port of this machine.
type Listener struct {
	PID  int    // 0: it is hidden from us
	Name string // of its command, at most 15 bytes
	UID  int    // the user's
	Mark string // its VIGIL_LIFE; may be empty
}

func (l Listener) String() string {
	if l.PID == 0 {
		return fmt.Sprintf("a process of user %d", l.UID)
	}
	return fmt.Sprintf("pid %d (%s)", l.PID, l.Name)
}

// Below reports whether a process is the listener or one of its ancestors.
func (l Listener) Below(pid int) bool {
	for at := l.PID; at > 1; {
		if at == pid {
			return true
		}
		e, err := readEntry(at)
		if err != nil {
			return false
		}
		at = e.Parent
	}
	return false
}

// ListenerOn returns who listens on a TCP port, on whatever address (/proc/net/tcp, proc(5)), and whether
// anybody does in our network namespace.
func ListenerOn(port int) (Listener, bool) {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		if inode, uid, found := listening(table, port); found {
			who := Listener{UID: uid}
			who.PID, who.Name = ownerOf("socket:[" + inode + "]")
			if who.PID != 0 {
				who.Mark, _ = readMark(who.PID, nil)
			}
			return who, true
		}
	}
	return Listener{}, false
}

// listening looks for a socket in the state LISTEN.
func listening(table string, port int) (inode string, uid int, found bool) {
	f, err := os.Open(table)
	if err != nil {
		return "", 0, false
	}
	defer f.Close()
	const listen = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for s := bufio.NewScanner(f); s.Scan(); {
		// sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode
		field := strings.Fields(s.Text())
		if len(field) >= 10 && field[3] == listen && strings.HasSuffix(field[1], suffix) {
			uid, _ = strconv.Atoi(field[7])
			return field[9], uid, true
		}
	}
	return "", 0, false
}

// Lingering says what of earlier connections keeps a TCP port from being bound by a program that does not set
// SO_REUSEADDR, while nobody listens on it: such as "TIME_WAIT", in which the kernel keeps a connection for a minute
// that this side has closed. Empty: nothing does, or somebody listens.
func Lingering(port int) string {
	var found string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		suffix := fmt.Sprintf(":%04X", port)
		for s := bufio.NewScanner(f); s.Scan(); {
			field := strings.Fields(s.Text())
			if len(field) < 4 || !strings.HasSuffix(field[1], suffix) {
				continue
			}
			if name := tcpStates[field[3]]; name == "LISTEN" {
				f.Close()
				return ""
			} else if found != "TIME_WAIT" && name != "" {
				found = name
			}
		}
		f.Close()
	}
	return found
}

// tcpStates are the states in which a socket may hold its local port (include/net/tcp_states.h).
var tcpStates = map[string]string{
	"01": "ESTABLISHED", "02": "SYN_SENT", "03": "SYN_RECV", "04": "FIN_WAIT1", "05": "FIN_WAIT2", "06": "TIME_WAIT",
	"07": "CLOSE", "08": "CLOSE_WAIT", "09": "LAST_ACK", "0A": "LISTEN", "0B": "CLOSING", "0C": "SYN_RECV",
}

// ownerOf returns a process that has a file open whose link reads like that.
func ownerOf(link string) (pid int, name string) {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/[0-9]*")
	for _, path := range files {
		if to, err := os.Readlink(path); err == nil && to == link {
			pid, _ = strconv.Atoi(strings.Split(path, "/")[2])
			if e, err := readEntry(pid); err == nil {
				name = e.Name
			}
			return pid, name
		}
	}
	return 0, ""
}
