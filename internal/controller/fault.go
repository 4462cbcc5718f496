package controller

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vigil/internal/journal"
)

// journalFault has the controller die as by kill -9 right before or right after one write of its journal;
// nil: it does not.
func (o *Options) journalFault() (func(int, journal.When), error) {
	if o.DieAtWrite == "" {
		return nil, nil //nolint:nilnil // no fault is none
	}
	number, side, after := strings.Cut(o.DieAtWrite, ":")
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || after && side != journal.After.String() && side != journal.Before.String() {
		return nil, fmt.Errorf("--die-at-write %q: want N, N:before or N:after", o.DieAtWrite)
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
