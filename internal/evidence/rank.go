package evidence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"vigil/internal/proc"
)

// logLines is how many of the last lines of each stream are kept.
const logLines = 200

// maxCopy bounds what is copied of one file, in bytes.
const maxCopy = 32 << 20

// rank takes the evidence of one worker into its folder.
func (t Taker) rank(ctx context.Context, dir string, form Form, s Subject) Rank {
	r := s.known()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		r.Missing = append(r.Missing, "everything: "+err.Error())
		return r
	}
	missing := &lacks{}
	var states []processState
	for _, pid := range s.Processes[:min(len(s.Processes), mostProcesses)] {
		states = append(states, readProcess(procRoot, pid))
	}
	if len(states) > 0 {
		missing.write(filepath.Join(dir, "kernel.txt"), []byte(describe(states)))
	}
	missing.tail(s.Stdout, filepath.Join(dir, "stdout.txt"))
	missing.tail(s.Stderr, filepath.Join(dir, "stderr.txt"))
	if raised, err := ReadErrorFile(s.ErrorFile); err == nil {
		r.Error = raised.Message
		missing.copy(s.ErrorFile, filepath.Join(dir, "error.json"))
	} else if !errors.Is(err, fs.ErrNotExist) {
		missing.say("%v", err)
	}
	if form == Full && len(states) > 0 {
		var both sync.WaitGroup
		both.Go(func() { t.stack(ctx, filepath.Join(dir, "stack.txt"), s, states, missing) })
		both.Go(func() { trace(ctx, filepath.Join(dir, "nccl_trace"), s, missing) })
		both.Wait()
	} else if s.Trace != "" { // it may have written by itself
		missing.keepTrace(s.Trace, filepath.Join(dir, "nccl_trace"))
	}
	r.Says = s.says(states, r)
	r.Missing = append(r.Missing, missing.said...)
	return r
}

// says is how a worker stands, in a sentence.
func (s *Subject) says(states []processState, r Rank) string {
	var b strings.Builder
	switch {
	case s.Exit != nil && s.Exit.Sender == proc.OOMKiller:
		fmt.Fprintf(&b, "killed by the kernel: out of memory (pid %d)", s.Exit.PID)
	case s.Exit != nil:
		b.WriteString(s.Exit.String())
	case len(states) > 0:
		fmt.Fprintf(&b, "pid %d %s", states[0].pid, states[0].says())
	default:
		b.WriteString("no process of it lives")
	}
	if r.HeartbeatAge != nil {
		fmt.Fprintf(&b, "; last heartbeat %.1f s before", *r.HeartbeatAge)
	}
	if r.Step != nil {
		fmt.Fprintf(&b, ", step %d", *r.Step)
	}
	for _, p := range r.Phases {
		fmt.Fprintf(&b, "; in phase %s for %.1f s", p.Name, p.Age)
	}
	return b.String()
}

// write leaves a file.
func (l *lacks) write(path string, text []byte) {
	if err := os.WriteFile(path, text, 0o640); err != nil {
		l.say("%v", err)
	}
}

// tail keeps the last lines of a log; the last one need not have an end.
func (l *lacks) tail(from, to string) {
	if from == "" {
		return
	}
	if lines := proc.Tail(from, logLines); len(lines) > 0 {
		l.write(to, []byte(strings.Join(lines, "\n")+"\n"))
	}
}

// copy keeps a regular file, or the beginning of it.
func (l *lacks) copy(from, to string) {
	f, err := proc.OpenRegular(from)
	if err != nil {
		l.say("%v", err)
		return
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(f, maxCopy)); err != nil {
		l.say("copy %s: %v", from, err)
	}
	l.write(to, b.Bytes())
}

// bare leaves the path out of an error that says it otherwise.
func bare(err error) error {
	if path := new(fs.PathError); errors.As(err, &path) {
		return path.Err
	}
	return err
}
