package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxProblems bounds how many problems of one file are told.
const maxProblems = 50

// Problem is one thing that is wrong with a job.
type Problem struct {
	File   string // as it was given to Load or Parse; empty for a job that was not read from a file
	Line   int    // from 1; 0 where the problem has no place in a file
	Column int    // from 1, in characters
	Source string // the line itself
	Key    string // the path of the key, such as "roles.actor.workers"; empty for the file as a whole
	What   string // what is wrong
	Fix    string // what would be right; may be empty
}

// String tells the problem in one line, followed by the line of the file and a caret where it has one:
//
//	job.yaml:4:5: roles.actor.wrokers: unknown key; did you mean "workers"?
//	    4 |     wrokers: 2
//	      |     ^
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%d:%d:", p.Line, p.Column)
		}
		b.WriteString(" ")
		if p.Key != "" {
			b.WriteString(p.Key + ": ")
		}
	}
	b.WriteString(p.What)
	if p.Fix != "" {
		b.WriteString("; " + p.Fix)
	}
	if p.File != "" && p.Line > 0 {
		line, column := excerpt(p.Source, p.Column)
		fmt.Fprintf(&b, "\n%5d | %s\n      | %s^", p.Line, line, strings.Repeat(" ", column-1))
	}
	return b.String()
}

// excerpt shortens a long line to the part around a column and returns where the column lies in it.
// Tabs become single spaces, so that the caret stands under its character.
func excerpt(line string, column int) (string, int) {
	const width = 100
	r := []rune(strings.ReplaceAll(line, "\t", " "))
	column = min(max(column, 1), len(r)+1)
	if len(r) <= width {
		return string(r), column
	}
	from := min(max(column-1-width/2, 0), len(r)-width)
	return string(r[from : from+width]), column - from
}

// Error is everything that is wrong with a job, sorted by line.
type Error struct {
	Problems []Problem // at least one, at most 50
}

// Error returns all problems, one after the other.
func (e *Error) Error() string {
	text := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		text[i] = p.String()
	}
	return strings.Join(text, "\n")
}

// asError returns nil for no problems, and leaves out what is beyond the bound.
func asError(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Error{Problems: problems[:min(len(problems), maxProblems)]}
}

// place is where something stands in a file.
type place struct{ line, column int }

// source is the file that a job came from, kept so that what is found wrong later can still be shown
// where it stands.
type source struct {
	file   string
	lines  []string
	places map[string]place // by path of the key: where its value stands
}

func (s *source) problem(at place, key, what, fix string) Problem {
	p := Problem{File: s.file, Line: at.line, Column: max(at.column, 1), Key: key, What: what, Fix: fix}
	if at.line >= 1 && at.line <= len(s.lines) {
		p.Source = s.lines[at.line-1]
	}
	return p
}

// problem makes a problem of the job at the value of a key, or at the nearest key above it.
func (j *Job) problem(key, what, fix string) Problem {
	if j.src == nil {
		return Problem{Key: key, What: what, Fix: fix}
	}
	for path := key; ; {
		if at, ok := j.src.places[path]; ok {
			return j.src.problem(at, key, what, fix)
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return Problem{File: j.src.file, Key: key, What: what, Fix: fix}
		}
		path = path[:cut]
	}
}
