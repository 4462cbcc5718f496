package evidence

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// procRoot is where the kernel tells of processes (proc(5)).
const procRoot = "/proc"

// Bounds of what is looked at of one worker.
const (
	mostProcesses = 32
	mostThreads   = 256
)

// processState is what the kernel says of one process.
type processState struct {
	pid     int
	name    string
	command string // with its arguments
	state   byte   // R, S, D, T, t, Z, X; 0: it has ended
	wchan   string
	status  []string // lines of interest
	threads []threadState
	cut     int // threads that were not looked at
}

type threadState struct {
	id      string
	name    string
	state   byte
	cpu     string // user and system time in ticks
	wchan   string // the kernel function that it waits in
	syscall string // number and arguments of the system call that it is in, or "running"
	stack   string // where root may read it
}

// readProcess looks at a process. What the kernel does not show is empty.
func readProcess(root string, pid int) processState {
	dir := filepath.Join(root, strconv.Itoa(pid))
	p := processState{pid: pid, command: strings.TrimSpace(strings.ReplaceAll(readSome(filepath.Join(dir, "cmdline"), 4096), "\x00", " "))}
	main := readThread(dir, strconv.Itoa(pid))
	p.name, p.state, p.wchan = main.name, main.state, main.wchan
	for line := range strings.Lines(readSome(filepath.Join(dir, "status"), 8192)) {
		key, _, _ := strings.Cut(line, ":")
		if slices.Contains([]string{"State", "PPid", "TracerPid", "VmRSS", "VmSwap", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"}, key) {
			p.status = append(p.status, strings.TrimSpace(line))
		}
	}
	tasks := threadsOf(dir)
	for _, id := range tasks[:min(len(tasks), mostThreads)] {
		p.threads = append(p.threads, readThread(filepath.Join(dir, "task", id), id))
	}
	p.cut = len(tasks) - len(p.threads)
	return p
}

// threadsOf lists the threads of a process, the main one first.
func threadsOf(dir string) []string {
	f, err := os.Open(filepath.Join(dir, "task"))
	if err != nil {
		return nil
	}
	defer f.Close()
	ids, _ := f.Readdirnames(-1) // as many as can be had
	slices.SortFunc(ids, func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	})
	return ids
}

func readThread(dir, id string) threadState {
	t := threadState{
		id:      id,
		wchan:   strings.TrimSpace(readSome(filepath.Join(dir, "wchan"), 256)),
		syscall: strings.TrimSpace(readSome(filepath.Join(dir, "syscall"), 512)),
		stack:   strings.TrimSpace(readSome(filepath.Join(dir, "stack"), 8192)),
	}
	stat := readSome(filepath.Join(dir, "stat"), 2048)
	from, to := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if from < 0 || to < from {
		return t
	}
	t.name = stat[from+1 : to]
	if field := strings.Fields(stat[to+1:]); len(field) > 12 {
		t.state, t.cpu = field[0][0], field[11]+"+"+field[12]
	}
	return t
}

// readSome reads the beginning of a file; what cannot be read is empty.
func readSome(path string, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, most)) // /proc may end in an error half way
	return string(text)
}

// says is the state of the main thread in words.
func (p *processState) says() string {
	where := ""
	if p.wchan != "" && p.wchan != "0" {
		where = " in " + p.wchan
	}
	switch p.state {
	case 'R':
		return "runs, or waits for a CPU"
	case 'S', 'I':
		return "waits" + where
	case 'D':
		return "waits in the kernel and cannot be interrupted" + where
	case 'T':
		return "was stopped by a signal"
	case 't':
		return "is stopped by a debugger"
	case 'Z', 'X':
		return "has ended and is not collected yet"
	case 0:
		return "has ended"
	default:
		return "is in state " + string(p.state)
	}
}

// describe writes the states for people.
func describe(states []processState) string {
	var b strings.Builder
	for _, p := range states {
		fmt.Fprintf(&b, "pid %d %s: %s\n", p.pid, p.name, p.says())
		fmt.Fprintf(&b, "  command: %s\n", p.command)
		for _, line := range p.status {
			fmt.Fprintf(&b, "  %s\n", line)
		}
		for _, t := range p.threads {
			fmt.Fprintf(&b, "  thread %s %s: state %s, cpu ticks %s, wchan %s, syscall %s\n", t.id, t.name, letter(t.state), t.cpu, orDash(t.wchan), orDash(t.syscall))
			for line := range strings.Lines(t.stack) {
				fmt.Fprintf(&b, "    %s\n", strings.TrimSpace(line))
			}
		}
		if p.cut > 0 {
			fmt.Fprintf(&b, "  %d more threads\n", p.cut)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func letter(state byte) string {
	if state == 0 {
		return "-"
	}
	return string(state)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
