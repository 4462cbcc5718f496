package service

import (
	"bytes"
	"regexp"
	"strconv"

	"vigil/api"
	"vigil/internal/job"
	"vigil/internal/wire/rpc"
)

// longestMatched is how much of a line a pattern is matched against, in bytes.
const longestMatched = 64 << 10

// scanner finds steps in what a worker prints. A line ends with a newline or, as progress bars do it,
// with a carriage return.
type scanner struct {
	pattern *regexp.Regexp // its first group is the step
	found   func(step int64)

	line []byte // the beginning of a line that has not ended
}

// scan takes in more of a stream. Of the steps in it, only the last is told.
func (s *scanner) scan(data []byte) {
	last, seen := int64(0), false
	for len(data) > 0 {
		end := bytes.IndexAny(data, "\r\n")
		if end < 0 {
			s.keep(data)
			break
		}
		line := data[:end]
		if len(s.line) > 0 {
			s.keep(line)
			line = s.line
		}
		if step, ok := stepIn(s.pattern, line[:min(len(line), longestMatched)]); ok {
			last, seen = step, true
		}
		s.line, data = s.line[:0], data[end+1:]
	}
	if seen {
		s.found(last)
	}
}

// keep adds to the line that has not ended, as much as will be looked at.
func (s *scanner) keep(part []byte) {
	s.line = append(s.line, part[:min(len(part), longestMatched-len(s.line))]...)
}

// stepIn returns the step that the first group of pattern finds. Commas within the number are taken for
// separators of thousands.
func stepIn(pattern *regexp.Regexp, line []byte) (int64, bool) {
	at := pattern.FindSubmatchIndex(line)
	if at == nil || at[2] < 0 {
		return 0, false
	}
	step, err := strconv.ParseInt(string(bytes.ReplaceAll(line[at[2]:at[3]], []byte(","), nil)), 10, 64)
	return step, err == nil && step >= 0
}

// scanOf returns what makes a scanner for each stream of a worker, nil where nothing is to be found.
func (s *Service) scanOf(w *worker) func() func([]byte) {
	if s.opts.Role.Progress.Source != job.FromPattern {
		return nil
	}
	pattern, err := regexp.Compile(s.opts.Role.Progress.Pattern)
	if err != nil || pattern.NumSubexp() == 0 { // the job file was checked
		s.log.Error("steps are not read from the output", "err", err)
		return nil
	}
	found := func(step int64) {
		s.change(func(out *words) {
			if s.listensTo(w) {
				s.guess(w, step, out)
			}
		})
	}
	return func() func([]byte) {
		one := &scanner{pattern: pattern, found: found}
		return one.scan
	}
}

// guess takes a step that the worker did not say itself. One that says its steps is believed instead. A
// lower one than before is a sign of life only: two streams are read, and progress bars begin anew.
// Service.mu is held.
func (s *Service) guess(w *worker, step int64, out *words) {
	if w.saysSteps {
		return
	}
	w.guessed = max(w.guessed, step)
	step = w.guessed
	s.steps.said(w.life.Rank, step)
	out.beats = append(out.beats, &api.Beat{Life: rpc.WireLife(w.life), HasStep: true, Step: step, Guessed: true})
}
