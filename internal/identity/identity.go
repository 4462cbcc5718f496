// Package identity says whose run a script's is: it tells one experiment from another, and of one that was started several
// times at once each run from the others. It finds the state directory of each and takes its lock, so that none ever goes
// on with what another has begun.
package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Identity is what makes two commands the same experiment: where it was started, what it runs, and the scheduler's job,
// which stays the same when the scheduler starts it again.
type Identity struct {
	Folder string   `json:"folder"` // without symbolic links
	Argv   []string `json:"argv"`   // program and arguments as they were given
	Slurm  []string `json:"slurm,omitempty"`
}

// Of returns the identity of a command that is given in a folder.
func Of(folder string, argv, environ []string) Identity {
	if real, err := filepath.EvalSymlinks(folder); err == nil {
		folder = real
	}
	id := Identity{Folder: folder, Argv: argv}
	for _, name := range []string{"SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID"} {
		for _, pair := range environ {
			if value, is := strings.CutPrefix(pair, name+"="); is && value != "" {
				id.Slurm = append(id.Slurm, name+"="+value)
			}
		}
	}
	return id
}

// key is the same for the same identity only.
func (i Identity) key() string {
	words := slices.Concat([]string{i.Folder, strconv.Itoa(len(i.Argv))}, i.Argv, i.Slurm)
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:])
}

const (
	shortHash, longHash = 6, 10 // hexadecimal digits; the uid of a run ends with 8
	longestWord         = 24    // of a name, before hash and number: a job's name has at most 40 characters
)

// names are those of the experiment's first run, the better first: what it runs, and a short hash. The second is for where
// another experiment has the first.
func (i Identity) names() []string {
	word, key := readable(i.Argv), i.key()
	return []string{word + "-" + key[:shortHash], word + "-" + key[:longHash]}
}

var (
	notInName   = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
	interpreter = regexp.MustCompile(`^(python[0-9.]*|bash|sh)$`)
)

// readable is what a person calls the program: its file's name, or that of the script which an interpreter runs.
func readable(argv []string) string {
	at := slices.IndexFunc(argv, func(word string) bool { return !strings.HasPrefix(word, "-") })
	if at < 0 {
		return "main"
	}
	if interpreter.MatchString(filepath.Base(argv[at])) {
		for _, word := range argv[at+1:] {
			if !strings.HasPrefix(word, "-") && (strings.HasSuffix(word, ".py") || strings.HasSuffix(word, ".sh")) {
				return clean(word)
			}
		}
	}
	return clean(argv[at])
}

func clean(word string) string {
	word = strings.TrimSuffix(filepath.Base(word), ".py")
	word = strings.TrimLeft(notInName.ReplaceAllString(word, "-"), "._-")
	word = strings.TrimRight(word[:min(len(word), longestWord)], "._-")
	if word == "" {
		return "main"
	}
	return word
}

// noteFile is in every state directory of this layout: whose it is.
const noteFile = "identity.json"

// note is the content of noteFile.
type note struct {
	Key string `json:"key"` // empty: it has its name by --name
	Identity
}

func readNote(dir string) (n note, there bool) {
	text, err := os.ReadFile(filepath.Join(dir, noteFile))
	return n, err == nil && json.Unmarshal(text, &n) == nil
}

func writeNote(dir string, n note) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, noteFile+".new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	if wrong := f.Close(); err == nil {
		err = wrong
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, noteFile))
	}
	return err
}
