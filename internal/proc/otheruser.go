package proc

import (
	"os"
	"strconv"
	"strings"
)

// OtherUser is a process that runs as another user than we do.
type OtherUser struct {
	PID  int
	Name string // of its command, at most 15 bytes
	UID  int    // the effective one
}

// OtherUsers returns who of the trees of these processes runs as another user than we do, by the pid of the process: it
// itself, else the nearest below it. It reads all of /proc.
func (k *Keeper) OtherUsers(procs []*Process) map[int]OtherUser {
	s := k.look()
	us, found := os.Geteuid(), map[int]OtherUser{}
	for _, p := range procs {
		for line := []int{p.PID()}; len(line) > 0; line = line[1:] {
			pid := line[0]
			if uid, ok := effectiveUser(pid); ok && uid != us {
				found[p.PID()] = OtherUser{PID: pid, Name: s.all[pid].Name, UID: uid}
				break
			}
			line = append(line, s.below[pid]...)
		}
	}
	return found
}

// effectiveUser is the effective user of a process, also of one whose files in /proc the kernel has given to root
// (proc(5), dumpable); false when it has ended.
func effectiveUser(pid int) (int, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, false
	}
	_, after, _ := strings.Cut(string(text), "\nUid:")
	line, _, _ := strings.Cut(after, "\n")
	ids := strings.Fields(line) // real, effective, saved, of the file system
	if len(ids) < 2 {
		return 0, false
	}
	uid, err := strconv.Atoi(ids[1])
	return uid, err == nil
}
