package notify

import (
	"fmt"
	"slices"
	"strings"
)

// Sender says what the process that has sent a datagram is to the worker whose socket it came by.
type Sender int

// The kinds of senders.
const (
	FromWorker  Sender = iota + 1 // the worker's process itself
	FromBelow                     // a process below it
	FromTree                      // another process of the worker life: its parent has ended, or it has a session of its own
	FromGone                      // a process of the worker's user that had ended before its word was read
	FromHelper                    // a probe, or another process that the service has started beside the worker
	FromForeign                   // any other process

	lastSender = FromForeign
)

// String is the sender as the documentation names it.
func (s Sender) String() string {
	switch s {
	case FromWorker:
		return "worker"
	case FromBelow:
		return "descendant"
	case FromTree:
		return "process of its tree"
	case FromGone:
		return "gone"
	case FromHelper:
		return "probe"
	case FromForeign:
		return "foreign process"
	}
	return fmt.Sprintf("sender %d", int(s))
}

// Verdict says what becomes of a word.
type Verdict int

// The verdicts.
const (
	Taken    Verdict = iota + 1
	Held             // evidence; taken if the process that said it has still not ended after a while
	Evidence         // kept for the failure that may come, never a failure itself
	Dropped          // counted, and said once
)

// String is the verdict as the documentation names it.
func (v Verdict) String() string {
	switch v {
	case Taken:
		return "taken"
	case Held:
		return "held"
	case Evidence:
		return "evidence"
	case Dropped:
		return "dropped"
	}
	return fmt.Sprintf("verdict %d", int(v))
}

// right is one row of the table: what becomes of words of these kinds, by their sender.
type right struct {
	words string // as the documentation names them
	kinds []Kind
	by    map[Sender]Verdict
}

// rights says what a word may do, by who has sent it. An explicit word of any process of the worker's is meant: it is
// taken. An exception that nobody has caught ends the process that has raised it, and whether that ends the worker is
// for its parent to say: only the worker's own is a failure.
var rights = []right{
	{"steps, heartbeats, phases", []Kind{Step, Alive, Guessed, PhaseBegin, PhaseEnd, PhaseNext}, byAllOfTheTree(Taken, Taken, Taken)},
	{"ready, status, checkpoints, acknowledged steps", []Kind{Ready, Status, Checkpoint, Ack, Armed, Stopping, Extend}, byAllOfTheTree(Taken, Taken, Taken)},
	{"errors that the program reports", []Kind{Error, Fatal, Trigger}, byAllOfTheTree(Taken, Taken, Taken)},
	{"exceptions that nobody has caught", []Kind{Uncaught}, byAllOfTheTree(Held, Evidence, Evidence)},
}

func byAllOfTheTree(below, tree, gone Verdict) map[Sender]Verdict {
	return map[Sender]Verdict{FromWorker: Taken, FromBelow: below, FromTree: tree, FromGone: gone, FromHelper: Dropped, FromForeign: Dropped}
}

// Judge says what becomes of a word of that kind by that sender.
func Judge(s Sender, k Kind) Verdict {
	for _, r := range rights {
		for _, kind := range r.kinds {
			if kind == k {
				return r.by[s]
			}
		}
	}
	return Dropped
}

// voice names the variables by which a process speaks as the worker, hears for it, or says why it has failed.
var voice = []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "VIGIL_INBOX", "VIGIL_SERVICE_URL", HookPID, "TORCHELASTIC_ERROR_FILE"}

// HookPID is the variable in which a hook that reports uncaught exceptions notes the process that it reports for. It is
// no setting: workers begin without it.
const HookPID = "VIGIL_HOOK_PID"

// Mute returns an environment, a list of NAME=VALUE, without what lets a process speak for a worker: for commands that
// are started on its behalf and are not the worker.
func Mute(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(voice, name)
	})
}
