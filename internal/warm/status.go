package warm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Status is what is to be known of a fork server.
type Status struct {
	PID     int      // 0: there is none
	Ready   bool     // it forks
	Modules []string // what it has imported, in order
	Memory  int64    // resident, bytes
	Spares  int      // how many processes stand ready to be workers
	Why     string   // why workers start cold; empty if they do not
}

// Status says how the fork server is.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Why: s.why}
	if s.life == nil {
		return st
	}
	st.PID = s.life.proc.PID()
	st.Memory, st.Spares = residentBytes(st.PID), s.life.stock.count()
	select {
	case <-s.life.settled:
		st.Ready, st.Modules = s.life.why == "", s.life.modules
	default:
	}
	return st
}

// residentBytes is a process's resident memory (proc_pid_statm(5)); 0 when it has ended.
func residentBytes(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
