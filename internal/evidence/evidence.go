// Package evidence keeps what can be known of workers before they are killed, so that whoever reads the
// incident need not have been there: what each thread of them does in the kernel, their stacks, the end
// of their output, the error file, what the devices say.
//
//	evidence.go   what is taken, of whom, how long that may last
//	rank.go       what is taken of one worker
//	kernel.go     what the kernel says of a process
//	stack.go      py-spy, faulthandler, NCCL's flight recorder
//	pickle.go     the plain values of a pickle, nothing of which is carried out
//	flight.go     the dump of one rank's flight recorder
//	collective.go who has not entered the collective that does not end, by the dumps of all ranks
//	device.go     nvidia-smi and the kernel's log
//	xid.go        what the NVIDIA driver says there, and whose fault it is
//	errorfile.go  the error file of torch.distributed.elastic
//
// Taking evidence changes nothing that it looks at but for this: a worker that was stopped by a signal
// and has a fault handler is let run on, so that it can write its stacks. What cannot be had is said in
// the account, never an error: a repair does not wait for it.
package evidence

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vigil/internal/role"
)

// Form says how much is taken.
type Form string

// The forms.
const (
	Short Form = "short" // what needs no other program: of ranks whose peer has failed, in at most 200 ms
	Full  Form = "full"  // stacks as well: of ranks that hang, in at most 2 s
)

// How long the taking may last, all ranks together.
const (
	shortTime = 200 * time.Millisecond
	fullTime  = 2 * time.Second
)

// FormOf is the form for a failure: workers that hang know why, those whose peer has ended do not.
func FormOf(cause role.Cause) Form {
	switch cause {
	case role.Silent, role.Stuck, role.NoStart, role.NotReady, role.Unreachable:
		return Full
	default:
		return Short
	}
}

func (f Form) limit() time.Duration {
	if f == Full {
		return fullTime
	}
	return shortTime
}

// Subject is one worker life and where its traces are.
type Subject struct {
	Life           role.Life
	Processes      []int      // pids that live, the worker's own first; empty when it has ended
	Exit           *role.Exit // nil while it lives
	Stdout, Stderr string     // paths
	ErrorFile      string     // TORCHELASTIC_ERROR_FILE
	Trace          string     // where NCCL's flight recorder writes; empty: it is not asked
	Pipe           string     // a byte written there makes it write; empty: none
	FaultHandler   unix.Signal
	Devices        int           // how many the worker was given
	HeartbeatAge   time.Duration // since its last word; below 0: it has not spoken
	Step           int64         // its newest; below 0: it has told none
	Phases         []Phase       // that are open, oldest first
	Raised         []string      // exceptions that other processes of its tree did not catch, with their pids, newest last
}

// Phase is an open phase of a worker.
type Phase struct {
	Name string  `json:"name"`
	Age  float64 `json:"age_seconds"`
}

// Taker takes evidence. Its zero value works but for helpers of programs that keep processes.
type Taker struct {
	Run       func(*exec.Cmd) error // runs a helper program to its end; nil: exec.Cmd.Run
	KernelLog string                // empty: /dev/kmsg
}

// Account is what was taken, and what could not be: the file evidence.INDEX.json.
type Account struct {
	Taken   time.Time `json:"taken"`
	Took    float64   `json:"took_seconds"`
	Form    Form      `json:"form"`
	Cause   string    `json:"cause,omitempty"`
	Ranks   []Rank    `json:"ranks"`
	Xids    []string  `json:"xids,omitempty"`    // lines of the kernel's log about devices that failed
	Missing []string  `json:"missing,omitempty"` // what could not be had of the machine, and why
}

// Rank is what is known of one worker life.
type Rank struct {
	Rank         int      `json:"rank"`
	Life         string   `json:"life"`
	Says         string   `json:"says"` // how it stands, in a sentence
	Processes    []int    `json:"processes,omitempty"`
	Exit         string   `json:"exit,omitempty"`
	Sender       string   `json:"signal_sent_by,omitempty"` // "vigil", "oom-killer" or "unknown"
	HeartbeatAge *float64 `json:"heartbeat_age_seconds"`    // null: it has not spoken, or only its service knows
	Step         *int64   `json:"step"`
	Phases       []Phase  `json:"phases,omitempty"`
	Error        string   `json:"error,omitempty"`  // what its error file says
	Raised       []string `json:"raised,omitempty"` // exceptions that other processes of its tree did not catch
	Missing      []string `json:"missing,omitempty"`
}

