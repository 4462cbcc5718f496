// Package role holds the words that all of vigil shares: names of roles, lives of workers, causes of
// failures, actions. It is data only: it reads no clock, opens nothing and decides nothing.
package role

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Name is the name of a role, such as "actor".
type Name string

var namePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,30}$`)

// taken are names that are paths of the HTTP interface.
var taken = []string{"api", "life", "metrics", "healthz", "readyz"}

// Taken returns the names that no role can have, because they are paths of the HTTP interface.
func Taken() []string { return slices.Clone(taken) }

// ParseName checks that s can name a role: a lower-case letter, then up to 30 of a-z, 0-9 and _,
// and none of the words that the HTTP interface uses itself.
func ParseName(s string) (Name, error) {
	if !namePattern.MatchString(s) {
		return "", fmt.Errorf("role name %q: want a lower-case letter, then up to 30 of a-z, 0-9 and _", s)
	}
	if slices.Contains(taken, s) {
		return "", fmt.Errorf("role name %q is taken by the HTTP interface (also taken: %s)", s, strings.Join(taken, ", "))
	}
	return Name(s), nil
}

// NoRank stands in a Life for the service itself, which has no rank.
const NoRank = -1

// Life names one life of one worker, or with Rank NoRank of a service. Every message, log path and
// mark carries it, so that word of an earlier life can be told from word of this one.
type Life struct {
	Job         string // job uid, NAME-8hex
	Role        Name
	Incarnation int // of the role, from 1
	Rank        int // from 0; NoRank for the service
	Attempt     int // 1 unless single workers are restarted
}

// String returns UID/ROLE/INC/RANK/ATTEMPT, the form that VIGIL_LIFE has.
func (l Life) String() string {
	return fmt.Sprintf("%s/%s/%d/%d/%d", l.Job, l.Role, l.Incarnation, l.Rank, l.Attempt)
}

// ParseLife reads what Life.String wrote.
func ParseLife(s string) (Life, error) {
	part := strings.Split(s, "/")
	if len(part) != 5 {
		return Life{}, fmt.Errorf("life %q: want UID/ROLE/INC/RANK/ATTEMPT", s)
	}
	name, err := ParseName(part[1])
	if err != nil {
		return Life{}, fmt.Errorf("life %q: %w", s, err)
	}
	l := Life{Job: part[0], Role: name}
	for i, to := range []*int{&l.Incarnation, &l.Rank, &l.Attempt} {
		n, err := strconv.Atoi(part[2+i])
		if err != nil || n < 0 && to != &l.Rank {
			return Life{}, fmt.Errorf("life %q: %q is not a number that can stand there", s, part[2+i])
		}
		*to = n
	}
	if l.Rank < NoRank {
		return Life{}, fmt.Errorf("life %q: rank %d", s, l.Rank)
	}
	return l, nil
}

// MaxPhase is the longest name of a phase, in bytes.
const MaxPhase = 64

// Cause says what kind of failure it was.
type Cause string

// The causes. Each is a value of the label "cause" in the metrics.
const (
	Reported    Cause = "reported"    // the worker, or somebody for it, said so
	Exited      Cause = "exited"      // a process ended that should not have
	Silent      Cause = "silent"      // no heartbeat within the limit
	Unreachable Cause = "unreachable" // a service does not answer
	NoStart     Cause = "no_start"    // no first heartbeat, or no process, within the start limit
	NotReady    Cause = "not_ready"   // the ready probe never answered well within the start limit
	Stuck       Cause = "stuck"       // alive but a phase ran out
	Hardware    Cause = "hardware"    // a device or node is ill
	Preempted   Cause = "preempted"   // the node is taken away
	PortTaken   Cause = "port_taken"  // a leased port was taken by a stranger, or earlier connections hold the port
	Operator    Cause = "operator"    // somebody asked for the restart
	Unrepaired  Cause = "unrepaired"  // a repair did not succeed
)

// Causes lists every cause, in the order of the documentation.
func Causes() []Cause {
	return []Cause{Reported, Exited, Silent, Unreachable, NoStart, NotReady, Stuck, Hardware, Preempted, PortTaken, Operator, Unrepaired}
}

// Action is what is done about a failure.
type Action string

// The actions, mildest first.
const (
	InPlace Action = "in_place"
	Global  Action = "global"
	Stop    Action = "stop"

	// Ignore is milder than all: nothing is done. Only a rule of the job file asks for it.
	Ignore Action = "ignore"
)

// Exit is how a process ended.
type Exit struct {
	Code   int    // exit code, when Signal is empty
	Signal string // such as "SIGKILL"; empty if it exited by itself
	PID    int
	Core   bool     // the kernel wrote a core dump
	Sender string   // who sent the signal, where that is known: "vigil", "oom-killer"
	Tail   []string // the last lines of its standard error
}

// String says it as a person would: "exit code 3", "SIGKILL (pid 4711)".
func (e Exit) String() string {
	var b strings.Builder
	if e.Signal != "" {
		b.WriteString(e.Signal)
	} else {
		fmt.Fprintf(&b, "exit code %d", e.Code)
	}
	switch {
	case e.PID != 0 && e.Sender != "":
		fmt.Fprintf(&b, " (pid %d, sent by %s)", e.PID, e.Sender)
	case e.PID != 0:
		fmt.Fprintf(&b, " (pid %d)", e.PID)
	case e.Sender != "":
		fmt.Fprintf(&b, " (sent by %s)", e.Sender)
	}
	return b.String()
}

// Failure is what health hands to restart.
type Failure struct {
	Life   Life // with Rank NoRank when the whole service or role failed
	Cause  Cause
	Detail string
	Fatal  bool      // restarting cannot help
	At     time.Time // when it happened, as far as that is known; for silence, when that began
	Exit   *Exit     // when a process ended
	Log    string    // path of the log that tells more; may be empty
}

// stopCodes are the exit codes of a shell that reports the death of its child by HUP, INT or TERM.
var stopCodes = []int{129, 130, 143}

// ByStopSignal says whether a process ended because of a signal that schedulers and people send to stop a job (TERM,
// INT, HUP), and that we did not send. A report of its own says more than the signal.
func (f Failure) ByStopSignal() bool {
	if f.Exit == nil || f.Exit.Sender == "vigil" || f.Cause != Exited && f.Cause != Unreachable {
		return false
	}
	switch f.Exit.Signal {
	case "SIGTERM", "SIGINT", "SIGHUP":
		return true
	case "":
		return slices.Contains(stopCodes, f.Exit.Code)
	}
	return false
}

// Subject names who failed: "critic rank 2", or "critic" for the whole role.
func (f Failure) Subject() string {
	if f.Life.Rank == NoRank {
		return string(f.Life.Role)
	}
	return fmt.Sprintf("%s rank %d", f.Life.Role, f.Life.Rank)
}

// Line is the failure's detail as one line that a terminal can show: its first line, with control
// characters written out.
func (f Failure) Line() string {
	line, _, _ := strings.Cut(strings.TrimSpace(f.Detail), "\n")
	return Plain(strings.TrimSpace(line))
}

// Plain writes control characters out, so that what a program has printed cannot steer the terminal
// that shows it. Tabs stay.
func Plain(s string) string {
	if !strings.ContainsFunc(s, steers) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if steers(r) {
			fmt.Fprintf(&b, `\x%02x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func steers(r rune) bool { return r != '\t' && unicode.IsControl(r) }

// State is what a role is doing.
type State string

// The states of a role.
const (
	Pending   State = "pending"   // not begun: waits for what it depends on, or for resources
	Starting  State = "starting"  // begun, not all workers ready
	Running   State = "running"   // all workers ready
	Repairing State = "repairing" // a plan is under way
	BackOff   State = "back_off"  // waits before the next restart
	Stopped   State = "stopped"   // by hand, or because the job ends
	Finished  State = "finished"  // ended well
	Failed    State = "failed"    // ended, and nobody repairs it
)

// WorkerState is what a worker is doing, as its peers see it.
type WorkerState string

// The states of a worker.
const (
	WorkerStarting    WorkerState = "starting"
	WorkerReady       WorkerState = "ready"
	WorkerPaused      WorkerState = "paused"
	WorkerQuarantined WorkerState = "quarantined" // it runs and is ready, and takes no part before somebody admits it
	WorkerDown        WorkerState = "down"
	WorkerFinished    WorkerState = "finished"
)
