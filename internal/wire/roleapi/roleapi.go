// Package roleapi is the plain HTTP interface of a role: get_step, set_step, stop_service,
// mark_unhealthy_for_testing, heartbeat, report_error, pause_watch, resume_watch and admit below /{role}/.
// The controller serves it for every role of the job and each service for its own, so that a worker
// or a person with curl finds the same words in both places. Paths, methods and answers are those of
// section 9 of the design; errors are problem documents (RFC 9457).
package roleapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"vigil/internal/role"
)

// Roles is what stands behind the endpoints. Its methods are called from many goroutines, only for
// roles that Known names, and with a context that ends when the client goes away.
//
// Errors are answered by what they are: ErrStale with 409, ErrUnavailable with 503, *HeldError and an
// expired deadline with 504, anything else with 500 and its text.
type Roles interface {
	// Known returns the roles that can be asked for, in the order of the job file.
	Known() []role.Name
	// Step returns the role's current step.
	Step(context.Context, role.Name) (int64, error)
	// SetStep sets the role's step. It returns once the running workers have acknowledged it, or with
	// pending true where it is taken at the next start.
	SetStep(context.Context, role.Name, int64) (pending bool, err error)
	// StopService stops the role and returns nil only when nothing of it is left (proved). Who held on
	// is told by a *HeldError.
	StopService(context.Context, role.Name) error
	// MarkUnhealthy makes the role report unhealthy, as if a worker had reported an error.
	MarkUnhealthy(context.Context, role.Name) error
	// Heartbeat takes a worker's word. Word of an earlier life is ErrStale and changes nothing.
	Heartbeat(context.Context, role.Name, Word) error
	// ReportError takes a report. A report of an earlier life is ErrStale and changes nothing.
	ReportError(context.Context, role.Name, Report) error
	// PauseWatch holds back probes and the verdict on silence for that time, which is positive, for the
	// role or with a rank other than role.NoRank for that worker.
	PauseWatch(ctx context.Context, name role.Name, rank int, pause time.Duration) error
	// ResumeWatch ends a pause of the role or of one worker early; without a pause it does nothing.
	ResumeWatch(ctx context.Context, name role.Name, rank int) error
	// Admit ends the quarantine of a worker. One that is not quarantined needs no admission; for one that
	// is not ready the error is a *Problem with 409. A life other than the current one is ErrStale; empty:
	// whatever it is.
	Admit(ctx context.Context, name role.Name, rank int, life string) error
}

// Word is a heartbeat: one worker gets on.
type Word struct {
	Rank int
	Life string // as role.Life.String writes it, of that role and rank; empty: the current life
	Step *int64 // not negative; nil: the word says nothing of the step
}

// Report is word that something failed.
type Report struct {
	Rank  int
	Life  string // as in Word
	Text  string // what failed; never empty, valid UTF-8, at most MaxBody bytes
	Fatal bool   // restarting cannot help
}

// MaxBody is how many bytes of a request's body are read; more are answered with 413.
const MaxBody = 64 << 10

// ErrStale says that a word or report is of an earlier life than the current one: 409.
var ErrStale = errors.New("word of an earlier life")

// ErrUnavailable says that the role cannot be asked now, because its service does not answer or is
// being replaced: 503. Wrap it with who and why.
var ErrUnavailable = errors.New("not available")

// HeldError says that a role could not be stopped because something of it is still there: 504.
type HeldError struct {
	Role role.Name
	Held []string // such as "rank 2 pid 4711 python3"
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("stop %s: still there: %s", e.Role, strings.Join(e.Held, ", "))
}

// UnknownError says that the job has no such role: 404 with the roles that it has.
type UnknownError struct {
	Name  string
	Known []role.Name
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("role %q does not exist (there are: %s)", e.Name, joinNames(e.Known))
}

func joinNames(names []role.Name) string {
	words := make([]string, len(names))
	for i, n := range names {
		words[i] = string(n)
	}
	return strings.Join(words, ", ")
}
