package journal

import (
	"errors"
	"fmt"
)

// ErrClosed is the end of commits that a closed journal could not make.
var ErrClosed = errors.New("the journal is closed")

// ErrPending is what [Commit.Err] wraps while the commit may still be made.
var ErrPending = errors.New("not recorded yet")

// ErrFull is the end of a Write for which there was no room in the queue, because the disk has not
// taken anything for long. Nothing of that Write will be recorded.
var ErrFull = errors.New("too many records wait for the disk")

// HeldError says that another process has the journal open.
type HeldError struct{ Path string }

func (e *HeldError) Error() string {
	return fmt.Sprintf("journal %s is open in another process: a controller of this job is running; stop it first, or give this one another --state-dir", e.Path)
}

// NewerError says that a newer version of this program wrote the journal.
type NewerError struct {
	Path  string
	By    string // the version that wrote it
	Found string // what this version cannot read: "format 3", "records of kind lease in version 2"
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("journal %s has %s, which this version cannot read: go on with version %s, which wrote it, or a newer one; %s", e.Path, e.Found, e.By, orForget(e.Path))
}

// OtherJobError says that the journal is of a job of another name.
type OtherJobError struct{ Path, Want, Found string }

func (e *OtherJobError) Error() string {
	return fmt.Sprintf("journal %s is of job %q, not of job %q: give this job a --state-dir of its own; %s", e.Path, e.Found, e.Want, orForget(e.Path))
}

// CorruptError says that the journal is not as it was written: torn, truncated, edited, or another file
// altogether.
type CorruptError struct {
	Path string
	Why  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("journal %s is damaged: %v: put back a good copy; %s", e.Path, e.Why, orForget(e.Path))
}

// Unwrap returns what was found.
func (e *CorruptError) Unwrap() error { return e.Why }

func orForget(path string) string {
	return fmt.Sprintf("or begin anew with --forget-state, which forgets the run and what it has spent and keeps the file as %s.set-aside-1 (or the next free number)", path)
}

// refusal says whether --forget-state is an answer to the error.
func refusal(err error) bool {
	var n *NewerError
	var o *OtherJobError
	var c *CorruptError
	return errors.As(err, &n) || errors.As(err, &o) || errors.As(err, &c)
}