// Folder is where the evidence of one worker life lies, below the incident's folder.
func Folder(l role.Life) string {
	return filepath.Join(string(l.Role), strconv.Itoa(l.Incarnation), fmt.Sprintf("%d.%d", l.Rank, l.Attempt))
}

// Take takes evidence of all subjects at once into the incident's folder dir, and writes the account to
// ROLE/evidence.INDEX.json in it, INDEX being the service's. It returns after the form's time at the
// latest, also where the kernel does not answer. The error says that nothing can be written.
func (t Taker) Take(ctx context.Context, dir string, index int, form Form, cause role.Cause, subjects []Subject) (Account, error) {
	if len(subjects) == 0 {
		return Account{}, nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, form.limit())
	defer cancel()
	if t.Run == nil {
		t.Run = (*exec.Cmd).Run
	}
	home := filepath.Join(dir, string(subjects[0].Life.Role))
	if err := os.MkdirAll(home, 0o750); err != nil {
		return Account{}, fmt.Errorf("make the incident's folder: %w", err)
	}
	account := Account{Taken: began, Form: form, Cause: string(cause)}
	ranks := make(chan Rank, len(subjects))
	for _, s := range subjects {
		go func() { ranks <- t.rank(ctx, filepath.Join(dir, Folder(s.Life)), form, s) }()
	}
	if slices.ContainsFunc(subjects, func(s Subject) bool { return s.Devices > 0 }) {
		t.machine(ctx, home, form, &account)
	}
	account.collect(ctx, ranks, subjects)
	account.Took = time.Since(began).Seconds()
	src, err := json.MarshalIndent(account, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(home, fmt.Sprintf("evidence.%d.json", index)), append(src, '\n'), 0o640)
	}
	if err != nil {
		return account, fmt.Errorf("write evidence: %w", err)
	}
	return account, nil
}

// collect takes in what comes before the time is over, and says of whom nothing came.
func (a *Account) collect(ctx context.Context, ranks <-chan Rank, subjects []Subject) {
	for range subjects {
		select {
		case r := <-ranks:
			a.Ranks = append(a.Ranks, r)
			continue
		case <-ctx.Done():
		}
		break
	}
	limit := time.NewTimer(50 * time.Millisecond) // those that were about to answer
	defer limit.Stop()
	for over := false; !over && len(a.Ranks) < len(subjects); {
		select {
		case r := <-ranks:
			a.Ranks = append(a.Ranks, r)
		case <-limit.C:
			over = true
		}
	}
	for _, s := range subjects {
		if !slices.ContainsFunc(a.Ranks, func(r Rank) bool { return r.Rank == s.Life.Rank }) {
			r := s.known()
			r.Says = "the kernel does not answer about it in time"
			a.Ranks = append(a.Ranks, r)
		}
	}
	slices.SortFunc(a.Ranks, func(x, y Rank) int { return x.Rank - y.Rank })
}

// known is what need not be looked for.
func (s *Subject) known() Rank {
	r := Rank{Rank: s.Life.Rank, Life: s.Life.String(), Processes: s.Processes, Phases: s.Phases, Raised: s.Raised}
	if s.HeartbeatAge >= 0 {
		age := s.HeartbeatAge.Seconds()
		r.HeartbeatAge = &age
	}
	if s.Step >= 0 {
		r.Step = &s.Step
	}
	if s.Exit != nil {
		r.Exit = s.Exit.String()
		if s.Exit.Signal != "" {
			r.Sender = s.Exit.Sender
			if r.Sender == "" {
				r.Sender = "unknown"
			}
		}
	}
	return r
}

// lacks notes what could not be had.
type lacks struct {
	mu   sync.Mutex
	said []string
}

func (l *lacks) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, fmt.Sprintf(format, args...))
}
