package warm

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// command is a worker's command, read as Python reads it (https://docs.python.org/3/using/cmdline.html).
type command struct {
	words  []string // all of it
	flags  []string // the interpreter's own options
	kind   string   // script, module or command, as forkserver.py has them
	target string   // the script's path, the module's name, or the text after -c
	args   int      // where in words the program's own arguments begin
}

var interpreter = regexp.MustCompile(`^python([0-9]+(\.[0-9]+)*)?$`)

const (
	plainFlags = "bBdEIOPqRsSuv" // options without a value
	valueFlags = "WX"            // options with one
	endFlags   = "mc"            // what comes after is the program
)

// read splits a command into the interpreter, its options and the program. The error says why no fork server can
// stand for it.
func read(words []string) (command, error) {
	c := command{words: words}
	if len(words) == 0 || !interpreter.MatchString(filepath.Base(words[0])) {
		return c, fmt.Errorf("the command does not begin with a Python interpreter, but with %q", strings.Join(words[:min(1, len(words))], ""))
	}
	for i := 1; i < len(words); i++ {
		word := words[i]
		if word == "--check-hash-based-pycs" && i+1 < len(words) {
			c.flags = append(c.flags, word, words[i+1])
			i++
			continue
		}
		if !strings.HasPrefix(word, "-") {
			c.kind, c.target, c.args = "script", word, i+1
			return c, nil
		}
		if word == "-" || strings.HasPrefix(word, "--") {
			return c, fmt.Errorf("a fork server cannot do what %s asks for", word)
		}
		used, err := c.cluster(words, i)
		if err != nil || c.kind != "" {
			return c, err
		}
		i += used
	}
	return c, errors.New("the command names no program")
}

// cluster reads options that stand together in words[i], such as -uB or -mtrain, and says how many words after it
// belong to them.
func (c *command) cluster(words []string, i int) (int, error) {
	word := words[i]
	for at := 1; at < len(word); at++ {
		letter := word[at : at+1]
		if strings.Contains(plainFlags, letter) {
			c.flags = append(c.flags, "-"+letter)
			continue
		}
		if !strings.Contains(endFlags, letter) && !strings.Contains(valueFlags, letter) {
			return 0, fmt.Errorf("a fork server cannot do what -%s asks for", letter)
		}
		value, used := word[at+1:], 0
		if value == "" {
			if i+1 >= len(words) {
				return 0, fmt.Errorf("there is nothing after -%s", letter)
			}
			value, used = words[i+1], 1
		}
		switch letter {
		case "m":
			c.kind, c.target, c.args = "module", value, i+used+1
		case "c":
			c.kind, c.target, c.args = "command", value, i+used+1
		default:
			c.flags = append(c.flags, "-"+letter, value)
		}
		return used, nil
	}
	return 0, nil
}
