package scenario

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"vigil/internal/nearest"
	"vigil/internal/role"
)

// args are the arguments of a directive, read and checked: each is set where the directive's form names
// its kind. An optional number that is left out is 0, an optional TIMES 1.
type args struct {
	role role.Name     // ROLE
	rank int           // RANK
	n    int64         // STEP, CODE or TIMES
	d    time.Duration // DURATION
	verb string        // VERB
	word string        // CAUSE or PHASE
	rest []string      // TEXT, KEY=VALUE or ROLE[:WORKERS], as often as they occur
	set  []change      // what the KEY=VALUE of rest change
}

// verbs are the calls of the crew that a story can slow down, fail, or kill the controller in.
var verbs = []string{"read_step", "stop_service", "delete_service", "place", "start", "write_step", "run", "answer"}

// line is one line of a story that can be played.
type line struct {
	at   string // where it stands, FILE:LINE
	text string
	*directive
	args
}

// story is a script that is being read: what its lines so far have said.
type story struct {
	workers map[role.Name]int // by role
	begun   bool              // a wait has begun the job
	journal bool
}

// read reads a script. Its first line is line first of the file; the error has a line for every mistake.
func read(file string, first int, script string) ([]line, error) {
	s := &story{workers: map[role.Name]int{}}
	var lines []line
	var wrong []error
	for text := range strings.Lines(script) {
		at := fmt.Sprintf("%s:%d", file, first)
		first++
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		l, err := s.line(text)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %q: %w", at, text, err))
			continue
		}
		l.at = at
		lines = append(lines, l)
	}
	if len(wrong) == 0 && !s.begun {
		wrong = append(wrong, fmt.Errorf("%s: the story never begins its job: it has no wait", file))
	}
	return lines, errors.Join(wrong...)
}

// line reads one line.
func (s *story) line(text string) (line, error) {
	words := strings.Fields(text)
	d := named(words[0])
	if d == nil {
		return line{}, fmt.Errorf("there is no directive %q%s", words[0], meant(words[0], directiveNames()))
	}
	l := line{text: text, directive: d}
	if err := s.arguments(&l, words[1:]); err != nil {
		return l, fmt.Errorf("%w; the form is: %s", err, d.form())
	}
	switch {
	case d.when == beforeJob && s.begun:
		return l, errors.New("it comes before the first wait, which begins the job")
	case d.when >= inJob && !s.begun:
		return l, errors.New("the job has not begun: the first wait begins it")
	case d.when == withJournal && !s.journal:
		return l, errors.New("nothing outlives this controller: say \"journal 0s\" before the first wait")
	}
	switch d.name {
	case "wait":
		if len(s.workers) == 0 {
			return l, errors.New("there is no job: say \"job ROLE...\" first")
		}
		s.begun = true
	case "journal":
		s.journal = true
	}
	return l, nil
}

// arguments reads the words after a directive as its form says.
func (s *story) arguments(l *line, words []string) error {
	for kind := range strings.FieldsSeq(l.takes) {
		kind, optional := strings.CutPrefix(kind, "[")
		kind = strings.TrimSuffix(kind, "]")
		if kind, many := strings.CutSuffix(kind, "..."); many {
			if len(words) == 0 {
				return fmt.Errorf("%s is missing", kind)
			}
			l.rest = words
			return s.many(l, kind)
		}
		if len(words) == 0 {
			if !optional {
				return fmt.Errorf("%s is missing", kind)
			}
			if kind == "TIMES" {
				l.n = 1
			}
			continue
		}
		if err := s.argument(&l.args, kind, words[0]); err != nil {
			return err
		}
		words = words[1:]
	}
	if len(words) > 0 {
		return fmt.Errorf("%q is too much", strings.Join(words, " "))
	}
	return nil
}

// argument reads one word.
func (s *story) argument(a *args, kind, word string) (err error) {
	switch kind {
	case "ROLE":
		a.role = role.Name(word)
		if _, ok := s.workers[a.role]; !ok {
			return fmt.Errorf("there is no role %q%s", word, meant(word, s.roles()))
		}
	case "RANK":
		if a.rank, err = strconv.Atoi(word); err != nil || a.rank < 0 || a.rank >= s.workers[a.role] {
			return fmt.Errorf("RANK is %q, %s has the ranks 0 to %d", word, a.role, s.workers[a.role]-1)
		}
	case "STEP", "CODE", "TIMES":
		if a.n, err = strconv.ParseInt(word, 10, 64); err != nil {
			return fmt.Errorf("%s is %q, want a number", kind, word)
		}
	case "DURATION":
		if a.d, err = time.ParseDuration(word); err != nil || a.d < 0 {
			return fmt.Errorf("DURATION is %q, want one such as 90s or 1m30s", word)
		}
	case "VERB":
		a.verb = word
		return oneOf(kind, word, verbs)
	case "CAUSE":
		a.word = word
		return oneOf(kind, word, texts(role.Causes()))
	case "SIGNAL":
		a.word = word
		return oneOf(kind, word, []string{"SIGTERM", "SIGINT", "SIGHUP", "SIGKILL", "SIGSEGV"})
	case "PHASE":
		a.word = word
	default:
		panic("no kind of argument is called " + kind)
	}
	return nil
}

// many reads what may occur more than once.
func (s *story) many(l *line, kind string) error {
	switch kind {
	case "ROLE[:WORKERS]":
		for _, word := range l.rest {
			name, count, counted := strings.Cut(word, ":")
			n := 1
			if counted {
				var err error
				if n, err = strconv.Atoi(count); err != nil || n < 1 {
					return fmt.Errorf("%s has %q workers, want a number from 1", name, count)
				}
			}
			known, err := role.ParseName(name)
			if err != nil {
				return err
			}
			s.workers[known] = n
		}
	case "KEY=VALUE":
		return s.settings(l)
	case "TEXT":
	default:
		panic("no kind of argument is called " + kind)
	}
	return nil
}

func (s *story) roles() []string { return texts(slices.Sorted(maps.Keys(s.workers))) }

// oneOf checks that a word is one of those that are known.
func oneOf(what, word string, known []string) error {
	if slices.Contains(known, word) {
		return nil
	}
	return fmt.Errorf("%s is %q%s", what, word, meant(word, known))
}

// settings reads KEY=VALUE words by the table of the directive.
func (s *story) settings(l *line) error {
	table := settingsOf[l.name]
	for _, word := range l.rest {
		key, value, _ := strings.Cut(word, "=")
		i := slices.IndexFunc(table, func(known setting) bool { return known.key == key })
		if i < 0 {
			var keys []string
			for _, known := range table {
				keys = append(keys, known.key)
			}
			return fmt.Errorf("there is no setting %q%s", key, meant(key, keys))
		}
		set, err := table[i].read(s, value)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		l.set = append(l.set, set)
	}
	return nil
}

// meant completes a complaint about an unknown word: the nearest known one, or all of them.
func meant(word string, known []string) string {
	if near := nearest.Word(word, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return "; want one of " + strings.Join(known, ", ")
}

func texts[T ~string](words []T) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = string(w)
	}
	return out
}
