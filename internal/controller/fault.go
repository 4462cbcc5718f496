package controller

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vigil/internal/journal"
)

// atClose is the fault of a controller that dies right after it has closed its run.
const atClose = "close"

// dieIfClosed has the controller die now, where it is to die after it has closed its run.
func (o *Options) dieIfClosed() {
	if o.DieAtWrite == atClose {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL) // it does not return
	}
}

// journalFault has the controller die as by kill -9 right before or right after one write of its journal;
// nil: it does not.
func (o *Options) journalFault() (func(int, journal.When), error) {
	if o.DieAtWrite == "" || o.DieAtWrite == atClose {
		return nil, nil //nolint:nilnil // no fault is none
	}
	number, side, after := strings.Cut(o.DieAtWrite, ":")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || after && side != journal.After.String() && side != journal.Before.String() {
		return nil, fmt.Errorf("--die-at-write %q: want N, N:before, N:after or %s", o.DieAtWrite, atClose)
	}
	when := journal.Before
	if side == journal.After.String() {
		when = journal.After
	}
	return func(write int, at journal.When) {
		if write == n && at == when {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL) // it does not return
		}
	}, nil
}
