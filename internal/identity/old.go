package identity

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"vigil/internal/proc"
)

// NothingToResumeError says that an experiment has had no run.
type NothingToResumeError struct {
	Folder string
	Others []string // runs of other arguments in the same folder, with what they ran
}

func (e *NothingToResumeError) Error() string {
	text := fmt.Sprintf("--resume: there is no run of this command in %s to go on with", e.Folder)
	for _, other := range e.Others {
		text += "\n  there is " + other
	}
	if len(e.Others) > 0 {
		text += "\n--name NAME --resume goes on with one of them under this command"
	}
	return text
}

// others are the experiments of the same program in the same folder.
func (c *choice) others() []string {
	var all []string
	dirs, _ := filepath.Glob(filepath.Join(c.States, "*"))
	for _, dir := range dirs {
		n, there := readNote(dir)
		if there && n.Key != "" && n.Key != c.id.key() && n.Folder == c.id.Folder && readable(n.Argv) == readable(c.id.Argv) {
			all = append(all, fmt.Sprintf("%s: %s", filepath.Base(dir), strings.Join(n.Argv, " ")))
		}
	}
	return all
}

// oldRun is what an earlier version has kept of a script: every one of its file's name had the same folder.
type oldRun struct {
	dir  string
	told string // how it stands
	held bool
}

// findOld looks for it. A folder of a script in another place is none of ours.
func (c *choice) findOld() (oldRun, bool) {
	dir := filepath.Join(c.States, c.Old)
	if _, ours := readNote(dir); c.Old == "" || ours {
		return oldRun{}, false
	}
	if !isOf(dir, c.id.Folder) {
		return oldRun{}, false
	}
	lock, err := proc.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return oldRun{dir, "is running, or cannot be looked at: " + err.Error(), true}, true
	}
	defer func() { _ = lock.Unlock() }()
	run, _, err := lastRun(dir, c.Old, c.Version)
	switch {
	case err != nil:
		return oldRun{dir, "cannot be read: " + err.Error(), true}, true
	case run.UID == "", run.Folder != "" && run.Command != strings.Join(c.id.Argv, " "): // no run; or one of a job file, or of another command that was given the folder
		return oldRun{}, false
	case run.Closed != nil:
		return oldRun{dir: dir, told: fmt.Sprintf("of %s, closed with %d", run.Began.Local().Format(Moment), run.Closed.Exit)}, true
	default:
		return oldRun{dir: dir, told: fmt.Sprintf("of %s, left open", run.Began.Local().Format(Moment))}, true
	}
}

// isOf says whether a state directory is that of a job of one role which was started in a folder.
func isOf(dir, folder string) bool {
	runs, _ := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	found := false
	for _, path := range runs {
		if filepath.Base(path) != "main.json" {
			return false // it has other roles
		}
		var was struct{ Workdir string }
		text, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(text, &was) != nil {
			continue
		}
		if real, err := filepath.EvalSymlinks(was.Workdir); err == nil {
			found = found || real == folder
		}
	}
	return found
}

// sayOld notes what an earlier version has kept of this script, if it has.
func (c *choice) sayOld(name string) {
	old, found := c.findOld()
	switch {
	case !found:
	case old.held:
		c.notes = append(c.notes, fmt.Sprintf("what an earlier version has kept of this script in %s %s; this command's runs are kept as %s", old.dir, old.told, name))
	default:
		c.notes = append(c.notes, fmt.Sprintf("an earlier version has kept a run of this script in %s (%s): --name %s --resume goes on with it; this command's runs are kept as %s", old.dir, old.told, c.Old, name))
	}
}

// old takes what an earlier version has kept, where that is to be resumed and nothing else is known.
func (c *choice) old() (Home, bool) {
	old, found := c.findOld()
	if c.known || !found || old.held {
		return Home{}, false
	}
	home, err := Named(c.Options, c.Old, c.id)
	if err != nil {
		return Home{}, false
	}
	home.Note = []string{fmt.Sprintf("goes on with what an earlier version has kept of this script in %s (%s); --name %s goes on with it from now on", old.dir, old.told, c.Old)}
	return home, true
}
