package command

import (
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"vigil/internal/controller"
)

// commandLine is how this program is started to go on with the run that it runs, open or closed. The verb is the command
// whose flags fs are; empty: none. More are flags beyond those that were given. To give up a run is not for a second time.
func (p *program) commandLine(verb string, fs *pflag.FlagSet, more ...string) controller.Command {
	ours, theirs := p.args[:len(p.args)-fs.NArg()], p.args[len(p.args)-fs.NArg():]
	without := func(flag string) []string {
		return slices.DeleteFunc(slices.Clone(ours), func(word string) bool { return word == "--"+flag || word == "--"+flag+"=true" })
	}
	ours = without("forget-state")
	folder, _ := os.Getwd() // one that cannot be found is not told
	c := controller.Command{Program: shellWords(theirs), Folder: folder}
	at := 1
	if i := slices.Index(ours, verb); verb != "" && i > 0 {
		at = i + 1
	}
	ours = slices.Insert(ours, at, more...)
	c.Again = shellWords(slices.Concat(without("resume"), theirs))
	if !fs.Changed("resume") {
		ours = slices.Insert(ours, at, "--resume")
	}
	c.Resume = shellWords(slices.Concat(ours, theirs))
	return c
}

// plainWord needs no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellWords writes words so that a shell reads the same.
func shellWords(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		if quoted[i] = word; !plainWord.MatchString(word) {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
