package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// turn is what happens to one job of a supervisor.
type turn []string

// repeat is a turn with the same fault so many times.
func repeat(name string, n int) turn {
	t := make(turn, n)
	for i := range t {
		t[i] = name
	}
	return t
}

// measure lets the supervisors take turns.
func (b *bench) measure() error {
	for left := b.repeats; left > 0; left -= b.burst {
		n := min(left, b.burst)
		if err := b.everybody(append(repeat(killName, n), repeat(raiseName, n)...)); err != nil {
			return err
		}
	}
	for range b.slow {
		if err := b.everybody(turn{blockedName, stopName, superName}); err != nil {
			return err
		}
	}
	var more turn
	for i := range b.many {
		more = append(more, []string{killName, bothName, duringName}[i%3])
	}
	for _, r := range rivals() {
		if r.name == warmName && b.wants(r) && len(more) > 0 {
			return b.take(r, more)
		}
	}
	return nil
}

// wants says whether a supervisor takes part.
func (b *bench) wants(r rival) bool {
	for part := range strings.SplitSeq(b.only, ",") {
		if strings.Contains(r.name, part) {
			return true
		}
	}
	return false
}

func (b *bench) everybody(t turn) error {
	for _, r := range rivals() {
		if !b.wants(r) {
			continue
		}
		if err := b.take(r, t); err != nil {
			return err
		}
	}
	return nil
}

// take has a job under a supervisor suffer a turn. One that does not come back is begun again.
func (b *bench) take(r rival, t turn) error {
	var j *job
	var err error
	for _, name := range t {
		if r.ideal && (name == superName || name == stopName) {
			continue // it sees ends only, and nobody sees its own
		}
		if j == nil {
			if j, err = b.begin(r); err != nil {
				return err
			}
		}
		var s sample
		if name == superName {
			s, err = j.loseSupervisor(r.vigil)
		} else {
			s, err = j.suffer(faults[name])
		}
		if err != nil {
			said := strings.Join(j.said(30), "\n")
			return errors.Join(fmt.Errorf("%s, %s: %w\n%s", r.name, name, err, said), j.end())
		}
		s.Rival = r.name
		b.samples = append(b.samples, s)
		fmt.Fprintf(os.Stderr, "%-20s %-24s %8.0f ms %s\n", r.name, name, milliseconds(int64(s.Took)), s.Why)
		if !s.Back {
			err := j.end()
			j = nil
			if err != nil {
				return err
			}
		}
	}
	if j == nil {
		return nil
	}
	return j.end()
}

// begin starts a job and waits until it trains.
func (b *bench) begin(r rival) (*job, error) {
	b.jobs++
	dir := filepath.Join(b.folder, strconv.Itoa(b.jobs))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	j, err := r.begin(b, dir)
	if err != nil {
		return nil, err
	}
	if err := j.until(startTime, func() bool { return j.trains(20) }); err != nil {
		said := strings.Join(j.said(30), "\n")
		return nil, errors.Join(fmt.Errorf("start %s: %w\n%s", r.name, err, said), j.end())
	}
	return j, nil
}
