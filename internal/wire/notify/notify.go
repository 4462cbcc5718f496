// Package notify is what a worker and its service say to each other on this machine: datagrams of
// KEY=VALUE lines over Unix sockets, so that any language and any shell can take part.
//
// Up, on NOTIFY_SOCKET, goes the convention of systemd's sd_notify(3) with a few keys of ours; Parse
// reads one datagram and a Receiver reads a socket. Down, on VIGIL_INBOX, which the worker binds if it
// cares to listen, go SetStep and Stop.
package notify

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"vigil/internal/role"
)

// MaxDatagram is the longest datagram that is read, in bytes. A longer one is junk as a whole.
const MaxDatagram = 64 << 10

// maxJunk bounds how many complaints one datagram can cause.
const maxJunk = 8

// Kind says what a word is about.
type Kind int

// The kinds of words. The comment names the line that says it.
const (
	Ready      Kind = iota + 1 // READY=1
	Stopping                   // STOPPING=1
	Status                     // STATUS=text
	Alive                      // WATCHDOG=1: it gets on, without saying how far
	Trigger                    // WATCHDOG=trigger: it has failed
	Extend                     // EXTEND_TIMEOUT_USEC=n
	Step                       // X_VIGIL_STEP=n
	Error                      // X_VIGIL_ERROR=text
	Fatal                      // X_VIGIL_FATAL=1: restarting cannot help
	Checkpoint                 // X_VIGIL_CHECKPOINT=n: the work of step n is saved completely
	Ack                        // X_VIGIL_ACK=k: the order with SEQ=k has been taken
	PhaseBegin                 // X_VIGIL_PHASE=+NAME: a stretch of work with that name begins
	PhaseEnd                   // X_VIGIL_PHASE=-NAME: it ends
	PhaseNext                  // X_VIGIL_PHASE=NAME: the one begun so before ends, this one begins
	Guessed                    // X_VIGIL_SOURCE=hook: what stands beside it was not said by the program itself
	Armed                      // X_VIGIL_FAULTHANDLER=SIGNAME: that signal makes the worker write its stacks
	Uncaught                   // X_VIGIL_ERROR=text beside X_VIGIL_SOURCE=hook: an exception that nobody has caught

	lastKind = Uncaught
)

// Word is one line that was understood. Text is set for Status, Error, Uncaught, the phases, Guessed (the source)
// and Armed (the signal, such as "SIGUSR1"), Number for Step, Checkpoint and Ack, Time for Extend.
type Word struct {
	Kind   Kind
	Text   string
	Number int64
	Time   time.Duration
}

// ErrJunk is the error for whatever was not understood; the text says what.
var ErrJunk = errors.New("junk on the notify socket")

// Parse reads one datagram: lines of KEY=VALUE. The words come in the order of the lines. An unknown
// key is no word and no complaint, so that newer and older programs understand each other. A line
// that cannot be meant is junk: the error wraps ErrJunk and the other lines count all the same. A
// datagram that is too long or not UTF-8 is junk as a whole.
func Parse(datagram []byte) ([]Word, error) {
	if len(datagram) > MaxDatagram {
		return nil, fmt.Errorf("%w: a datagram of more than %d bytes", ErrJunk, MaxDatagram)
	}
	if !utf8.Valid(datagram) {
		return nil, fmt.Errorf("%w: a datagram that is not UTF-8", ErrJunk)
	}
	var (
		words []Word
		junk  []string
		hook  bool
	)
	for line := range bytes.SplitSeq(datagram, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		w, known, err := parseLine(string(line))
		switch {
		case err != nil && len(junk) < maxJunk:
			junk = append(junk, err.Error())
		case err == nil && known:
			words = append(words, w)
			hook = hook || w.Kind == Guessed
		}
	}
	for i := range words {
		if hook && words[i].Kind == Error {
			words[i].Kind = Uncaught
		}
	}
	if len(junk) > 0 {
		return words, fmt.Errorf("%w: %s", ErrJunk, strings.Join(junk, "; "))
	}
	return words, nil
}

// parseLine reads one line. known is false for a key that is none of ours.
func parseLine(line string) (w Word, known bool, err error) {
	key, value, ok := strings.Cut(line, "=")
	if !ok || key == "" {
		return Word{}, false, fmt.Errorf("%s: want KEY=VALUE", quote(line))
	}
	switch key {
	case "READY":
		return flag(Ready, key, value)
	case "STOPPING":
		return flag(Stopping, key, value)
	case "X_VIGIL_FATAL":
		return flag(Fatal, key, value)
	case "STATUS":
		return Word{Kind: Status, Text: value}, true, nil
	case "X_VIGIL_ERROR":
		return Word{Kind: Error, Text: value}, true, nil
	case "WATCHDOG":
		if value == "trigger" {
			return Word{Kind: Trigger}, true, nil
		}
		return flag(Alive, key, value)
	case "X_VIGIL_STEP":
		return number(Step, key, value)
	case "X_VIGIL_CHECKPOINT":
		return number(Checkpoint, key, value)
	case "X_VIGIL_ACK":
		return number(Ack, key, value)
	case "X_VIGIL_PHASE":
		return phase(value)
	case "X_VIGIL_SOURCE":
		if value != "hook" {
			return Word{}, false, fmt.Errorf("%s=%s: want hook", key, quote(value))
		}
		return Word{Kind: Guessed, Text: value}, true, nil
	case "X_VIGIL_FAULTHANDLER":
		if unix.SignalNum(value) == 0 {
			return Word{}, false, fmt.Errorf("%s=%s: want the name of a signal, such as SIGUSR1", key, quote(value))
		}
		return Word{Kind: Armed, Text: value}, true, nil
	case "EXTEND_TIMEOUT_USEC":
		w, known, err = number(Extend, key, value)
		// What overflows a Duration means for ever, and is cut to the longest there is.
		w.Time = time.Duration(min(w.Number, int64((1<<63-1)/time.Microsecond))) * time.Microsecond
		w.Number = 0
		return w, known, err
	}
	return Word{}, false, nil
}

// flag reads a key whose only meaningful value is 1.
func flag(kind Kind, key, value string) (Word, bool, error) {
	if value != "1" {
		return Word{}, false, fmt.Errorf("%s=%s: want 1", key, quote(value))
	}
	return Word{Kind: kind}, true, nil
}

// phase reads the value of X_VIGIL_PHASE: a name, with + or - before it or neither.
func phase(value string) (Word, bool, error) {
	kind, name := PhaseNext, value
	switch {
	case strings.HasPrefix(value, "+"):
		kind, name = PhaseBegin, value[1:]
	case strings.HasPrefix(value, "-"):
		kind, name = PhaseEnd, value[1:]
	}
	switch {
	case name == "":
		return Word{}, false, errors.New("X_VIGIL_PHASE: want the name of a phase, with + or - before it or neither")
	case len(name) > role.MaxPhase:
		return Word{}, false, fmt.Errorf("X_VIGIL_PHASE=%s: a name of %d bytes, %d are the most", quote(value), len(name), role.MaxPhase)
	case strings.ContainsFunc(name, unicode.IsControl):
		return Word{}, false, fmt.Errorf("X_VIGIL_PHASE=%s: a name with control characters", quote(value))
	}
	return Word{Kind: kind, Text: name}, true, nil
}

// number reads a key whose value is a decimal integer from 0 to 2^63-1.
func number(kind Kind, key, value string) (Word, bool, error) {
	n, err := ParseStep(value)
	if err != nil {
		return Word{}, false, fmt.Errorf("%s: %w", key, err)
	}
	return Word{Kind: kind, Number: n}, true, nil
}

// ParseStep reads a step: decimal digits alone, from 0 to 2^63-1.
func ParseStep(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("step %s: want a decimal integer from 0 to 2^63-1", quote(s))
	}
	return int64(n), nil
}

// quote shows what a stranger sent, cut to what fits a log line.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}
